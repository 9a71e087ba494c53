"""One workload in a process of its own; see harness/worker.py.

    python -m benchmarks.parallel.worker KIND WORKLOAD [MODES] --out FILE [--gate] ...

measure   all modes
draw      the same, and timelines of serial and parallel

Where the floor could not be captured, the result is why, and another process has to measure without
it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.harness.worker import Given, end_with_parent, in_modes, run
from benchmarks.parallel.modes import FloorImpossible, available
from benchmarks.parallel.run import run_workload
from benchmarks.parallel.workloads import find


def measure(given: Given, drawn: bool = False) -> dict[str, Any]:
    run_it = partial(run_workload, tiny=given.tiny, drawn=drawn)
    try:
        return in_modes(given, available(given.device), run_it)
    except FloorImpossible as error:
        return {"without_floor": str(error)}


if __name__ == "__main__":
    end_with_parent()
    kinds: dict[str, Callable[[Given], Any]] = {
        "measure": measure,
        "draw": partial(measure, drawn=True),
    }
    run(kinds, find, lambda workload: workload.make_program(torch.device("cpu"), True))
