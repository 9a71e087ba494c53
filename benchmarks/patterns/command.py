"""Patterns that stand in the way of CUDA graphs, each beside a clean version of itself.

    ./run bench-patterns --out benchmarks/results/patterns.json    # on a GPU, some minutes
    ./run bench-patterns --only float_scale,item_end
    ./run bench-patterns --compare earlier.json                    # what got slower or faster
    ./run bench-patterns --only float_scale --device cpu           # to try it; means nothing

The exit status is 0 if everything ran and every mode was right. Goals do not count, nor a mode that
is not run since it would end the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.text import Text

from benchmarks.harness import changes
from benchmarks.harness.device import Device
from benchmarks.harness.environment import command_line
from benchmarks.harness.worker import parsed
from benchmarks.patterns.catalogue import PATTERNS, THEME_OF, find
from benchmarks.patterns.modes import MODES, available
from benchmarks.patterns.record import Record, read_records
from benchmarks.patterns.suite import Plan, Suite
from benchmarks.patterns.table import not_run, reasons, summary_lines, tables
from pygraph.demo.models import chosen
from pygraph.demo.output import terminal


def main(
    only: Annotated[
        str | None, typer.Option(help="Patterns, separated by commas. Default: all.")
    ] = None,
    modes: Annotated[str | None, typer.Option(help=f"Of {', '.join(MODES)}. Default: all.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The record, as benchmarks/results/patterns.json. Default: none."),
    ] = None,
    budget: Annotated[float, typer.Option(min=1.0, help="Seconds for everything.")] = 480.0,
    seconds: Annotated[float, typer.Option(help="For the clocks, per pattern.")] = 1.5,
    preparing: Annotated[
        int, typer.Option(min=1, help="Patterns that compile at once; each is timed alone.")
    ] = 12,
    options: Annotated[
        str, typer.Option(help='PyGraph\'s, as JSON: {"arguments": "copied"}.')
    ] = "{}",
    compare: Annotated[
        Path | None,
        typer.Option(help="An earlier record: what got slower or faster beside default."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show the patterns and stop.")] = False,
    device: Annotated[str, typer.Option(help="cpu: to try the command; means nothing.")] = "cuda",
) -> None:
    """Measure patterns that stand in the way of CUDA graphs; 0 if all ran right."""
    console = terminal()
    if listed:
        for name, pattern in PATTERNS.items():
            console.print(Text(f"{name:20} {THEME_OF[name]:22} {pattern.about}"), soft_wrap=True)
        return
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("no NVIDIA GPU that torch can use; without one: --device cpu")
    try:
        before = None
        if compare is not None:
            before = read_records(changes.read(compare, "patterns", "bench-patterns"))
        plan = Plan(
            patterns=tuple(each.name for each in find(only)),
            modes=tuple(chosen(modes, available(Device(device)), "mode")),
            device=device,
            budget_s=budget,
            seconds=seconds,
            preparing=preparing,
            options=parsed(options),
        )
    except (KeyError, ValueError) as error:
        raise typer.BadParameter(str(error.args[0])) from error
    suite = Suite(plan, command_line(), console, out)
    suite.run()
    raise typer.Exit(show(suite, console, before))


def show(suite: Suite, console: Console, before: Sequence[Record] | None = None) -> int:
    """`before`: an earlier record, to compare with."""
    if suite.records:
        for table in tables(suite.records):
            console.print(table)
        for line in summary_lines(suite.document()["summary"]):
            console.print(Text(line))
        for line in [*not_run(suite.records), *reasons(suite.records)]:
            console.print(Text(line, style="dim"), soft_wrap=True)
        for line in [] if before is None else changes.lines(before, suite.records, "patterns"):
            console.print(Text(line))
    problems = suite.problems()
    for problem in problems:
        console.print(Text(problem, style="red"), soft_wrap=True)
    if suite.out is not None:
        console.print(f"written: {suite.out.name}")
    return 1 if problems else 0
