"""Commands: demo, plan, explain, trace, info.

torch takes seconds to import, so the modules that need it are imported inside the commands, and
`pygraph --help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

EXAMPLES = """Examples:

pygraph info

pygraph demo

pygraph plan torchvision.models:resnet18 --input 1x3x224x224

pygraph explain train.py --epochs 1
"""

EXPLAIN_EXAMPLES = """Options of pygraph come first; what follows the script or module is its \
own. Examples:

pygraph explain train.py --epochs 1

pygraph explain --html page.html -m my_package.train --epochs 1
"""

TRACE_EXAMPLES = """Options of pygraph come first, as those of explain. Open the file in \
https://ui.perfetto.dev or chrome://tracing. Examples:

pygraph trace train.py --epochs 1

pygraph trace --out step.json --call 100 -m my_package.train
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
    model: Annotated[
        str,
        typer.Option(
            "--model", "--twin-model", help="resnet18, bert-mini, gpt2, lstm or unet: what is run."
        ),
    ] = "resnet18",
    models: Annotated[
        str | None,
        typer.Option(help="Without a GPU: models to plan, separated by commas. Default: two."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Without a GPU: folder for what was found.")] = Path(
        "demo-out"
    ),
) -> None:
    """Run a small model on the GPU in three ways; without one, run it on the twin and plan some.

    Half a minute without a GPU, a minute or two with one.
    """
    import torch

    from pygraph.demo import models as known
    from pygraph.demo import small_models, without_gpu
    from pygraph.demo.output import terminal

    try:
        chosen = small_models.find(model)
        planned = known.find(models or ",".join(without_gpu.PLANNED))
    except KeyError as error:
        raise typer.BadParameter(str(error.args[0])) from error
    if torch.cuda.is_available():
        from pygraph.demo.on_gpu import show_on_gpu

        raise typer.Exit(show_on_gpu(chosen, terminal()))
    raise typer.Exit(without_gpu.show_without_gpu(planned, out, terminal(), chosen))


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
    from pygraph.cli.program import make_plan
    from pygraph.demo.models import Unavailable
    from pygraph.demo.output import terminal

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


class _BeforeProgram(TyperCommand):
    """Takes no option behind the program: these are the program's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        flags = [each for each in self.params if getattr(each, "is_flag", False)]
        alone = {name for flag in flags for name in flag.opts} | {"--help"}
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] != "--":
            name = args[place]
            place += 1 if name in alone or "=" in name else 2
            if name == "-m":
                args = [*args[:place], "--", *args[place:]]
                break
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


@app.command(
    cls=_BeforeProgram,
    epilog=EXPLAIN_EXAMPLES,
    context_settings={"allow_interspersed_args": False},
)
def explain(
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT ARGUMENTS...", help="A script, and its arguments."),
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", help="A module in place of a script, as python -m runs it.")
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Count kernels, with torch's profiler over the run.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page of HTML to this file.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write a file as well: .json, .html or .txt.")
    ] = None,
) -> None:
    """Run a program, and say how much of it ran inside of graphs, what did not, and why.

    What is printed comes behind the program's own output. The exit status is the program's.
    """
    given = program or []
    if module is None and not given:
        raise typer.BadParameter("needed is a script, or -m and a module")
    if html is not None and html.suffix != ".html":
        raise typer.BadParameter(f"--html {html}: needed is a name that ends in .html")
    if out is not None and out.suffix not in (".json", ".html", ".txt"):
        raise typer.BadParameter(f"--out {out}: needed is a name that ends in .json, .html or .txt")
    from pygraph.cli.script import explained
    from pygraph.demo.output import terminal

    script, rest = (None, given) if module is not None else (given[0], given[1:])
    try:
        found, status = explained(script, module, rest, profile)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    for path in (html, out):
        if path is not None:
            found.save(path)
    if json:
        from json import dumps

        typer.echo(dumps(found.to_dict(), indent=1))
    else:
        terminal().print(found)
    raise typer.Exit(status)


@app.command(
    cls=_BeforeProgram,
    epilog=TRACE_EXAMPLES,
    context_settings={"allow_interspersed_args": False},
)
def trace(
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT ARGUMENTS...", help="A script, and its arguments."),
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", help="A module in place of a script, as python -m runs it.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file of JSON.")] = Path("trace.json"),
    call: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Which of a function's steady calls. Default: the eighth, or else the first.",
        ),
    ] = None,
) -> None:
    """Run a program, and write one steady call of it as a timeline for Perfetto or Chrome.

    It is a call of the last of its functions that has graphs. What is printed comes behind the
    program's own output. The exit status is the program's, or 1 where there was no such call.
    """
    given = program or []
    if module is None and not given:
        raise typer.BadParameter("needed is a script, or -m and a module")
    if out.suffix != ".json":
        raise typer.BadParameter(f"--out {out}: needed is a name that ends in .json")
    from json import dumps

    from pygraph.cli.script import traced
    from pygraph.frontends.trace.watch import FIRST, WARM

    script, rest = (None, given) if module is not None else (given[0], given[1:])
    try:
        watch, status = traced(script, module, rest, (FIRST, WARM) if call is None else (call,))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if watch.kept is None:
        asked = "a steady call" if call is None else f"steady call {call} of a function"
        typer.echo(f"{asked} is to be traced, and there was none: {watch.problem()}", err=True)
        raise typer.Exit(status or 1)
    out.write_text(dumps(watch.kept.to_dict(), indent=1))
    typer.echo(f"{watch.kept}\nwritten: {out}; open it in https://ui.perfetto.dev")
    raise typer.Exit(status)


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
