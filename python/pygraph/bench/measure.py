"""The clocks.

One loop gives two figures per iteration: the *host time*, until the call returns, and the
*latency*, until the GPU is idle again. Each iteration begins with an idle GPU, so the host never
waits for room in a full queue, and host time is what Python and the driver really cost. A second
loop synchronises once at its end: the *pipelined* time per call, what a program sees that keeps the
GPU fed.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pygraph.bench.device import Device
from pygraph.bench.modes import Runner, Tensors

ENOUGH = 50
"""Samples that a median should rest on."""


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

    def count(self, modes: int, latency_us: float) -> int:
        """Iterations per mode and round; half of the time is for the pipelined loop."""
        share = self.seconds / (2 * modes * self.rounds)
        return max(self.least, min(self.most, int(share / (latency_us * 1e-6))))


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


@contextmanager
def _no_collector() -> Iterator[None]:
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def time_calls(
    runner: Runner, inputs: Sequence[Tensors], count: int, device: Device, samples: Samples
) -> None:
    step, before, synchronize = runner.step, runner.before, device.synchronize
    clock = time.perf_counter_ns
    for call in range(count):
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
    runner: Runner, inputs: Sequence[Tensors], count: int, device: Device, samples: Samples
) -> None:
    step, before = runner.step, runner.before
    device.synchronize()
    start = time.perf_counter_ns()
    for call in range(count):
        if before is not None:
            before()
        step(*inputs[call % len(inputs)])
    device.synchronize()
    samples.pipelined.append((time.perf_counter_ns() - start) / 1000 / count)
    samples.calls += count


def measure(
    runners: Sequence[Runner], inputs: Sequence[Tensors], device: Device, effort: Effort
) -> dict[str, Samples]:
    """All modes, in rounds that begin with another mode each time, so that drift hits all alike."""
    samples = {runner.mode: Samples() for runner in runners}
    counts: dict[str, int] = {}
    for runner in runners:
        trial = Samples()
        time_calls(runner, inputs, 3, device, trial)
        counts[runner.mode] = effort.count(len(runners), statistics.median(trial.latency))
        samples[runner.mode].calls += trial.calls
    for turn in range(effort.rounds):
        first = turn % len(runners) if runners else 0
        for runner in [*runners[first:], *runners[:first]]:
            own, settle = samples[runner.mode], Samples()
            with _no_collector():
                time_calls(runner, inputs, 2, device, settle)
                time_calls(runner, inputs, counts[runner.mode], device, own)
                time_pipeline(runner, inputs, counts[runner.mode], device, own)
            own.calls += settle.calls
    return samples
