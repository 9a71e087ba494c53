"""The laboratory's commands: python -m benchmarks demo | bench | training | engine | regress.

`./run demo`, `./run bench`, `./run bench-training`, `./run bench-engine-record` and `./run regress`
set everything up and call them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.engine import command as engine
from benchmarks.first_light import demo as first_light
from benchmarks.first_light import regress
from benchmarks.harness import modes as ways
from benchmarks.paper import command as paper
from benchmarks.paper.report.compare import run_compare
from benchmarks.paper.suite import NO_LIMIT_S
from benchmarks.training import command as training
from pygraph.demo import models as known
from pygraph.demo import small_models
from pygraph.demo.output import terminal

app = typer.Typer(
    help="What PyGraph is measured with.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.command("training")(training.main)
app.command("engine")(engine.main)
app.command("regress")(regress.main)

Modes = Annotated[str | None, typer.Option(help="Modes, separated by commas. Default: all.")]


@app.command()
def demo(
    models: Annotated[
        str | None,
        typer.Option(help="Models, separated by commas. Default: all on a GPU, two without one."),
    ] = None,
    modes: Modes = None,
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


@app.command()
def bench(
    workloads: Annotated[
        str | None,
        typer.Option(help="Names or groups (huggingface, torchbench, timm, training, inference)."),
    ] = None,
    modes: Modes = None,
    out: Annotated[Path, typer.Option(help="The record; is gone on with if it exists.")] = Path(
        "bench-out/paper25.json"
    ),
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
        int, typer.Option(min=1, help="Workloads that compile at once; each is timed alone.")
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
        paper.listing(console)
        return
    request = paper.Request(
        workloads=workloads,
        modes=modes,
        out=out,
        report=report,
        torchbench=torchbench,
        again=again,
        device=device,
        tiny=tiny,
        preparing=preparing,
        seconds=seconds,
        limit_s=limit,
        budget_s=NO_LIMIT_S if budget is None else budget,
    )
    try:
        if report_only:
            console.print(f"written: {', '.join(paper.write_reports(request))}")
            return
        _require(device)
        status = paper.bench(request, console)
    except (KeyError, ValueError, RuntimeError) as error:
        raise typer.BadParameter(str(error.args[0])) from error
    raise typer.Exit(status)


def _require(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            "bench needs an NVIDIA GPU that torch can use, and found none; to try the command "
            "without one: --device cpu --tiny"
        )


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
