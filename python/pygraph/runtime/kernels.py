"""What ran on the GPU, and how it was launched, by torch's profiler.

The profiler slows the host, so only what happens on the GPU is taken from it: how long kernels,
copies and fills ran, and which of them a graph launched.

A kernel counts as launched by a graph unless the profiler shows the call that launched it alone:
every launch outside of graphs is a call of cudaLaunchKernel or its kin with the kernel's
correlation number, while all kernels of a graph have the number of one graph launch.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")


class Events(list[Mapping[str, Any]]):
    """Of torch's Chrome trace."""

    base_ns = 0
    """Nanoseconds of the system's clock from which their times count."""


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
    outside: tuple[tuple[str, float, float], ...] = ()
    """Kernels that no graph launched: name, how many, and their time. The longest first."""


@contextmanager
def recorded() -> Iterator[Events]:
    """Profiles the GPU meanwhile. The events are in the list afterwards."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    events = Events()
    _finish()
    seen = profiler(activities=[ProfilerActivity.CUDA])
    seen.start()
    try:
        yield events
    finally:
        _finish()
        seen.stop()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json")
            seen.export_chrome_trace(str(path))
            written = json.loads(path.read_text())
            events += written["traceEvents"]
            events.base_ns = written.get("baseTimeNanoseconds", 0)


def _finish() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


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
    outside = [each for each in kernels if each["args"].get("correlation") in alone]
    return Launched(
        kernel_us=sum(event["dur"] for event in active) / iterations,
        busy_us=_union(active) / iterations,
        kernels=len(kernels) / iterations,
        kernels_in_graphs=len(inside) / iterations,
        graph_launches=len({each["args"].get("correlation") for each in inside}) / iterations,
        slowest=tuple((name[:80], us / iterations) for name, _, us in _by_name(kernels)[:5]),
        outside=tuple(
            (name, count / iterations, us / iterations) for name, count, us in _by_name(outside)
        ),
    )


def _by_name(kernels: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, float]]:
    """Name, how many, and their time together; the longest first."""
    found: dict[str, tuple[int, float]] = {}
    for event in kernels:
        count, total = found.get(event["name"], (0, 0.0))
        found[event["name"]] = count + 1, total + event["dur"]
    listed = [(name, count, total) for name, (count, total) in found.items()]
    return sorted(listed, key=lambda each: -each[2])


def _union(events: Iterable[Mapping[str, Any]]) -> float:
    """Time in which at least one was running."""
    busy, end = 0.0, float("-inf")
    for start, duration in sorted((event["ts"], event["dur"]) for event in events):
        busy += max(0.0, start + duration - max(end, start))
        end = max(end, start + duration)
    return busy
