"""One measurement of the training benchmark in a process of its own; see harness/worker.py.

environment   what the figures depend on
compile       fills Inductor's caches on disk for one mode
time          all modes of a model: run.py
memory        one mode of a model: memory.py

Several "time" processes can prepare at once and take turns for the clocks, by a lock on one file:
shared while preparing, exclusive from the clocks on.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from benchmarks.harness.environment import environment
from benchmarks.harness.measure import Effort
from benchmarks.harness.modes import Bench, begin
from benchmarks.harness.worker import Given, run
from benchmarks.training import compiling, models, modes
from benchmarks.training.memory import weigh_training
from benchmarks.training.run import run_training

ROUNDS, LEAST = 5, 8
"""Of the clocks; steps per mode and round, however long one takes."""


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
    turns = Turns(given.turns) if given.turns is not None else None
    effort = Effort(given.seconds, ROUNDS, least=LEAST)
    alone = turns.alone if turns is not None else contextlib.nullcontext
    results, about = run_training(given.workload, given.device, effort, alone=alone)
    return {"env": environment(), "results": [asdict(each) for each in results], "about": about}


def compile_only(given: Given) -> dict[str, Any]:
    """Forward and backward once, in one mode; many do so at once, so nothing is tuned."""
    training, device = given.workload, given.device
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
        return asdict(weigh_training(given.workload, given.mode, given.device, given.shared))


if __name__ == "__main__":
    kinds = {"compile": compile_only, "time": time_modes, "memory": memory_of}
    run(kinds, models.find, lambda training: training.build())
