"""A measurement in a process of its own, which jobs.py starts.

    python -m benchmarks.SUITE.worker KIND [MODEL [MODE]] --out FILE [--gate] ...

With --gate it imports everything, waits for a line on its standard input, and only then touches the
GPU: the next measurement can start up while the one before is still running. The file gets
{"result": ...} or {"error": "..."}; a process that dies leaves none.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.harness import record
from benchmarks.harness.device import Device
from benchmarks.harness.environment import environment
from benchmarks.harness.measure import Alone, Phases
from benchmarks.harness.turns import Turn
from pygraph.demo.models import chosen


@dataclass(frozen=True)
class Given:
    """What a job of a suite is called with."""

    workload: Any
    mode: str
    device: Device
    tiny: bool = False
    seconds: float = 8.0
    """Of the clocks."""
    turns: Path | None = None
    """Where it is told when it is alone for the clocks."""
    shared: bool = False
    """Others use the GPU while it is weighed."""
    resumed: dict[str, Any] = field(default_factory=dict)
    """What an earlier process found out, which had to be given up."""
    options: dict[str, Any] = field(default_factory=dict)
    """PyGraph's, of its modes."""


@dataclass(frozen=True)
class Options:
    """How a workload is measured in several modes."""

    modes: Sequence[str]
    pygraph: Mapping[str, Any] = field(default_factory=dict)
    """PyGraph's options."""
    seconds: float = 1.5
    """Of the clocks."""
    alone: Alone = nullcontext
    timed: Callable[[], None] = lambda: None
    """Called behind the clocks."""
    clock: Callable[[], float] = time.perf_counter


def in_modes(given: Given, available: Sequence[str], measure: Callable[..., Any]) -> dict[str, Any]:
    """What a job stores of a workload that `measure` makes the records of, one per mode."""
    wanted = chosen(None if given.mode == "all" else given.mode, available, "mode")
    options = Options(wanted, given.options, given.seconds)
    if given.turns is not None:
        turn = Turn(given.turns, given.workload.name)
        options = replace(options, alone=turn.alone, timed=turn.give_up, clock=turn.clock)
    # In front of the clocks: it asks another program, which others' clocks would stop for long.
    env = environment()
    phases = Phases()
    records = measure(given.workload, given.device, options, phases)
    return {
        "env": env,
        "records": [asdict(each) for each in records],
        "phases": {name: round(seconds, 2) for name, seconds in phases.items()},
    }


def run(
    kinds: Mapping[str, Callable[[Given], Any]],
    find: Callable[[str, bool], Sequence[Any]],
    build: Callable[[Any], Any],
) -> None:
    """The command of a suite: `find` a workload by its name, as a tiny one or not; `build` imports
    what its model needs. All can say what their figures depend on."""

    def main(
        kind: str,
        model: str,
        mode: Annotated[str, typer.Argument()] = "default",
        out: Annotated[Path, typer.Option()] = Path("result.json"),
        gate: bool = False,
        device: str = "cuda",
        tiny: bool = False,
        seconds: float = 8.0,
        turns: Annotated[Path | None, typer.Option()] = None,
        shared: bool = False,
        resumed: str = "{}",
        options: str = "{}",
    ) -> None:
        (found,) = find(model, tiny)
        if device == "cpu":
            torch.set_num_threads(1)  # tiny tensors are not worth more; tests share their machine
        given = Given(
            found,
            mode,
            Device(device),
            tiny,
            seconds,
            turns=turns,
            shared=shared,
            resumed=json.loads(resumed),
            options=json.loads(options),
        )
        work = {"environment": lambda _: environment(), **kinds}
        serve(out, lambda: work[kind](given), gate, lambda: kind in kinds and build(found))

    typer.run(main)


def parsed(options: str) -> dict[str, Any]:
    """PyGraph's, as a command is given them."""
    found = json.loads(options)
    if not isinstance(found, dict):
        raise ValueError(f"--options: found {options}, needed a JSON object")
    return found


def outcome(work: Callable[[], Any]) -> dict[str, Any]:
    """The file's content; never raises for what a measurement does."""
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    try:
        return {"result": work()}
    except Exception as error:
        traceback.print_exc()
        return {"error": record.message(error)}


def serve(out: Path, work: Callable[[], Any], gate: bool, build: Callable[[], Any]) -> None:
    """Behind the gate: `work`. In front of it: what a model imports, by building it without memory,
    and Inductor."""
    logging.basicConfig()
    logging.getLogger("benchmarks").setLevel(logging.DEBUG)  # why a mode failed
    if gate:
        import torch._inductor.compile_fx

        with contextlib.suppress(Exception), torch.device("meta"):
            build()
        if not sys.stdin.readline():
            raise typer.Exit(3)  # whoever started this is gone
    record.write(out, outcome(work))


def end_with_parent() -> None:
    """A worker that is stopped would keep the GPU's memory for ever if the suite were killed."""
    set_death_signal = 1  # PR_SET_PDEATHSIG, prctl(2)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
