"""One row of the benchmark of captured functions in a process of its own; see harness/worker.py.

environment   what the figures depend on
compile       fills Inductor's caches on disk for default and reduce-overhead; nothing is kept
measure       all modes of a row: run.py

    python -m benchmarks.callables.worker measure ROW [MODES] --out FILE [--gate] ...
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from benchmarks.callables.catalogue import find
from benchmarks.callables.modes import MODES, of_row
from benchmarks.callables.run import POOL_SEED, run_row
from benchmarks.harness.environment import environment
from benchmarks.harness.measure import Effort
from benchmarks.harness.modes import Bench, begin
from benchmarks.harness.worker import Given, end_with_parent, run

ROUNDS = 6


def compile_only(given: Given) -> dict[str, Any]:
    """Raises what the mode raises: so does the measurement then, and says so."""
    row, device = given.workload, given.device
    with torch.set_grad_enabled(row.training):
        bench = Bench(None, row.inputs(1, device.torch, POOL_SEED), device, workload=row)
        runner = begin(MODES[given.mode], bench)
    return {"seconds": runner.compile_s}


def measure(given: Given) -> dict[str, Any]:
    row = given.workload
    effort = Effort(given.seconds, ROUNDS, least=row.least)
    records, about = run_row(row, given.device, effort, of_row(row, tuple(given.mode.split(","))))
    return {
        "env": environment(),
        "records": [asdict(each) for each in records],
        "about": about,
    }


if __name__ == "__main__":
    end_with_parent()
    kinds = {"compile": compile_only, "measure": measure}
    run(kinds, find, lambda row: row.make(torch.device("meta")))
