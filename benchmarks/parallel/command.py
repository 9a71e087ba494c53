"""Nodes of a graph side by side, in lanes, beside one chain of them: models with branches, where
that shall pay, and models without, where it shall cost nothing.

    ./run bench-parallel --out FILE                                # on a GPU, about 8 minutes
    ./run bench-parallel --workloads towers-4,moe --modes serial,parallel,floor,streams
    ./run bench-parallel --timelines DIR                           # which kernel ran when, as SVG
    ./run bench-parallel --workloads towers-4 --device cpu --tiny  # to try it; means nothing

The exit status is 0 if everything ran and every mode was right; goals are in the record and shown
at the end, and do not count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.text import Text

from benchmarks.harness.device import Device
from benchmarks.harness.environment import command_line
from benchmarks.harness.record import by_mode
from benchmarks.harness.table import target_table
from benchmarks.parallel.goals import targets
from benchmarks.parallel.modes import MODES, available
from benchmarks.parallel.record import table
from benchmarks.parallel.suite import Plan, Suite, default_preparing
from benchmarks.parallel.workloads import find
from pygraph.demo.models import chosen
from pygraph.demo.output import terminal


def main(
    out: Annotated[Path, typer.Option(help="The record.")] = Path("build/parallel/parallel.json"),
    workloads: Annotated[str | None, typer.Option(help="With commas. Default: all.")] = None,
    modes: Annotated[str | None, typer.Option(help=f"Of {', '.join(MODES)}. Default: all.")] = None,
    seconds: Annotated[float, typer.Option(help="Of the clocks, per workload.")] = 4.0,
    budget: Annotated[float, typer.Option(min=1.0, help="Seconds for everything.")] = 480.0,
    side_by_side: Annotated[
        bool,
        typer.Option(
            help="Compile several workloads at once, half as many as there are CPUs. For its "
            "captures and clocks each is alone either way."
        ),
    ] = True,
    timelines: Annotated[
        Path | None,
        typer.Option(help="A folder for pictures of which kernel ran when, serial and parallel."),
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small models, for a moment.")] = False,
    device: Annotated[str, typer.Option(help="cpu: to try the command; means nothing.")] = "cuda",
) -> None:
    """Measure models with lanes and without; 0 if all ran right."""
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("no NVIDIA GPU that torch can use; without one: --device cpu")
    if timelines is not None and device != "cuda":
        raise typer.BadParameter("--timelines are the profiler's, which looks at a GPU")
    try:
        plan = Plan(
            tuple(each.name for each in find(workloads)),
            tiny,
            timelines,
            modes=tuple(chosen(modes, available(Device(device)), "mode")),
            device=device,
            budget_s=budget,
            seconds=seconds,
            preparing=default_preparing() if side_by_side else 1,
        )
    except KeyError as error:
        raise typer.BadParameter(str(error.args[0])) from error
    console = terminal()
    suite = Suite(plan, command_line(), console, out)
    suite.run()
    raise typer.Exit(show(suite, console))


def show(suite: Suite, console: Console) -> int:
    if suite.records:
        console.print(table(suite.records))
        console.print(target_table(targets(by_mode(suite.records)), with_requirement=True))
    problems = suite.problems()
    for problem in problems:
        console.print(Text(problem, style="red"), soft_wrap=True)
    return 1 if problems else 0
