"""From a proven program, whose nodes run in the order of the capture, to one in which those that do
not depend on each other run side by side (docs/design/lanes.md).

What comes of it depends on the device, so it is clocked: the program in the order of the capture
and those with different numbers of lanes take turns on the linked call, from an idle device and in
a row. Who chooses by that is not said here. What was chosen is proven like any program, and besides
with delays in front of some of its nodes; and a run in the order of the capture shows whether nodes
write what they are said to (observing.py). Where anything fails, the order of the capture stays.
"""

from __future__ import annotations

import dataclasses
import logging
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from pygraph import _engine
from pygraph.capturing import observing, proof
from pygraph.capturing.device import CaptureFailed, Device
from pygraph.capturing.lanes import LaneOptions, LaneTimes
from pygraph.capturing.proof import Verdict
from pygraph.capturing.reference import Reference
from pygraph.capturing.request import Request
from pygraph.capturing.running import Make, run

log = logging.getLogger(__name__)

#: Turns of each program: a sign test tells two of them apart then.
_ROUNDS = 12
#: What the runs of a turn shall take, from an idle device, and the same in a row; no more runs than
#: that, and one or two at least.
_TURN_US, _MOST = 5e3, 10
#: Launches of which a node's time is the least.
_LAUNCHES = 5
#: Lanes that would save less than this share of the time, if all went as predicted, are not tried.
_LEAST_PREDICTED = 0.01

#: What may go wrong; anything else is a fault of ours.
_EXPECTED = (CaptureFailed, _engine.DriverError, torch.OutOfMemoryError, MemoryError)

Prove = Callable[[_engine.TensorProgram, Request], Verdict]


@dataclasses.dataclass(frozen=True)
class Wide:
    """A proven program in lanes."""

    program: _engine.TensorProgram
    linked: _engine.Linked  #: what it was made of
    verdict: Verdict


@dataclasses.dataclass(frozen=True)
class SpreadResult:
    """What came of it."""

    clocked: Sequence[LaneTimes] = ()  #: the order of the capture first; none: nothing was clocked
    found: Wide | None = None  #: None: the order of the capture serves
    fault: str = ""  #: why, where another was chosen


NO_SPREAD = SpreadResult()


def spread(
    serial: _engine.TensorProgram,
    chain: _engine.Linked,
    request: Request,
    *,
    make: Make,
    prove: Prove,
) -> SpreadResult:
    """`serial` was made of a clone of `chain`, and proven by `prove`."""
    reference, lanes = request.reference, request.lanes
    timed = clocks(reference.device)
    clocked: list[LaneTimes] = []
    try:
        node_us = _node_times(chain, reference, make) if timed else []
        wide = _candidates(chain, lanes, node_us)
        chosen = len(wide)
        if wide and lanes.choose is not None and timed:
            programs = [serial, *(make(each.clone()) for each in wide)]
            clocked = _clock(programs, [1, *(each.lanes for each in wide)], reference)
            chosen = lanes.choose(clocked)
        if not chosen:
            return SpreadResult(clocked)
        fault = observing.fault(chain, reference, make)
        if fault is not None:
            return _stays(clocked, fault)
        found = _proven(wide[chosen - 1], request, make=make, prove=prove)
    except Exception as error:  # whatever it is, there is a proven graph
        expected = isinstance(error, _EXPECTED)
        log.debug("nodes do not run side by side", exc_info=None if expected else error)
        return _stays(clocked, str(error) if expected else repr(error))
    if not found.verdict.passed:
        return _stays(clocked, f"in {found.linked.lanes} lanes a proof failed: {found.verdict}")
    return SpreadResult(clocked, found)


def clocks(device: Device) -> bool:
    """Whether clocks say anything of it: not of the twin."""
    return not device.twin


def _stays(clocked: Sequence[LaneTimes], fault: str) -> SpreadResult:
    log.warning("nodes do not run side by side: %s", fault)
    return SpreadResult(clocked, fault=fault)


def _proven(linked: _engine.Linked, request: Request, *, make: Make, prove: Prove) -> Wide:
    """With what was found last; an order that is missing shows in delays."""
    device = request.device
    trials = [make(linked.delayed(seed)) for seed in device.delays]
    program = make(linked)
    with device.in_any_order(True):
        verdict = prove(program, request)
    while trials and verdict.passed:
        delayed = proof.prove(trials.pop(), request.reference)
        verdict = verdict if delayed.passed else delayed
    return Wide(program, linked, verdict)


def _node_times(chain: _engine.Linked, reference: Reference, make: Make) -> list[float]:
    """What each node takes in the order of the capture, in us; none where that is no chain."""
    stopwatch = _engine.Stopwatch(chain)
    program = make(stopwatch.take())
    launches = []
    try:
        for _ in range(_LAUNCHES):
            run(program, reference)
            reference.device.synchronize()
            launches.append(stopwatch.read())
    finally:
        reference.finish()
        del program  # before the stopwatch, whose events it records
    return [min(times) for times in zip(*launches, strict=True)]


def _candidates(
    chain: _engine.Linked, lanes: LaneOptions, node_us: Sequence[float]
) -> list[_engine.Linked]:
    """By numbers of lanes, those that differ, and may gain something where the fastest is
    wanted."""
    found: list[_engine.Linked] = []
    for number in lanes.numbers:
        each = chain.spread(number, node_us, memory=lanes.memory)
        if each is None or (found and each.lanes <= found[-1].lanes):
            break
        gains = each.predicted_us <= (1 - _LEAST_PREDICTED) * sum(node_us)
        if lanes.choose is None or not node_us or gains:
            found.append(each)
    return found


def _clock(
    programs: Sequence[_engine.TensorProgram], lanes: Sequence[int], reference: Reference
) -> list[LaneTimes]:
    latency: list[list[float]] = [[] for _ in programs]
    pipelined: list[list[float]] = [[] for _ in programs]
    try:
        run(programs[0], reference)
        runs = min(int(_TURN_US / _latency(programs[0], reference, 3)), _MOST)
        for turn in range(_ROUNDS):
            for place in range(len(programs)):
                index = (turn + place) % len(programs)
                run(programs[index], reference)  # finds caches as another has left them
                latency[index].append(_latency(programs[index], reference, max(runs, 1)))
                pipelined[index].append(_in_a_row(programs[index], reference, max(runs, 2)))
    finally:
        reference.finish()
    return [LaneTimes(*each) for each in zip(lanes, latency, pipelined, strict=True)]


def _latency(program: _engine.TensorProgram, reference: Reference, runs: int) -> float:
    found = []
    for _ in range(runs):
        reference.rewind()
        reference.device.synchronize()
        started = time.perf_counter()
        program.run(list(reference.arguments))
        reference.device.synchronize()
        found.append(1e6 * (time.perf_counter() - started))
    return statistics.median(found)


def _in_a_row(program: _engine.TensorProgram, reference: Reference, runs: int) -> float:
    """With what it takes to go back between two runs, which all programs take alike."""
    reference.device.synchronize()
    started = time.perf_counter()
    for _ in range(runs):
        run(program, reference)
    reference.device.synchronize()
    return 1e6 * (time.perf_counter() - started) / runs
