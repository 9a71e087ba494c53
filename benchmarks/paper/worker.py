"""One job of the paper's benchmark in a process of its own.

    python -m benchmarks.paper.worker KIND WORKLOAD [MODE] --out FILE [--gate] ...

environment   what the figures depend on
measure       all modes of a workload: run.py; or what another process has to know that does it
              again, where this one had to be given up
cold          the seconds that compiling in a mode takes without caches, which are full then

The gate and the file are as in harness/worker.py. With --turns, the folder of turns.py,
several can prepare at once, and each is alone for the clocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.harness.device import Device
from benchmarks.harness.environment import environment
from benchmarks.harness.measure import Effort
from benchmarks.harness.worker import serve
from benchmarks.paper import modes
from benchmarks.paper.prepare import FloorImpossible, Options
from benchmarks.paper.run import build, run_workload
from benchmarks.paper.turns import Turn
from benchmarks.paper.workloads import catalogue
from benchmarks.paper.workloads.workload import Workload

LEAST = 5
"""Iterations per mode and round of the clocks, however long one takes."""


@dataclass(frozen=True)
class Given:
    """What a job is called with."""

    workload: Workload
    mode: str
    device: Device
    tiny: bool
    seconds: float
    rounds: int
    turn: Turn | None = None
    resumed: dict[str, Any] = field(default_factory=dict)
    """What an earlier process found out, which had to be given up: `again` of its result."""


def measure(given: Given) -> dict[str, Any]:
    effort = Effort(given.seconds, given.rounds, least=LEAST)
    wanted = modes.find(None if given.mode == "all" else given.mode, given.device)
    options, turn = Options(effort, wanted, given.tiny, **given.resumed), given.turn
    if turn is not None:
        options = replace(options, alone=turn.alone, tell=turn.tell, clock=turn.clock)
    unknown = [m for m in modes.CONFIGURATIONS if m in wanted and m not in options.cold_s]
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
        if given.turn is not None:
            bench.clock = given.turn.clock
        return modes.compile_cold(given.mode, bench)


def compile_elsewhere(given: Given, mode: str) -> Callable[[], float | None]:
    """Begins with it in another process, of this one's session: what stops and ends this one does
    so to that. Returns what waits for its seconds; None where it failed."""
    folder = tempfile.TemporaryDirectory()
    out = Path(folder.name, "cold.json")
    command = [sys.executable, "-m", "benchmarks.paper.worker", "cold"]
    command += [given.workload.name, mode, "--out", str(out), "--device", given.device.torch.type]
    command += ["--tiny"] if given.tiny else []
    command += ["--turns", str(given.turn.folder)] if given.turn is not None else []
    process = subprocess.Popen(command)

    def wait() -> float | None:
        with folder:
            process.wait()
            found = json.loads(out.read_text()) if out.exists() else {}
        seconds: float | None = found.get("result")
        return seconds

    return wait


KINDS: dict[str, Callable[[Given], Any]] = {
    "environment": lambda _: environment(),
    "measure": measure,
    "cold": cold,
}


def _end_with_parent() -> None:
    """A worker that is stopped would keep the GPU's memory for ever if the suite were killed."""
    set_death_signal = 1  # PR_SET_PDEATHSIG, prctl(2)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def main(
    kind: str,
    workload: str,
    mode: Annotated[str, typer.Argument()] = "all",
    out: Annotated[Path, typer.Option()] = Path("result.json"),
    gate: bool = False,
    device: str = "cuda",
    tiny: bool = False,
    seconds: float = 8.0,
    rounds: int = 10,
    turns: Annotated[Path | None, typer.Option()] = None,
    resumed: str = "{}",
) -> None:
    _end_with_parent()
    (found,) = catalogue.find(workload)
    if device == "cpu":
        torch.set_num_threads(1)
    given = Given(
        workload=found,
        mode=mode,
        device=Device(device),
        tiny=tiny,
        seconds=seconds,
        rounds=rounds,
        turn=Turn(turns, found.name) if turns is not None else None,
        resumed=json.loads(resumed),
    )
    build = found.build if kind != "environment" else lambda _: None
    serve(out, lambda: KINDS[kind](given), gate, lambda: build(True))


if __name__ == "__main__":
    typer.run(main)
