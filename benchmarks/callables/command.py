"""Whole functions captured by pygraph.capture, beside eager, torch.compile and torch's own graphs.

    ./run bench-callables                                     # on a GPU, about 6 minutes
    ./run bench-callables --rows sac,host --modes eager,floor,pygraph --out FILE
    ./run bench-callables --report-only > page.md             # from the record, with its picture
    ./run bench-callables --device cpu --tiny --out FILE      # to try it; means nothing

What is measured is told in run.py, what the JSON holds in record.py. A file that exists keeps the
rows that are not measured again. The exit status is 0 if everything ran and every mode was right;
goals are in the file and shown at the end, and do not count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.text import Text

from benchmarks.callables import chart
from benchmarks.callables.catalogue import ROWS, find
from benchmarks.callables.modes import MODES, ON_CPU
from benchmarks.callables.record import Document
from benchmarks.callables.suite import Plan, Suite
from benchmarks.callables.table import bits, not_graphed, page, skipped, tables
from benchmarks.harness.environment import command_line
from benchmarks.harness.record import NotARecord, read_json
from benchmarks.harness.table import target_table
from pygraph.demo.models import chosen
from pygraph.demo.output import terminal

OUT = Path("benchmarks/results/callables.json")
TRIED = Path("bench-out/callables.json")
"""Of runs that mean nothing."""


def main(
    rows: Annotated[str | None, typer.Option(help=f"Of {', '.join(ROWS)}. Default: all.")] = None,
    modes: Annotated[
        str | None,
        typer.Option(help=f"Of {', '.join(MODES)}; eager always. Default: all on a GPU."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help=f"The record. Default: {OUT}, tiny or on a CPU {TRIED}.")
    ] = None,
    budget: Annotated[float, typer.Option(min=1.0, help="Seconds for everything.")] = 360.0,
    seconds: Annotated[float, typer.Option(help="For the clocks, per row.")] = 7.0,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Print the record in Markdown; measure nothing.")
    ] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="Tiny programs, for tests.")] = False,
    device: Annotated[str, typer.Option(help="cpu: to try the command; means nothing.")] = "cuda",
) -> None:
    """Measure captured functions; 0 if all ran right."""
    path = out or (OUT if device == "cuda" and not tiny else TRIED)
    if report_only:
        report(path)
        return
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("no NVIDIA GPU that torch can use; without one: --device cpu")
    try:
        names = tuple(each.name for each in find(rows, tiny))
        wanted = ",".join(ON_CPU) if modes is None and device != "cuda" else modes
        plan = Plan(names, tuple(chosen(wanted, MODES, "mode")), device, tiny, budget, seconds)
    except KeyError as error:
        raise typer.BadParameter(str(error.args[0])) from error
    suite = Suite(plan, Document(path, command_line(), names), terminal())
    suite.run()
    show(suite)
    raise typer.Exit(1 if suite.problems() else 0)


def report(path: Path) -> None:
    try:
        content = read_json(path, "needed: a record of ./run bench-callables")
    except NotARecord as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(page(content), nl=False)
    chart.draw(content, path.with_suffix(".svg"))


def show(suite: Suite) -> None:
    document, console = suite.document, suite.console
    for table in tables(document.records):
        console.print(table)
    console.print(target_table(suite.targets()))
    console.print(bits(document.records))
    for line in not_graphed(document.records):
        console.print(Text(f"without a graph: {line}", style="yellow"), soft_wrap=True)
    for line in skipped(document.records):
        console.print(Text(f"skipped: {line}", style="dim"), soft_wrap=True)
    for problem in suite.problems():
        console.print(Text(problem, style="red"), soft_wrap=True)
    if chart.draw(document.content(), document.path.with_suffix(".svg")):
        console.print(f"picture: {document.path.with_suffix('.svg').name}")
    total = sum(document.seconds.values())
    console.print(Text(f"{total:.0f} s; written: {document.path.name}", style="dim"))
