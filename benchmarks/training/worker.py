"""One measurement of the training benchmark in a process of its own; see harness/worker.py.

environment   what the figures depend on
compile       fills Inductor's caches on disk for one mode
time          all modes of a model: run.py
memory        one mode of a model: memory.py

Several "time" processes can prepare
at once and take turns for the clocks, by a lock on one file: shared while preparing, exclusive
from the clocks on.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import torch
import typer

from benchmarks.harness.device import Device
from benchmarks.harness.environment import environment
from benchmarks.harness.measure import Effort
from benchmarks.harness.modes import Bench, begin
from benchmarks.harness.worker import serve
from benchmarks.training import compiling, models, modes
from benchmarks.training.memory import weigh_training
from benchmarks.training.models import Training
from benchmarks.training.run import run_training

LEAST_STEPS = 8
"""Per mode and round of the clocks, however long a step takes."""


@dataclass(frozen=True)
class Given:
    """What a job is called with."""

    training: Training
    mode: str
    device: Device
    seconds: float
    rounds: int
    lock: Path | None
    shared: bool


class Turns:
    """Shared with all others that prepare, until the turn comes to be alone."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a")
        fcntl.flock(self._file, fcntl.LOCK_SH)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until nobody prepares or measures. The lock goes with the process: what that gives
        back to the GPU at its end would disturb the next one's clocks as well."""
        fcntl.flock(self._file, fcntl.LOCK_UN)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        yield


def time_modes(given: Given) -> dict[str, Any]:
    turns = Turns(given.lock) if given.lock is not None else None
    effort = Effort(given.seconds, given.rounds, least=LEAST_STEPS)
    alone = turns.alone if turns is not None else contextlib.nullcontext
    results, about = run_training(given.training, given.device, effort, alone=alone)
    return {"env": environment(), "results": [asdict(each) for each in results], "about": about}


def compile_only(given: Given) -> dict[str, Any]:
    """Forward and backward once, in one mode; many do so at once, so nothing is tuned."""
    training, device = given.training, given.device
    program = training.make_program(device.torch)
    inputs = training.make_inputs(0, device.torch)
    bench = Bench(program, [inputs], device, workload=training)
    with compiling.untuned():
        begin(modes.MODES[given.mode], bench)
    return {"workload": training.name, "mode": given.mode}


def memory_of(given: Given) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        if given.shared:
            stack.enter_context(compiling.untold_choices())
        return asdict(weigh_training(given.training, given.mode, given.device, given.shared))


KINDS: dict[str, Callable[[Given], dict[str, Any]]] = {
    "environment": lambda _: environment(),
    "compile": compile_only,
    "time": time_modes,
    "memory": memory_of,
}


def main(
    kind: str,
    model: str,
    mode: Annotated[str, typer.Argument()] = "default",
    out: Annotated[Path, typer.Option()] = Path("result.json"),
    gate: bool = False,
    device: str = "cuda",
    tiny: bool = False,
    seconds: float = 8.0,
    rounds: int = 5,
    lock: Annotated[Path | None, typer.Option()] = None,
    shared: bool = False,
) -> None:
    (training,) = models.find(model, tiny)
    if device == "cpu":
        torch.set_num_threads(1)  # tiny tensors are not worth more, and tests share their machine
    given = Given(training, mode, Device(device), seconds, rounds, lock, shared)
    serve(out, lambda: KINDS[kind](given), gate, training.build)


if __name__ == "__main__":
    typer.run(main)
