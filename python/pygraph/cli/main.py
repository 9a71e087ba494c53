"""Commands: demo, bench, plan, info.

torch takes seconds to import, so the modules that need it are imported inside the commands, and
`pygraph --help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples:

pygraph info

pygraph demo

pygraph plan torchvision.models:resnet18 --input 1x3x224x224

pygraph bench --workloads EOS,timm
"""

PLAN_EXAMPLES = """The factory takes no arguments and returns a model, (model, args) or \
(model, args, kwargs). A model alone is called with what --input names. Examples:

pygraph plan torchvision.models:resnet18 --input 1x3x224x224

pygraph plan my_model:make --input 4x128:int64 --input 4x128:float16 --training

pygraph plan mlp-8
"""

app = typer.Typer(
    help="CUDA graphs for PyTorch: automatic, copy-free, proven before use.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

Models = Annotated[
    str | None,
    typer.Option(help="Models, separated by commas. Default: all on a GPU, two without one."),
]
Modes = Annotated[str | None, typer.Option(help="Modes, separated by commas. Default: all.")]
Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Name = Annotated[str, typer.Option(help="Name of the results' files, without an ending.")]
Budget = Annotated[
    float, typer.Option(min=1.0, help="Seconds for all timing loops; compiling comes on top.")
]
Quick = Annotated[bool, typer.Option(help="Fewer rounds and samples, for a first look.")]
Cold = Annotated[
    bool, typer.Option(help="Compile each mode without Inductor's caches, to compare the times.")
]
TwinModel = Annotated[
    str, typer.Option(help="Without a GPU: resnet18, bert-mini, gpt2, lstm or unet, on the twin.")
]


def _version(asked: bool) -> None:
    if asked:
        from pygraph import __version__

        typer.echo(f"pygraph {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options of pygraph itself."""


@app.command()
def demo(
    models: Models = None,
    modes: Modes = None,
    out: Out = Path("demo-out"),
    name: Name = "first-light",
    budget: Budget = 60.0,
    quick: Quick = False,
    cold_compile: Cold = False,
    twin_model: TwinModel = "resnet18",
) -> None:
    """Measure models in all modes on the GPU; without one, run one on the twin and plan some.

    On a GPU the nine models take 5 to 10 minutes; the first speed-up shows after some seconds.
    Without one it takes half a minute. Shorter: --models mlp-8,alexnet --quick
    """
    from benchmarks.first_light import models as known
    from benchmarks.first_light.demo import Request
    from benchmarks.first_light.demo import demo as run
    from benchmarks.harness import modes as ways
    from pygraph.demo import small_models

    try:
        request = Request(
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
    raise typer.Exit(run(request))


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
    from benchmarks.first_light.demo import terminal
    from benchmarks.paper import command
    from benchmarks.paper.suite import NO_LIMIT_S

    console = terminal()
    if compare is not None:
        from benchmarks.paper.report.compare import run_compare

        raise typer.Exit(run_compare(*compare, metric, noise, console))
    if listed:
        command.listing(console)
        return
    request = command.Request(
        workloads,
        modes,
        out,
        report,
        torchbench,
        again,
        device,
        tiny,
        preparing,
        seconds,
        limit,
        NO_LIMIT_S if budget is None else budget,
    )
    try:
        if report_only:
            console.print(f"written: {', '.join(command.write_reports(request))}")
            return
        _require(device)
        status = command.bench(request, console)
    except (KeyError, ValueError, RuntimeError) as error:
        raise typer.BadParameter(str(error.args[0])) from error
    raise typer.Exit(status)


def _require(device: str) -> None:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            "bench needs an NVIDIA GPU that torch can use, and found none; to try the command "
            "without one: --device cpu --tiny"
        )


@app.command(epilog=PLAN_EXAMPLES)
def plan(
    program: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="module:factory, imported from here or from what is installed, or the name of one "
            "of the demo's models.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The same as MODEL, as an option.")] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="SIZExSIZE...:DTYPE, a tensor that the model is called with; once for each. "
            "Default of DTYPE: float32.",
        ),
    ] = None,
    training: Annotated[bool, typer.Option("--training", help="Plan a backward as well.")] = False,
    json: Annotated[bool, typer.Option(help="Print JSON.")] = False,
) -> None:
    """Say what would be captured of a model, without a GPU and without running it."""
    if (program is None) == (model is None):
        raise typer.BadParameter("needed is one MODEL: module:factory, or a name; see --help")
    from benchmarks.first_light.demo import terminal
    from benchmarks.first_light.models import Unavailable
    from pygraph.cli.program import make_plan

    named = program or model or ""
    try:
        found = make_plan(named, inputs or [], training)
    except (KeyError, ValueError) as error:
        raise typer.BadParameter(str(error.args[0])) from error
    except Unavailable as reason:
        typer.echo(f"{named} cannot be planned here: {reason}", err=True)
        raise typer.Exit(1) from reason
    if json:
        from json import dumps

        typer.echo(dumps(found.to_dict(), indent=1))
    else:
        terminal().print(found)
    raise typer.Exit(1 if found.error else 0)


@app.command()
def info() -> None:
    """Say what PyGraph found on this machine: torch, driver, engine, and the hook it uses."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from pygraph.runtime.registry import info as find_out

    table = Table(show_header=False)
    for key, value in find_out().items():
        table.add_row(Text(str(key)), Text(str(value)))
    Console().print(table)


def main() -> None:
    app(prog_name="pygraph")
