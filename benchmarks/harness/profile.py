"""What ran on the GPU in an iteration, and how it was launched, by torch's profiler.

The profiler slows the host, so only what happens on the GPU is taken from it: how long kernels,
copies and fills ran, and which of them a graph launched. Idle time is taken against the latency
that the clocks found without a profiler.

A kernel counts as launched by a graph unless the profiler shows the call that launched it alone:
every launch outside of graphs is a call of cudaLaunchKernel or its kin with the kernel's
correlation number, while all kernels of a graph have the number of one graph launch.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.modes import Runner, Tensors

ITERATIONS = 4
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True)
class Launched:
    """Of one iteration, on average; times in microseconds."""

    kernel_us: float
    busy_us: float
    kernels: float
    kernels_in_graphs: float
    graph_launches: float
    slowest: tuple[tuple[str, float], ...] = ()
    """The kernels that took most time together, by name."""


def profile(runner: Runner, inputs: Sequence[Tensors]) -> Launched:
    """Takes some iterations under the profiler. Raises what torch raises."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    for n in range(2):
        _turn(runner, inputs[n % len(inputs)])
    torch.cuda.synchronize()
    with profiler(activities=[ProfilerActivity.CUDA]) as seen:
        for n in range(ITERATIONS):
            _turn(runner, inputs[n % len(inputs)])
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        seen.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return summarize(events, ITERATIONS)


def _turn(runner: Runner, inputs: Tensors) -> None:
    """As the clocks see it: what brings inputs in place is not part of it."""
    if runner.before is not None:
        runner.before()
    runner.step(*inputs)


def summarize(events: Iterable[Mapping[str, Any]], iterations: int) -> Launched:
    """From the events of a Chrome trace as torch writes it."""
    active, alone = [], set()
    for event in events:
        category, arguments = event.get("cat"), event.get("args", {})
        if category in ON_GPU:
            active.append(event)
        elif category in CALLS and "LaunchKernel" in event.get("name", ""):
            alone.add(arguments.get("correlation"))
    kernels = [event for event in active if event["cat"] == "kernel"]
    inside = [each for each in kernels if each["args"].get("correlation") not in alone]
    by_name: dict[str, float] = {}
    for event in kernels:
        by_name[event["name"]] = by_name.get(event["name"], 0.0) + event["dur"]
    slowest = sorted(by_name.items(), key=lambda item: -item[1])[:5]
    return Launched(
        kernel_us=sum(event["dur"] for event in active) / iterations,
        busy_us=_union(active) / iterations,
        kernels=len(kernels) / iterations,
        kernels_in_graphs=len(inside) / iterations,
        graph_launches=len({each["args"].get("correlation") for each in inside}) / iterations,
        slowest=tuple((name[:80], total / iterations) for name, total in slowest),
    )


def _union(events: Iterable[Mapping[str, Any]]) -> float:
    """Time in which at least one was running."""
    busy, end = 0.0, float("-inf")
    for start, duration in sorted((event["ts"], event["dur"]) for event in events):
        busy += max(0.0, start + duration - max(end, start))
        end = max(end, start + duration)
    return busy
