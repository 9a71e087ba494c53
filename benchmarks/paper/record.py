"""What is stored of the paper's benchmark, and how a file is read back to go on from there.

settings     what an iteration is, and how it was measured
runs         [{date, env, command, seconds}], in order: a file may be filled by several
workloads    {name: {about, run, seconds, phases, records, error}}
               about    model, suite, training, batch, precision, source, deviation
               run      which of `runs` it was measured in, counted from 0
               records  [Result], one per mode
               error    why there are no records, if so
targets      [{name, requirement, met, value, limit, detail}]

A workload's records come from one process of one run: nothing within a row is put together from
several. Rows of several runs stand in one file only if their machines have the same GPU, driver and
versions of the libraries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import record
from benchmarks.harness.timed import Measured

SETTINGS = {
    "iteration": "inference: a forward without gradients; training: gradients set to None, a "
    "forward to a scalar loss and its backward; no optimizer",
    "inputs": "8 different buffers in turn",
    "autocast": "bf16 over fp32 weights where a row says so",
    "tf32": "torch's defaults: in cuDNN's convolutions, not in matrix products",
    "floor": "default's code, a whole iteration in one CUDA graph on inputs that never move; where "
    "that cannot be captured, the summed time of its kernels, copies and fills",
    "compile_s": "from torch.compile to the steady state: tracing, Inductor with warm caches on "
    "disk, captures, proofs",
}


@dataclass
class Result(Measured):
    """One workload in one mode. None: what a mode does not have, or a mode that is wrong or raised.

    `extra` has, of pygraph: settle_s; indices_read, bytes of indices per iteration that the host
    reads in front of launches before the guards."""

    cold_compile_s: float | None = None
    """Up to the end of the first call, which captures nothing, without those caches unless an
    earlier run had filled them. The other modes and other workloads are compiled at the same time,
    and may find what one of these has just stored, such as a kernel."""
    first_calls_s: list[float] = field(default_factory=list)
    kernel_us: float | None = None
    """Summed time of kernels, copies and fills of one iteration on the GPU."""
    busy_us: float | None = None
    """Time in which at least one of them ran."""
    idle_share: float | None = None
    """1 - busy_us / latency_us, not below 0."""
    kernels: float | None = None
    """Kernels of one iteration, copies and fills left out."""
    kernels_in_graphs: float | None = None
    graph_launches: float | None = None
    """Per iteration."""
    graphs_found: int | None = None
    """Compiled callables that might become graphs."""
    graphs_captured: int | None = None
    graphs_deployed: int | None = None
    peak_mib: float | None = None
    """What iterations in the steady state need at most: weights, all inputs, and by how much
    allocated memory grew since before this mode was prepared. Private pools count whole."""
    reserved_mib: float | None = None
    held_mib: float | None = None
    """What this mode keeps between calls from everybody else, results dropped."""

    @property
    def coverage(self) -> float | None:
        """The share of kernels that graphs launch."""
        if not self.kernels or self.kernels_in_graphs is None:
            return None
        return self.kernels_in_graphs / self.kernels


@dataclass
class Row:
    """A workload and all its modes."""

    name: str
    about: dict[str, Any] = field(default_factory=dict)
    run: int = 0
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    records: list[Result] = field(default_factory=list)
    error: str | None = None

    def mode(self, name: str) -> Result | None:
        return next((each for each in self.records if each.mode == name), None)

    def latency(self, mode: str) -> float | None:
        """None where that mode is not timed."""
        found = self.mode(mode)
        return found.latency_us if found is not None and found.timed else None

    @classmethod
    def from_dict(cls, name: str, data: Mapping[str, Any]) -> Row:
        rest = {key: data[key] for key in ("about", "run", "seconds", "phases") if key in data}
        records = [record.restored(Result, each) for each in data.get("records", [])]
        return cls(name, records=records, error=data.get("error"), **rest)

    def to_dict(self) -> dict[str, Any]:
        content = asdict(self)
        del content["name"]
        return content


class Document(record.Document):
    """The file."""

    same = (*record.SAME, "timm")

    def __init__(self, path: Path) -> None:
        self.runs: list[dict[str, Any]] = []
        self.rows: dict[str, Row] = {}
        super().__init__(path, SETTINGS)

    def load(self, content: Mapping[str, Any]) -> None:
        self.runs = list(content.get("runs", []))
        found = content.get("workloads", {})
        self.rows = {name: Row.from_dict(name, each) for name, each in found.items()}

    def begin(self, env: Mapping[str, Any], command: str) -> int:
        """A new run; ValueError where the file's figures come from another machine or versions."""
        for earlier in self.runs:
            self.require_same(earlier["env"], env)
        self.runs.append({"env": dict(env), "command": command, "seconds": 0.0})
        return len(self.runs) - 1

    def drop(self, names: Collection[str]) -> None:
        """Forgets these workloads, so that they are measured again."""
        self.rows = {name: row for name, row in self.rows.items() if name not in names}

    def done(self, name: str) -> bool:
        """Whether it was measured; what failed as a whole is tried again."""
        return name in self.rows and self.rows[name].error is None

    def content(self, targets: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "runs": self.runs,
            "workloads": {name: row.to_dict() for name, row in self.rows.items()},
            "targets": list(targets),
        }
