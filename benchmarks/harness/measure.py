"""The clocks.

One loop gives two figures per iteration: the *host time*, until the call returns, and the
*latency*, until the GPU is idle again. Each iteration begins with an idle GPU, so the host never
waits for room in a full queue, and host time is what Python and the driver really cost. A second
loop synchronises once at its end: the *pipelined* time per call, what a program sees that keeps the
GPU fed. `Phases` is the calendar beside the clocks: where a whole run's time goes.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.device import Device
from benchmarks.harness.modes import Runner, Tensors
from pygraph.capturing.collection import nothing_collected

ENOUGH = 50
"""Samples that a median should rest on."""
FEWEST_IN_A_ROW = 3
"""Calls of the pipelined loop per round; a mean over calls needs no more of them."""
LOOP_STEPS = 1_000_000


Alone = Callable[[], AbstractContextManager[Any]]
"""Entered for the clocks: nothing else shall use the machine meanwhile."""


class Phases(dict[str, float]):
    """Seconds, by what they were spent on."""

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - started)

    def add(self, name: str, seconds: float) -> None:
        self[name] = self.get(name, 0.0) + seconds

    @contextmanager
    def alone(self, alone: Alone) -> Iterator[None]:
        """For the clocks; the time of waiting for it is on its own."""
        with ExitStack() as turn:
            with self.time("wait"):
                turn.enter_context(alone())
            yield


@dataclass
class Samples:
    """Microseconds, over all rounds of one mode."""

    latency: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    pipelined: list[float] = field(default_factory=list)
    """One value per round."""
    calls: int = 0
    """Of any kind since the count began, for figures that are per call."""


@dataclass(frozen=True)
class Effort:
    """How long to measure one model, and in how many rounds."""

    seconds: float
    rounds: int = 5
    least: int = math.ceil(ENOUGH / 5)
    most: int = 200
    in_a_row: float = 0.5
    """The share of the time that the pipelined loop has; 0 or 1: there is one loop only."""
    settling: int = 2
    """Calls per mode and round in front of the clocks."""

    def count(self, all_us: float) -> int:
        """Iterations per mode and round; one of each mode takes `all_us`."""
        return self._count(all_us, 1 - self.in_a_row, self.least)

    def count_in_a_row(self, all_us: float) -> int:
        """The same for the pipelined loop."""
        return self._count(all_us, self.in_a_row, FEWEST_IN_A_ROW)

    def _count(self, all_us: float, share: float, least: int) -> int:
        affordable = share * self.seconds / self.rounds / (all_us * 1e-6)
        return max(least, min(self.most, int(affordable))) if share else 0


def percentile(values: Sequence[float], percent: float) -> float:
    """By linear interpolation between the closest ranks."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def geomean(values: Sequence[float]) -> float | None:
    """None where there is nothing to average."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else None


def loop_step_ns() -> float:
    """Nanoseconds that a step of a bare loop of Python's takes now. A virtual machine's host can
    change to half its speed within minutes, and all host times with it."""
    start = time.perf_counter_ns()
    for _ in range(LOOP_STEPS):
        pass
    return (time.perf_counter_ns() - start) / LOOP_STEPS


@contextmanager
def _no_collector() -> Iterator[None]:
    """Garbage is collected when `_sweep` is called, and at no other time."""
    gc.collect()
    with nothing_collected():
        yield


def _sweep() -> None:
    """Collect what came since the last time, whose cycles may hold memory of the GPU: walking the
    whole heap in each round would take longer than the measurements."""
    gc.collect(0)


def time_calls(
    runner: Runner,
    inputs: Sequence[Tensors],
    count: int,
    device: Device,
    samples: Samples,
    first: int = 0,
) -> None:
    """`first`: the place of the inputs that the first call is given."""
    step, before, synchronize = runner.step, runner.before, device.synchronize
    clock = time.perf_counter_ns
    for call in range(first, first + count):
        arguments = inputs[call % len(inputs)]
        if before is not None:
            before()
        synchronize()
        start = clock()
        step(*arguments)
        returned = clock()
        synchronize()
        done = clock()
        samples.host.append((returned - start) / 1000)
        samples.latency.append((done - start) / 1000)
    samples.calls += count


def time_pipeline(
    runner: Runner,
    inputs: Sequence[Tensors],
    count: int,
    device: Device,
    samples: Samples,
    first: int = 0,
) -> None:
    if not count:
        return
    step, before = runner.step, runner.before
    device.synchronize()
    start = time.perf_counter_ns()
    for call in range(first, first + count):
        if before is not None:
            before()
        step(*inputs[call % len(inputs)])
    device.synchronize()
    samples.pipelined.append((time.perf_counter_ns() - start) / 1000 / count)
    samples.calls += count


def measure(
    runners: Sequence[Runner], inputs: Sequence[Tensors], device: Device, effort: Effort
) -> dict[str, Samples]:
    """All modes, in rounds that begin with another mode each time, so that drift hits all alike.
    In a round all modes take the same inputs, and each round goes on behind those of the one
    before: sizes may take differently long. `inputs` are of those that have none of their own."""
    samples = {runner.mode: Samples() for runner in runners}
    with _no_collector():
        all_us = 0.0
        for runner in runners:
            trial = Samples()
            time_calls(runner, runner.inputs or inputs, 3, device, trial)
            all_us += statistics.median(trial.latency)
            samples[runner.mode].calls += trial.calls
        apart, in_a_row = (
            (effort.count(all_us), effort.count_in_a_row(all_us)) if runners else (0, 0)
        )
        for turn in range(effort.rounds):
            first = turn % len(runners) if runners else 0
            place = turn * max(apart, in_a_row)
            for runner in [*runners[first:], *runners[:first]]:
                own, settle = samples[runner.mode], Samples()
                given = runner.inputs or inputs
                _sweep()
                time_calls(runner, given, effort.settling, device, settle, place)
                time_calls(runner, given, apart, device, own, place)
                time_pipeline(runner, given, in_a_row, device, own, place)
                own.calls += settle.calls
    return samples
