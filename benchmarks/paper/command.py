"""`./run bench`: measure, or show what a file has, or compare two files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.harness.device import Device
from benchmarks.harness.environment import command_line
from benchmarks.harness.table import target_table
from benchmarks.paper import modes as ways
from benchmarks.paper.record import Document
from benchmarks.paper.report.compare import read, run_compare
from benchmarks.paper.report.html import write_report
from benchmarks.paper.suite import NO_LIMIT_S, Plan, Suite
from benchmarks.paper.workloads import catalogue, sources
from pygraph.demo.output import terminal

OUT = Path("bench-out/paper25.json")
Modes = Annotated[str | None, typer.Option(help="Modes, separated by commas. Default: all.")]


def main(
    workloads: Annotated[
        str | None,
        typer.Option(help="Names or groups (huggingface, torchbench, timm, training, inference)."),
    ] = None,
    modes: Modes = None,
    out: Annotated[Path, typer.Option(help="The record; is gone on with if it exists.")] = OUT,
    report: Annotated[
        Path | None, typer.Option(help="The report's path, no ending. Default: as the record.")
    ] = None,
    torchbench: Annotated[
        Path | None, typer.Option(help="A checkout of TorchBench. Default: one is obtained.")
    ] = None,
    again: Annotated[
        str | None, typer.Option(help="Workloads whose records are dropped first.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="For the clocks, per workload.")] = 8.0,
    limit: Annotated[float, typer.Option(help="Seconds after which a workload is ended.")] = 900.0,
    budget: Annotated[
        float | None, typer.Option(help="Seconds for everything. Default: no limit.")
    ] = None,
    preparing: Annotated[
        int,
        typer.Option(
            min=1, help="Workloads that compile at once; each is captured and timed alone."
        ),
    ] = 3,
    listed: Annotated[bool, typer.Option("--list", help="Show the workloads and stop.")] = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Write the report of a record and stop.")
    ] = False,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Two records: what got slower. Exit status 1 if anything did."),
    ] = None,
    metric: Annotated[
        str, typer.Option(help="For --compare: latency_us, host_us or pipelined_us.")
    ] = "latency_us",
    noise: Annotated[
        float, typer.Option(min=0.0, help="For --compare: changes up to this share are noise.")
    ] = 0.03,
    device: Annotated[str, typer.Option(help="cpu: to try the command; means nothing.")] = "cuda",
    tiny: Annotated[bool, typer.Option("--tiny", help="Tiny versions, for tests.")] = False,
) -> None:
    """The paper's benchmark: 25 workloads in all modes, with a report; goes on where it stopped."""
    console = terminal()
    if compare is not None:
        raise typer.Exit(run_compare(*compare, metric, noise, console))
    if listed:
        listing(console)
        return
    report = report or out.with_suffix("")
    try:
        if report_only:
            console.print(f"written: {', '.join(write_reports(out, report))}")
            return
        _require(device)
        plan = Plan(
            workloads=tuple(each.name for each in catalogue.find(workloads)),
            modes=tuple(ways.find(modes, Device(device))) if modes else (),
            device=device,
            tiny=tiny,
            preparing=preparing,
            seconds=seconds,
            limit_s=limit,
            budget_s=NO_LIMIT_S if budget is None else budget,
        )
        document = Document(out)
        if again:
            document.drop([each.name for each in catalogue.find(again)])
        if torchbench is not None:
            os.environ["PYGRAPH_TORCHBENCH"] = str(torchbench.resolve())
        status = bench(plan, document, report, console)
    except (KeyError, ValueError, RuntimeError) as error:
        raise typer.BadParameter(str(error.args[0])) from error
    raise typer.Exit(status)


def _require(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            "bench needs an NVIDIA GPU that torch can use, and found none; to try the command "
            "without one: --device cpu --tiny"
        )


def bench(plan: Plan, document: Document, report: Path, console: Console) -> int:
    """0 if everything that was asked for ran, and every mode was right."""
    _sources(plan, document, console)
    suite = Suite(plan, document, command_line(), console)
    suite.run()
    return show(suite, report, console)


def _sources(plan: Plan, document: Document, console: Console) -> None:
    """TorchBench's checkout, if a workload that is to be measured is made from it: the one that was
    named, the one that there is, or a new one. Without one, those workloads say so."""
    needed = [
        name
        for name in plan.workloads
        if "torchbench" in catalogue.WORKLOADS[name].needs and not document.done(name)
    ]
    if not needed or sources.torchbench() is not None:
        return
    try:
        sources.obtain(console.print)
    except RuntimeError as error:
        text = f"no TorchBench, so {', '.join(needed)} cannot run: {error}"
        console.print(Text(text, style="red"))


def show(suite: Suite, report: Path, console: Console) -> int:
    """The targets, what went wrong, and the report's files."""
    if targets := suite.targets():
        console.print(target_table(targets))
    problems = suite.problems()
    for problem in problems:
        console.print(Text(problem, style="red"))
    if suite.document.rows:
        console.print(f"written: {', '.join(write_reports(suite.document.path, report))}")
    return 1 if problems else 0


def write_reports(out: Path, report: Path) -> list[str]:
    """From the record that there is; the names of the files."""
    if not out.exists():
        raise ValueError(f"{out.name}: no such record; run `./run bench` first")
    content = read(out)
    files = [report.with_name(f"{report.name}{ending}") for ending in (".md", ".html")]
    write_report(content, *files)
    return [out.name, *(file.name for file in files)]


def listing(console: Console) -> None:
    """The workloads, and what each lacks on this machine."""
    table = Table(title="the paper's workloads", title_justify="left")
    for name in ("name", "model", "suite", "mode", "batch", "made from", "missing here"):
        table.add_column(name, justify="right" if name == "batch" else "left")
    reasons: dict[str, None] = {}
    for each in catalogue.WORKLOADS.values():
        mode = "training" if each.training else "inference"
        words = (each.name, each.model, each.suite, mode, str(each.batch), each.source)
        lacks = sources.missing(each.needs) or ""
        reasons.update({lacks: None} if lacks else {})
        table.add_row(*(Text(word) for word in words), Text(lacks.split(":")[0], style="red"))
    console.print(table)
    for reason in reasons:
        console.print(Text(reason), soft_wrap=True)
    if commands := sources.how_to_install():
        console.print("To install what is missing (in a checkout `./run bench` does):")
        for line in commands:
            console.print(Text(f"    {line}"), soft_wrap=True)
