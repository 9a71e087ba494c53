"""Training steps in eager, torch.compile's modes, pygraph and the floor, on seven programs.

    ./run bench-training --precompile                 # on a GPU, some minutes
    ./run bench-training --models dcgan,BERT-base --parts time --out FILE
    ./run bench-training --tiny --device cpu --out FILE   # to try it; means nothing

What is measured is told in suite.py, what the JSON holds in record.py. A file that exists is gone
on with: what it has is not measured again, what failed is tried again, after all that was never
tried; --again has models judged and timed anew whatever the file says of them. The exit status is 0
if everything ran and every mode was right; whether the targets are met is in the file and shown at
the end, and counts with --strict.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from benchmarks.harness.environment import command_line
from benchmarks.harness.table import target_table
from benchmarks.training.models import MODELS, find
from benchmarks.training.record import Document
from benchmarks.training.suite import Plan, Suite
from benchmarks.training.table import detail_table, latency_table
from pygraph.demo.models import chosen
from pygraph.demo.output import terminal

OUT = Path("bench-out/training.json")
MEASURED = ("time", "memory")


def chosen_parts(parts: str | None, device: str, precompile: bool) -> tuple[str, ...]:
    """The parts of a list with commas. Without a GPU there is no memory to be weighed."""
    wanted = chosen(parts, MEASURED, "part")
    if parts is None and device != "cuda":
        wanted.remove("memory")
    return ("precompile", *wanted) if precompile else tuple(wanted)


def chosen_again(again: str | None, models: tuple[str, ...]) -> tuple[str, ...]:
    """The models of a list with commas; each has to be among those that are to be measured."""
    return tuple(chosen(again, models, "model to be measured again")) if again else ()


def show(suite: Suite) -> None:
    document, console = suite.document, suite.console
    if document.results:
        console.print(latency_table(document.results, document.weights))
        console.print(detail_table(document.results))
    targets = suite.targets()
    if targets:
        console.print(target_table(targets))
        met = sum(target.met is True for target in targets)
        console.print(f"targets met: {met} of {len(targets)}")
    for problem in suite.problems():
        console.print(Text(problem, style="red"))


def main(
    out: Annotated[Path, typer.Option(help="The record; is gone on with if it exists.")] = OUT,
    models: Annotated[
        str | None, typer.Option(help=f"Of {', '.join(MODELS)}. Default: all.")
    ] = None,
    parts: Annotated[str | None, typer.Option(help="Of time, memory. Default: both.")] = None,
    budget: Annotated[float, typer.Option(min=1.0, help="Seconds for everything.")] = 520.0,
    seconds: Annotated[float, typer.Option(help="For the clocks, per model.")] = 8.0,
    precompile: Annotated[
        bool, typer.Option("--precompile", help="First fill Inductor's caches, all models at once.")
    ] = False,
    preparing: Annotated[
        int, typer.Option(min=1, help="Models that compile at once; each is timed alone.")
    ] = 4,
    weighing: Annotated[
        int, typer.Option(min=1, help="Processes weighed at once; 1: by the driver too.")
    ] = 7,
    again: Annotated[
        str | None,
        typer.Option(help="Models whose records (of the parts asked for) are dropped first."),
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Tiny versions, for tests.")] = False,
    device: Annotated[str, typer.Option(help="cpu: to try the command; means nothing.")] = "cuda",
    strict: Annotated[
        bool, typer.Option("--strict", help="A missed target counts as a failure.")
    ] = False,
) -> None:
    """Measure training; 0 if all ran right."""
    try:
        names = tuple(each.name for each in find(models, tiny))
        wanted = chosen_parts(parts, device, precompile)
        anew = chosen_again(again, names)
    except KeyError as error:
        raise typer.BadParameter(str(error.args[0])) from error
    plan = Plan(
        models=names,
        parts=wanted,
        device=device,
        tiny=tiny,
        budget_s=budget,
        seconds=seconds,
        preparing=preparing,
        weighing=weighing,
        again=anew,
    )
    suite = Suite(plan, Document(out, command_line()), terminal())
    try:
        suite.run()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    show(suite)
    total = sum(suite.document.seconds.values())
    suite.console.print(Text(f"{total:.0f} s; written: {out.name}", style="dim"))
    missed = strict and any(target.met is not True for target in suite.targets())
    raise typer.Exit(1 if suite.problems() or missed else 0)
