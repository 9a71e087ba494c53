"""Whether PyGraph is ever slower than it has to be: programs in which graphs lose or hardly win.

    ./run bench-selection --out benchmarks/results/selection.json      # on a GPU, 9 minutes
    ./run bench-selection --only matmul,breaks_10 --modes default,pygraph-always,pygraph
    ./run bench-selection --compare earlier.json                       # what got slower or faster
    ./run bench-selection --report-only --out FILE > page.md           # from a record
    ./run bench-selection --only matmul --device cpu --tiny            # to try it; means nothing

The goals are told at the end: pygraph costs at most 1.02 times what the best choice does, in each
scenario but for the noise, and no more than default in the median. The exit status is 0 if
everything ran and every mode was right; goals do not count.
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
from benchmarks.harness.record import NotARecord, by_mode
from benchmarks.harness.worker import parsed
from benchmarks.selection.catalogue import SCENARIOS, THEME_OF, find
from benchmarks.selection.goals import targets
from benchmarks.selection.modes import MODES, available
from benchmarks.selection.record import Record, read_records
from benchmarks.selection.suite import Plan, Suite
from benchmarks.selection.table import goal_lines, goals_of, notes, page, tables
from pygraph.demo.models import chosen
from pygraph.demo.output import terminal

KEPT = Path("benchmarks/results/selection.json")


def main(
    only: Annotated[
        str | None, typer.Option(help="Scenarios, separated by commas. Default: all.")
    ] = None,
    modes: Annotated[str | None, typer.Option(help=f"Of {', '.join(MODES)}. Default: all.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help=f"The record, as {KEPT}. Default: none; with --report-only that."),
    ] = None,
    budget: Annotated[float, typer.Option(min=1.0, help="Seconds for everything.")] = 540.0,
    seconds: Annotated[float, typer.Option(help="For the clocks, per scenario.")] = 3.0,
    preparing: Annotated[
        int, typer.Option(min=1, help="Scenarios that compile at once; each is timed alone.")
    ] = 12,
    options: Annotated[
        str, typer.Option(help='PyGraph\'s, of all its modes, as JSON: {"max_programs": 8}.')
    ] = "{}",
    compare: Annotated[
        Path | None,
        typer.Option(help="An earlier record: what got slower or faster beside default."),
    ] = None,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Print the record in Markdown; measure nothing.")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="Show the scenarios and stop.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="Tiny programs, for tests.")] = False,
    device: Annotated[str, typer.Option(help="cpu: to try the command; means nothing.")] = "cuda",
) -> None:
    """Measure programs in which graphs lose or hardly win; 0 if all ran right."""
    console = terminal()
    if listed:
        for name, each in SCENARIOS.items():
            line = f"{name:22} {THEME_OF[name]:16} {each.behaviour:5} {each.about}"
            console.print(Text(line), soft_wrap=True)
        return
    if report_only:
        report(out or KEPT)
        return
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("no NVIDIA GPU that torch can use; without one: --device cpu")
    try:
        before = None if compare is None else earlier(compare)
        plan = Plan(
            tuple(each.name for each in find(only)),
            tiny,
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


def earlier(path: Path) -> list[Record]:
    return read_records(changes.read(path, "scenarios", "bench-selection"))


def report(path: Path) -> None:
    try:
        content = changes.read(path, "scenarios", "bench-selection")
    except NotARecord as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(page(content))
    for line in goals_of(content):
        typer.echo(f"\n{line}")


def show(suite: Suite, console: Console, before: Sequence[Record] | None = None) -> int:
    """`before`: an earlier record, to compare with."""
    if suite.records:
        for table in tables(suite.records):
            console.print(table)
        for line in notes(suite.records):
            console.print(Text(line, style="dim"), soft_wrap=True)
        for line in goal_lines(targets(by_mode(suite.records))):
            console.print(Text(line), soft_wrap=True)
        for line in (
            [] if before is None else changes.lines(before, suite.records, "scenarios", "cost_us")
        ):
            console.print(Text(line))
    problems = suite.problems()
    for problem in problems:
        console.print(Text(problem, style="red"), soft_wrap=True)
    if suite.out is not None:
        console.print(f"written: {suite.out.name}")
    return 1 if problems else 0
