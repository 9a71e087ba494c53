"""The engine's record: what its requirements ask for, measured in one go.

    ./run bench-engine-record                     # on a GPU, about six minutes
    ./run bench-engine-record --parts link,tight --quick

Parts, in this order; a crash costs only the part, and what is known is saved after each job:

compile  fills Inductor's caches on disk, several models at once; nothing is measured
micro    the C++ microbenchmarks, if build/release/pygraph_bench is there
link     what linking and proving takes, beside one capture (linktime.py)
tight    capturing with hardly any memory (tight.py)
memory   models in eager, default, reduce-overhead and pygraph (memory.py), each
         mode of each model in a process of its own

The JSON (MiB, ms, us as the names say; null: not measured):

env, command, seconds    the machine; how this was called; seconds by part
targets                  [{name, requirement, met, value, limit, detail}], from targets.py
memory.records           [memory.Figures], one per model and mode
memory.packing           {model: memory.packing()}
tight                    {mode: tight.Tight}
link                     linktime.measure_link()
micro                    micro.records()
errors                   [{job, error}], also of what there was no time for
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.engine import large, targets
from benchmarks.engine.memory import Figures
from benchmarks.engine.micro import records
from benchmarks.harness import record
from benchmarks.harness.environment import command_line
from benchmarks.harness.jobs import Outcome
from benchmarks.harness.session import Session
from benchmarks.harness.table import target_table
from benchmarks.harness.targets import Target
from pygraph.demo.models import chosen
from pygraph.demo.output import terminal

ROOT = Path(__file__).resolve().parents[2]
OUT = Path("bench-out/engine.json")
MODES = ("eager", "default", "reduce-overhead", "pygraph")
COMPILED = ("reduce-overhead", "default")
"""One per configuration of Inductor: pygraph compiles as reduce-overhead does."""
TIGHT_MODEL, LINK_MODEL = "unet", "bert-large"
PARTS = ("compile", "micro", "link", "tight", "memory")
LIMITS_S = {
    "environment": 60.0,
    "compile": 150.0,
    "micro": 60.0,
    "link": 90.0,
    "tight": 60.0,
    "memory": 60.0,
}
"""Per job."""
TOGETHER = 12
MICRO_MIN_TIME = {True: "0.02s", False: "0.1s"}


class Run:
    """What is known so far, and how it is told."""

    def __init__(
        self,
        models: list[str],
        quick: bool,
        out: Path,
        budget_s: float,
        console: Console,
        options: Sequence[str] = (),
    ):
        self.models, self.quick, self.out, self.console = models, quick, out, console
        self.session = Session(
            "benchmarks.engine.worker", LIMITS_S, budget_s, console, self.save, options
        )
        self.figures: list[Figures] = []
        self.content: dict[str, Any] = {
            "env": {},
            "command": command_line(),
            "seconds": {},
            "targets": [],
            "memory": {"records": [], "packing": {}},
            "tight": {},
            "link": None,
            "micro": None,
            "errors": self.session.errors,
        }

    def judge(self) -> list[Target]:
        tight = self.content["tight"].get("pygraph")
        return [
            *targets.memory_targets(self.models, self.figures),
            targets.tight_target(tight),
            targets.link_target(self.content["link"]),
        ]

    def save(self) -> None:
        seconds = {name: round(each, 1) for name, each in self.session.seconds.items()}
        self.content["seconds"] = seconds
        self.content["memory"] = {
            "records": [asdict(each) for each in self.figures],
            "packing": targets.packing_table(self.figures),
        }
        self.content["targets"] = [target.to_dict() for target in self.judge()]
        record.write(self.out, self.content)

    def measure(
        self, kind: str, models: Sequence[str], modes: Sequence[str], store: Any, most: int = 1
    ) -> None:
        jobs = [self.session.job(kind, model, mode) for model in models for mode in modes]
        self.session.run(jobs, store, most)

    def one_of(self, model: str) -> list[str]:
        return [model if model in self.models else self.models[0]]


def environment(run: Run) -> None:
    """In a process of its own: this one never touches the GPU, whose free memory is measured."""
    store = partial(keep, run.content, "env")
    run.measure("environment", run.models[:1], ["default"], store)


def compile_all(run: Run) -> None:
    most = min(TOGETHER, len(run.models) * len(COMPILED), os.cpu_count() or 1)
    run.measure("compile", run.models[::-1], COMPILED, lambda _: None, most)


def keep(content: dict[str, Any], name: str, outcome: Outcome) -> None:
    content[name] = outcome.result


def micro(run: Run) -> None:
    binary = ROOT / "build" / "release" / "pygraph_bench"
    if not binary.exists():
        run.session.fail(
            "micro", "found no build/release/pygraph_bench: ./run bench-engine builds it"
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "raw.json")
        options = [f"--benchmark_out={raw}", "--benchmark_out_format=json"]
        options.append(f"--benchmark_min_time={MICRO_MIN_TIME[run.quick]}")
        _call([str(binary), *options], LIMITS_S["micro"])
        run.content["micro"] = records(json.loads(raw.read_text()))


def _call(command: list[str], limit_s: float) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=limit_s)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout or "no output").strip().splitlines()
        raise RuntimeError(
            f"{Path(command[0]).name}: {lines[-1] if lines else 'failed'}"
        ) from error


def link(run: Run) -> None:
    run.measure("link", run.one_of(LINK_MODEL), ["pygraph"], partial(keep, run.content, "link"))


def tight(run: Run) -> None:
    modes = ["pygraph"] if run.quick else ["pygraph", "reduce-overhead"]

    def store(outcome: Outcome) -> None:
        keep(run.content["tight"], outcome.job.mode, outcome)

    run.measure("tight", run.one_of(TIGHT_MODEL), modes, store)


def memory(run: Run) -> None:
    def store(outcome: Outcome) -> None:
        run.figures.append(Figures(**outcome.result))

    run.measure("memory", run.models, ("default", "pygraph") if run.quick else MODES, store)


STEPS: dict[str, Callable[[Run], None]] = {
    "environment": environment,
    "compile": compile_all,
    "micro": micro,
    "link": link,
    "tight": tight,
    "memory": memory,
}


def memory_table(figures: list[Figures]) -> Table:
    table = Table(title="memory, MiB", title_justify="left")
    names = ("peak", "reserved", "first calls", "per call", "held when idle", "others can have")
    table.add_column("model")
    table.add_column("mode")
    for name in names:
        table.add_column(name, justify="right")
    for each in figures:
        values = (
            each.peak_mib,
            each.reserved_mib,
            each.first_driver_mib,
            each.call_mib,
            each.held_mib,
            each.freed_mib,
        )
        cells = ["-" if value is None else f"{value:,.0f}" for value in values]
        cells[-1] += {True: ", had", False: ", not had", None: ""}[each.freed_is_usable]
        table.add_row(Text(f"{each.workload} ({each.batch})"), each.mode, *cells)
    return table


def packing_table(found: dict[str, dict[str, float | None]]) -> Table:
    table = Table(title="packing: MiB of one call", title_justify="left")
    table.add_column("model")
    rows = next(iter(found.values()), {})
    for name in rows:
        table.add_column(name.removesuffix("_mib").replace("_", " "), justify="right")
    for model, values in found.items():
        cells = [
            "-" if value is None else f"{value:.3f}" if name.startswith("over") else f"{value:,.1f}"
            for name, value in values.items()
        ]
        table.add_row(Text(model), *cells)
    return table


def show(run: Run) -> None:
    if run.figures:
        run.console.print(memory_table(run.figures))
        run.console.print(packing_table(targets.packing_table(run.figures)))
    run.console.print(target_table(run.judge()))


def chosen_parts(parts: str | None) -> list[str]:
    """The parts of a list with commas, in the order in which they run."""
    wanted = chosen(parts, PARTS, "part")
    return [part for part in PARTS if part in wanted]


def main(
    parts: Annotated[str | None, typer.Option(help=f"Of {', '.join(PARTS)}. Default: all.")] = None,
    models: Annotated[str | None, typer.Option(help=f"Of {', '.join(large.LARGE)}.")] = None,
    out: Annotated[Path, typer.Option(help="The record.")] = OUT,
    budget: Annotated[float, typer.Option(min=1.0, help="Seconds for everything.")] = 460.0,
    quick: Annotated[bool, typer.Option(help="Fewer models, modes and repetitions.")] = False,
    device: Annotated[str, typer.Option(help="cpu: to try the script; means nothing.")] = "cuda",
) -> None:
    """Measure what the engine's requirements ask for; 0 if all that was measured is met."""
    try:
        names = [workload.name for workload in large.find(models)]
        wanted = chosen_parts(parts)
    except KeyError as error:
        raise typer.BadParameter(str(error.args[0])) from error
    if quick and models is None:
        names = [LINK_MODEL, TIGHT_MODEL]
    options = () if device == "cuda" else ("--device", device)
    run = Run(names, quick, out, budget, terminal(), options)
    for part in ("environment", *wanted):
        run.console.print(Text(part, style="bold"))
        run.session.part(part, partial(STEPS[part], run))
    show(run)
    total = sum(run.content["seconds"].values())
    run.console.print(Text(f"{total:.0f} s; written: {out.name}", style="dim"))
    bad = run.content["errors"] or any(target.met is False for target in run.judge())
    raise typer.Exit(1 if bad else 0)
