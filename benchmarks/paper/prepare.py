"""All modes of a workload, from nothing to their steady states, and what each takes of memory.

Caches on disk are filled first, by each mode that compile times compare. Then all modes are
compiled, and only then do they go on until their graphs are captured, alone on the machine: whether
a graph is used, and in how many lanes its nodes run, is chosen by clocks. Memory is weighed when a
mode is in its steady state, as growth over what was there before it took any.

The floor is captured early. Torch's graphs keep results of training for ever, and with them the
nodes of autograd that accumulate gradients, which then do so on the stream on which they were made:
no other stream can be captured any more. A capture that fails leaves torch's allocator and random
number generator in the middle of it (torch 2.11): memory is not used again, replays of other graphs
raise, and what frees memory ends the process. So nothing is measured in a process in which a
capture failed: it is given up with FloorImpossible, and another one measures the workload without
the floor.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from traceback import extract_tb

from benchmarks.harness import measure
from benchmarks.harness.device import Memory
from benchmarks.harness.modes import CONFIGURATIONS, Bench
from benchmarks.harness.record import costs_itself, message
from benchmarks.harness.weigh import own_memory, steady
from benchmarks.paper import modes
from benchmarks.paper.modes import Iteration
from benchmarks.paper.record import Result

log = logging.getLogger(__name__)

WEIGHED = 4
ORDER = (
    "eager",
    "default",
    "floor",
    "pygraph-copies",
    "pygraph-untransformed",
    "pygraph-always",
    "pygraph-parallel",
    "pygraph",
    "reduce-overhead",
)


@dataclass(frozen=True)
class Options:
    effort: measure.Effort
    modes: Sequence[str]
    tiny: bool = False
    alone: measure.Alone = nullcontext
    tell: Callable[[str], None] = lambda _: None
    """Told what is being done."""
    clock: Callable[[], float] = time.perf_counter
    """Seconds, for what preparing takes."""
    floor_error: str | None = None
    """Why the floor cannot be captured, if that is known."""
    cold_s: Mapping[str, float] = field(default_factory=dict)
    """What compiling without caches took, if that is known."""
    elsewhere: Mapping[str, Callable[[], float | None]] = field(default_factory=dict)
    """Modes that another process compiles without caches meanwhile; waits for its seconds."""


class FloorImpossible(Exception):
    """An iteration cannot be captured as one graph, and this process is of no more use."""

    def __init__(self, why: str, cold_s: Mapping[str, float]) -> None:
        super().__init__(why)
        self.why, self.cold_s = why, dict(cold_s)


def compile_all(
    bench: Bench, results: dict[str, Result], options: Options, phases: measure.Phases
) -> None:
    """Those that are compiled are in bench.runners; why others are not is in their results. Raises
    FloorImpossible."""
    if options.floor_error is not None and "floor" in results:
        results["floor"].error = options.floor_error
    _compile_cold(bench, results, options, phases)
    for result in _ordered(results):
        options.tell(f"compile {result.mode}")
        if result.mode == "floor":
            _capture_floor(bench, results, phases)
            continue
        with costs_itself(result, bench):
            if result.mode == "reduce-overhead":
                _note_memory(result, bench)
            with phases.time(f"compile {result.mode}"):
                modes.begin(result.mode, bench).forget()


def capture_all(
    bench: Bench, results: dict[str, Result], options: Options, phases: measure.Phases
) -> None:
    """Those that go on to be ready stay in bench.runners."""
    for result in reversed(_ordered(results)):
        options.tell(f"capture {result.mode}")
        _finish(result, bench, phases)


def _ordered(results: Mapping[str, Result]) -> list[Result]:
    """As they are compiled. Torch's graphs are the last, and captured first: their first call takes
    memory that they keep."""
    return sorted(results.values(), key=lambda result: ORDER.index(result.mode))


def _compile_cold(
    bench: Bench, results: dict[str, Result], options: Options, phases: measure.Phases
) -> None:
    """A mode that cannot be compiled says so when its turn comes."""
    wanted = [mode for mode in CONFIGURATIONS if mode in results]
    for mode in sorted(wanted, key=lambda mode: mode in options.elsewhere):
        results[mode].cold_compile_s = options.cold_s.get(mode)
        if bench.device.is_cuda and mode not in options.cold_s:
            options.tell(f"compile {mode}, cold")
            with phases.time(f"compile {mode}, cold"), suppress(Exception):
                found = options.elsewhere.get(mode, partial(modes.compile_cold, mode, bench))
                results[mode].cold_compile_s = found()


def _capture_floor(bench: Bench, results: dict[str, Result], phases: measure.Phases) -> None:
    """What default runs, with nothing but default there yet; and what it takes of memory."""
    limit = results["floor"]
    if limit.error is not None:
        return
    if "default" not in bench.runners:
        limit.error = "no floor without the default mode, whose iteration it captures"
        return
    _note_memory(limit, bench)
    try:
        with phases.time("capture floor"):
            prepared = modes.begin("floor", bench)
    except Exception as error:
        log.warning("the floor", exc_info=True)
        limit.error = why_not_captured(error)
        if not bench.device.is_cuda:
            return
        cold_s = {mode: each.cold_compile_s for mode, each in results.items()}
        known = {mode: seconds for mode, seconds in cold_s.items() if seconds is not None}
        raise FloorImpossible(limit.error, known) from error
    limit.compile_s = prepared.compile_s
    with phases.time("weigh"):
        weigh(limit, prepared, bench, bench.memory["floor"])


def why_not_captured(error: BaseException) -> str:
    """The end of a failed capture only says that it failed: what came first says why, and where."""
    first = error
    while first.__context__ is not None:
        first = first.__context__
    frames = [
        f" ({Path(each.filename).name}:{each.lineno})" for each in extract_tb(first.__traceback__)
    ]
    return message(first) + "".join(frames[-1:])


def _note_memory(result: Result, bench: Bench) -> None:
    """What there was before this mode took any."""
    bench.device.tidy()
    bench.memory[result.mode] = bench.device.memory()


def _finish(result: Result, bench: Bench, phases: measure.Phases) -> None:
    if result.error is not None or result.mode == "floor":
        return
    with costs_itself(result, bench):
        with phases.time("weigh"):
            if result.mode not in bench.memory:
                _note_memory(result, bench)
        with phases.time(f"capture {result.mode}"):
            prepared = bench.runners[result.mode]
            modes.finish(prepared, bench)
        with phases.time("weigh"):
            weigh(result, prepared, bench, bench.memory[result.mode])
        result.compile_s, result.first_calls_s = prepared.compile_s, prepared.first_calls_s


def weigh(result: Result, prepared: Iteration, bench: Bench, before: Memory) -> None:
    """Peaks of some iterations in the steady state, and what stays held between them."""
    prepared.forget()
    busy = steady(prepared, bench, WEIGHED)
    prepared.forget()
    bench.device.tidy()
    idle = bench.device.memory()
    own = own_memory(bench)
    if None in (before.idle, busy.idle, idle.idle):
        result.extra["memory_note"] = "no figures: this torch does not tell what private pools hold"
        return
    unused = (busy.idle or 0.0) - (before.idle or 0.0)
    peak = busy.peak_allocated - before.allocated + max(0.0, unused)
    result.peak_mib = own + max(0.0, peak)
    reserved = max(peak, busy.peak_reserved - before.reserved)
    result.reserved_mib = own + max(0.0, reserved)
    held = idle.allocated + (idle.idle or 0.0) - before.allocated - (before.idle or 0.0)
    result.held_mib = max(0.0, held)
