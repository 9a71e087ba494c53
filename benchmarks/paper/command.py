"""`pygraph bench`: measure, or show what a file has, or compare two files."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.harness.device import Device
from benchmarks.harness.environment import command_line
from benchmarks.harness.table import target_table
from benchmarks.paper import modes
from benchmarks.paper.record import Document
from benchmarks.paper.report.compare import read
from benchmarks.paper.report.html import write_report
from benchmarks.paper.suite import NO_LIMIT_S, Plan, Suite
from benchmarks.paper.workloads import catalogue, sources

OUT = Path("bench-out/paper25.json")


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line; KeyError or ValueError where that cannot be."""

    workloads: str | None = None
    modes: str | None = None
    out: Path = OUT
    report: Path | None = None
    """The report's path without an ending; None: beside the record."""
    torchbench: Path | None = None
    again: str | None = None
    device: str = "cuda"
    tiny: bool = False
    preparing: int = 3
    seconds: float = 8.0
    limit_s: float = 900.0
    budget_s: float = NO_LIMIT_S

    def plan(self) -> Plan:
        chosen = tuple(each.name for each in catalogue.find(self.workloads))
        wanted = tuple(modes.find(self.modes, Device(self.device))) if self.modes else ()
        same = {each.name: getattr(self, each.name) for each in fields(Plan)}
        return Plan(**same | {"workloads": chosen, "modes": wanted})


def bench(request: Request, console: Console) -> int:
    """0 if everything that was asked for ran, and every mode was right."""
    plan = request.plan()
    document = Document(request.out)
    if request.again:
        document.drop([each.name for each in catalogue.find(request.again)])
    _sources(request, plan, document, console)
    suite = Suite(plan, document, command_line(), console)
    suite.run()
    return show(suite, request, console)


def _sources(request: Request, plan: Plan, document: Document, console: Console) -> None:
    """TorchBench's checkout, if a workload that is to be measured is made from it: the one that was
    named, the one that there is, or a new one. Without one, those workloads say so."""
    needed = [
        name
        for name in plan.workloads
        if "torchbench" in catalogue.WORKLOADS[name].needs and not document.done(name)
    ]
    if request.torchbench is not None:
        os.environ["PYGRAPH_TORCHBENCH"] = str(request.torchbench.resolve())
    if not needed or sources.torchbench() is not None:
        return
    try:
        sources.obtain(console.print)
    except RuntimeError as error:
        text = f"no TorchBench, so {', '.join(needed)} cannot run: {error}"
        console.print(Text(text, style="red"))


def show(suite: Suite, request: Request, console: Console) -> int:
    """The targets, what went wrong, and the report's files."""
    if targets := suite.targets():
        console.print(target_table(targets))
    problems = suite.problems()
    for problem in problems:
        console.print(Text(problem, style="red"))
    if suite.document.rows:
        console.print(f"written: {', '.join(write_reports(request))}")
    return 1 if problems else 0


def write_reports(request: Request) -> list[str]:
    """From the record that there is; the names of the files."""
    if not request.out.exists():
        raise ValueError(f"{request.out.name}: no such record; run `pygraph bench` first")
    content = read(request.out)
    place = request.report or request.out.with_suffix("")
    files = [place.with_name(f"{place.name}{ending}") for ending in (".md", ".html")]
    write_report(content, *files)
    return [request.out.name, *(file.name for file in files)]


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
