"""When the host launched and when the GPU ran, in one call of the steady state, by torch's
profiler. It slows the host, each mode's by what it launches: a picture, and no measurement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.harness.modes import Runner, Tensors
from pygraph.runtime.kernels import CALLS, ON_GPU, recorded

CALLED = 3
"""The profiler is new to the first calls; the last one counts."""

Span = tuple[float, float]
"""Start and duration in microseconds, since the call began."""


@dataclass
class Timeline:
    host_us: float
    """Until the host began to wait for the GPU."""
    total_us: float
    """Until the GPU was idle."""
    launches: list[Span] = field(default_factory=list)
    """Calls of CUDA's, on the host."""
    kernels: list[Span] = field(default_factory=list)
    """What ran on the GPU, copies and fills included."""


def observed(runner: Runner, inputs: Sequence[Tensors]) -> Timeline:
    with recorded() as events:
        for n in range(CALLED):
            if runner.before is not None:
                runner.before()
            torch.cuda.synchronize()
            runner.step(*inputs[n % len(inputs)])
        torch.cuda.synchronize()
    return last_call(events)


def last_call(events: Iterable[Mapping[str, Any]]) -> Timeline:
    """The call that the last kernel belongs to, between the waits before it and behind it."""
    known = [each for each in events if each.get("cat") in (*CALLS, *ON_GPU) and "dur" in each]
    known.sort(key=lambda each: each["ts"])
    kernels = [each for each in known if each["cat"] in ON_GPU]
    calls = [each for each in known if each["cat"] in CALLS]
    waits = [each for each in calls if "DeviceSynchronize" in each.get("name", "")]
    before = [each for each in waits if kernels and _end(each) <= kernels[-1]["ts"]]
    if not before or before[-1] is waits[-1]:
        raise RuntimeError("the profiler saw no call between two waits")
    start, stop = _end(before[-1]), waits[len(before)]["ts"]
    ran = [each for each in kernels if each["ts"] >= start]
    launches = [each for each in calls if start <= each["ts"] < stop]
    total = max(stop, *map(_end, ran)) - start
    return Timeline(stop - start, total, _spans(launches, start), _spans(ran, start))


def _end(event: Mapping[str, Any]) -> float:
    return float(event["ts"] + event["dur"])


def _spans(events: Iterable[Mapping[str, Any]], start: float) -> list[Span]:
    return [(round(each["ts"] - start, 2), round(each["dur"], 2)) for each in events]
