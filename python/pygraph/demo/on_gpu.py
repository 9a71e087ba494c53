"""A small model on the GPU in three ways: torch.compile's default, its reduce-overhead mode, and
PyGraph. Every call brings an input that was not there before. A way is timed only after it computed
what eager computes: nearly the same numbers, and nearer to those of its own input than to those of
any other, as a graph that replays old inputs would not.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pygraph.demo import small_models, what_next
from pygraph.frontends.compile.backend import backend
from pygraph.runtime import registry

CHECKED = 4
WARM_UP = 12
TIMED = 200
TOLERANCE = 1e-2
"""Of the relative error against eager: convolutions and matrix products round differently."""

OURS = "pygraph"
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    OURS: {"backend": backend},  # not its name: that needs an installed package
}


@dataclass
class Measured:
    """One way: what it computed, and the medians of its calls; no times where that is wrong."""

    way: str
    error: float
    """Relative, the largest of all checked calls."""
    problem: str | None = None
    host_us: float | None = None
    """Until the call returns."""
    latency_us: float | None = None
    """Until the GPU is idle."""


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    size = torch.linalg.vector_norm(expected.double())
    return float(torch.linalg.vector_norm(found.double() - expected.double()) / size)


def judge(found: list[torch.Tensor], expected: list[torch.Tensor]) -> tuple[float, str | None]:
    """The largest relative error against eager, and what is wrong if anything."""
    errors = [[relative_error(result, each) for each in expected] for result in found]
    own = [row[n] for n, row in enumerate(errors)]
    worst = max(own)
    if not worst <= TOLERANCE:
        return worst, f"relative error {worst:.1e} against eager, over {TOLERANCE:.0e}"
    if any(min(row) < mine for mine, row in zip(own, errors, strict=True)):
        return worst, "a result is that of another input"
    return worst, None


def run(
    model: Any, fresh_input: Callable[[], torch.Tensor], way: str, options: dict[str, Any]
) -> Measured:
    """Compiles, checks, and times. Raises what that raises."""
    torch.compiler.reset()
    compiled = torch.compile(model, **options)
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None

    def call(x: torch.Tensor) -> torch.Tensor:
        if way == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        result: torch.Tensor = compiled(x)
        return result

    for _ in range(WARM_UP):
        call(fresh_input())
    inputs = [fresh_input() for _ in range(CHECKED)]
    found = [call(x).clone() for x in inputs]
    error, problem = judge(found, [model(x) for x in inputs])
    shown = Measured(way, error, problem)
    if problem is not None:
        return shown
    host, latency = [], []
    for _ in range(TIMED):
        x = fresh_input()
        synchronize()
        started = time.perf_counter()
        call(x)
        returned = time.perf_counter()
        synchronize()
        host.append(1e6 * (returned - started))
        latency.append(1e6 * (time.perf_counter() - started))
    shown.host_us, shown.latency_us = statistics.median(host), statistics.median(latency)
    return shown


def as_table(name: str, found: list[Measured]) -> Table:
    table = Table(title=f"{name}, medians of {TIMED} calls", title_justify="left")
    table.add_column("mode")
    for column in ("latency, us", "host time, us", "PyGraph is faster by", "error against eager"):
        table.add_column(column, justify="right")
    ours = next((each.latency_us for each in found if each.way == OURS), None)
    for each in found:
        if each.latency_us is None or each.host_us is None:
            table.add_row(each.way, Text("failed", "bold red"), "-", "-", each.problem or "-")
            continue
        faster = "" if each.way == OURS or ours is None else f"{each.latency_us / ours:.2f}x"
        times = (f"{each.latency_us:,.1f}", f"{each.host_us:,.1f}")
        table.add_row(each.way, *times, faster, f"{each.error:.0e}")
    return table


def show_on_gpu(name: str, console: Console) -> int:
    """The whole demonstration; the exit code: 0 if all was right and PyGraph made a graph."""
    console.print(Text(f"{torch.cuda.get_device_name()}, torch {torch.__version__}"))
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    model, fresh_on_cpu = small_models.build(name)
    model = model.cuda()
    found = []
    with torch.no_grad():
        for way, options in WAYS.items():
            with console.status(f"{name}, {way}"):
                try:
                    shown = run(model, lambda: fresh_on_cpu().cuda(), way, options)
                except Exception as error:
                    reason = str(error).splitlines()[0] if str(error) else "-"
                    shown = Measured(way, float("nan"), f"{type(error).__name__}: {reason}")
            found.append(shown)
    console.print(as_table(name, found))
    report = registry.report()
    console.print(report)
    console.print(Text(what_next.WITH_GPU))
    graphed = bool(report.graphs) and all(graph.graphed for graph in report.graphs)
    return 0 if graphed and all(each.problem is None for each in found) else 1
