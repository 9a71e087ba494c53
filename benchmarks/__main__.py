"""The laboratory's commands: python -m benchmarks COMMAND, and those are demo, bench, training,
patterns, callables, selection, gpus, parallel, engine and regress.

`./run demo`, `./run bench`, `./run bench-training`, `./run bench-patterns`,
`./run bench-callables`, `./run bench-selection`, `./run bench-gpus`, `./run bench-parallel`,
`./run bench-engine-record` and `./run regress` set everything up and call them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.callables import command as callables
from benchmarks.engine import command as engine
from benchmarks.first_light import demo as first_light
from benchmarks.first_light import regress
from benchmarks.gpus import command as gpus
from benchmarks.harness import modes as ways
from benchmarks.paper import command as paper
from benchmarks.parallel import command as parallel
from benchmarks.patterns import command as patterns
from benchmarks.selection import command as selection
from benchmarks.training import command as training
from pygraph.demo import models as known
from pygraph.demo import small_models

app = typer.Typer(
    help="What PyGraph is measured with.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.command("training")(training.main)
app.command("patterns")(patterns.main)
app.command("callables")(callables.main)
app.command("selection")(selection.main)
app.command("gpus")(gpus.main)
app.command("parallel")(parallel.main)
app.command("engine")(engine.main)
app.command("regress")(regress.main)
app.command("bench")(paper.main)


@app.command()
def demo(
    models: Annotated[
        str | None,
        typer.Option(help="Models, separated by commas. Default: all on a GPU, two without one."),
    ] = None,
    modes: paper.Modes = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = first_light.OUT,
    name: Annotated[
        str, typer.Option(help="Name of the results' files, without an ending.")
    ] = first_light.NAME,
    budget: Annotated[
        float, typer.Option(min=1.0, help="Seconds for all timing loops; compiling comes on top.")
    ] = first_light.BUDGET_S,
    quick: Annotated[
        bool, typer.Option(help="Fewer rounds and samples, for a first look.")
    ] = False,
    cold_compile: Annotated[
        bool,
        typer.Option(help="Compile each mode without Inductor's caches, to compare the times."),
    ] = False,
    twin_model: Annotated[
        str,
        typer.Option(help="Without a GPU: resnet18, bert-mini, gpt2, lstm or unet, on the twin."),
    ] = "resnet18",
) -> None:
    """Measure models in all modes on the GPU; without one, run one on the twin and plan some.

    On a GPU the nine models take 5 to 10 minutes; the first speed-up shows after some seconds.
    Without one it takes half a minute. Shorter: --models mlp-8,alexnet --quick
    """
    try:
        request = first_light.Request(
            models=tuple(each.name for each in known.find(models)) if models else None,
            modes=tuple(ways.find(modes)),
            out=out,
            name=name,
            budget_s=budget,
            quick=quick,
            cold=cold_compile,
            twin_model=small_models.find(twin_model),
        )
    except KeyError as error:
        raise typer.BadParameter(str(error.args[0])) from error
    raise typer.Exit(first_light.demo(request))


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
