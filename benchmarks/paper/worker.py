"""One job of the paper's benchmark in a process of its own.

    python -m benchmarks.paper.worker KIND WORKLOAD [MODE] --out FILE [--gate] ...

environment   what the figures depend on
measure       all modes of a workload: run.py; or what another process has to know that does it
              again, where this one had to be given up
cold          the seconds that compiling in a mode takes without caches, which are full then

The gate and the file are as in harness/worker.py. With --turns, the folder of turns.py,
several can compile at once, and each is alone for its captures and the clocks.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.environment import environment
from benchmarks.harness.measure import Effort
from benchmarks.harness.modes import CONFIGURATIONS
from benchmarks.harness.turns import Turn
from benchmarks.harness.worker import Given, end_with_parent, run
from benchmarks.paper import modes
from benchmarks.paper.prepare import FloorImpossible, Options
from benchmarks.paper.run import build, run_workload
from benchmarks.paper.workloads import catalogue

ROUNDS, LEAST = 10, 5
"""Of the clocks; iterations per mode and round, however long one takes."""


def turn_of(given: Given) -> Turn | None:
    return None if given.turns is None else Turn(given.turns, given.workload.name)


def measure(given: Given) -> dict[str, Any]:
    effort = Effort(given.seconds, ROUNDS, least=LEAST)
    wanted = modes.find(None if given.mode == "all" else given.mode, given.device)
    options, turn = Options(effort, wanted, given.tiny, **given.resumed), turn_of(given)
    if turn is not None:
        options = replace(options, alone=turn.alone, tell=turn.tell, clock=turn.clock)
    unknown = [m for m in CONFIGURATIONS if m in wanted and m not in options.cold_s]
    if given.device.is_cuda and len(unknown) > 1:
        elsewhere = {mode: compile_elsewhere(given, mode) for mode in unknown[1:]}
        options = replace(options, elsewhere=elsewhere)
    try:
        row = run_workload(given.workload, given.device, options)
    except FloorImpossible as error:
        return {"again": {"floor_error": error.why, "cold_s": error.cold_s}}
    return {"env": environment(), "row": row.to_dict()}


def cold(given: Given) -> float:
    torch._dynamo.config.recompile_limit = modes.RECOMPILES
    with torch.set_grad_enabled(given.workload.training), given.workload.settings():
        bench = build(given.workload, given.device, given.tiny, most=1)
        if (turn := turn_of(given)) is not None:
            bench.clock = turn.clock
        return modes.compile_cold(given.mode, bench)


def compile_elsewhere(given: Given, mode: str) -> Callable[[], float | None]:
    """Begins with it in another process, of this one's session: what stops and ends this one does
    so to that. Returns what waits for its seconds; None where it failed."""
    folder = tempfile.TemporaryDirectory()
    out = Path(folder.name, "cold.json")
    command = [sys.executable, "-m", "benchmarks.paper.worker", "cold"]
    command += [given.workload.name, mode, "--out", str(out), "--device", given.device.torch.type]
    command += ["--tiny"] if given.tiny else []
    command += ["--turns", str(given.turns)] if given.turns is not None else []
    process = subprocess.Popen(command)

    def wait() -> float | None:
        with folder:
            process.wait()
            found = json.loads(out.read_text()) if out.exists() else {}
        return found.get("result")

    return wait


if __name__ == "__main__":
    end_with_parent()
    kinds = {"measure": measure, "cold": cold}
    run(kinds, lambda name, _: catalogue.find(name), lambda workload: workload.build(True))
