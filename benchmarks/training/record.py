"""What is stored of the training benchmark, and how a file is read back to go on from there.

env, command, settings   the machine; how this was called; what a step is
seconds                  by part of the run, added up over the runs that made the file
models                   {name: batch, precision, about, check, floor_is, phases, beside}
records                  [Result], one per model and mode
memory.records           [Weight], one per model and mode
targets                  [{name, requirement, met, value, limit, detail}]
errors                   [{job, error, ran}], also of what there was no time for
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import record
from benchmarks.harness.timed import Measured

SETTINGS = {
    "step": "gradients set to None, forward and loss, backward, AdamW(fused=True)",
    "compiled": "the module from inputs to loss; the optimizer is eager, but for the floor",
    "inputs": "8 different buffers in turn; only torch's own graphs copy them",
    "tf32": "torch's defaults: in cuDNN's convolutions, not in matrix products",
    "autocast": "bf16 for the transformers and ResNet-50; DCGAN and the recommender are fp32",
    "dropout": "on, as the configurations have it",
    "floor": "one CUDA graph of the whole step on inputs that never move, of default's code",
}


@dataclass
class Result(Measured):
    """One model in one mode: training steps."""

    bytes_copied_before: float | None = None
    """In all steps before those that are timed: warming up and the checks."""
    first_steps_s: list[float] = field(default_factory=list)
    graphs: int | None = None
    """pygraph: compiled graphs that run as CUDA graphs."""
    coverage: float | None = None
    """pygraph: replays over calls of compiled graphs in the timed steps."""

    @property
    def fully_graphed(self) -> bool:
        """pygraph: there are graphs, and nothing ran beside them."""
        return bool(self.graphs) and not self.fallbacks and self.coverage == 1.0


@dataclass
class Weight:
    """The memory of one model in one mode, in a process of its own; MiB."""

    workload: str
    mode: str
    peak_mib: float | None = None
    """torch.cuda.max_memory_allocated() of steps in the steady state, and what private pools of
    graphs keep idle beside it for pygraph: nobody else can have that."""
    torch_peak_mib: float = 0.0
    torch_reserved_mib: float = 0.0
    """torch.cuda.max_memory_reserved() of the same steps."""
    private_mib: float | None = None
    private_idle_mib: float | None = None
    driver_mib: float | None = None
    """By cuMemGetInfo, over what was in use before the model was built. None where other processes
    used the GPU at the same time."""
    own_mib: float = 0.0
    """Weights, optimizer state and all inputs."""
    steps: int = 0
    graphs: int | None = None
    fallbacks: list[dict[str, str]] = field(default_factory=list)
    error: str | None = None


class Document(record.OneMachine):
    """The file."""

    def __init__(self, path: Path, command: str) -> None:
        self.models: dict[str, dict[str, Any]] = {}
        self.results: list[Result] = []
        self.weights: list[Weight] = []
        self.failed: set[str] = set()
        """Models that were tried before, and are to be tried again."""
        super().__init__(path, command, SETTINGS)

    def load(self, content: Mapping[str, Any]) -> None:
        self.env = dict(content.get("env", {}))
        self.seconds = dict(content.get("seconds", {}))
        self.models = dict(content.get("models", {}))
        self.results = [record.restored(Result, each) for each in content.get("records", [])]
        weights = content.get("memory", {}).get("records", [])
        self.weights = [record.restored(Weight, each) for each in weights]
        # What failed is tried again, and then has another error or none.
        for each in content.get("errors", []):
            kind, _, rest = each["job"].partition(" ")
            if kind == "time" and rest and each.get("ran", True):
                self.failed.add(rest.split()[0])

    def drop(self, models: Collection[str], parts: Collection[str]) -> None:
        """Forgets these models' times or weights, so that they are taken again."""
        if "time" in parts:
            self.results = [each for each in self.results if each.workload not in models]
            self.models = {name: each for name, each in self.models.items() if name not in models}
            self.failed |= set(models)
        if "memory" in parts:
            self.weights = [each for each in self.weights if each.workload not in models]

    def timed(self, model: str) -> bool:
        return any(each.workload == model for each in self.results)

    def weighed(self, model: str, mode: str) -> bool:
        return any((each.workload, each.mode) == (model, mode) for each in self.weights)

    def content(self, targets: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        return {
            **self.head(),
            "models": self.models,
            "records": [asdict(each) for each in self.results],
            "memory": {"records": [asdict(each) for each in self.weights]},
            "targets": list(targets),
            "errors": self.errors,
        }
