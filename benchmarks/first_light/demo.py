"""`./run demo`: what PyGraph does on this machine.

With a GPU every model is run in every mode, checked, timed and written down, those first that
compile in seconds. Without one a small model runs on the CPU twin, and some of the models are
planned.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from benchmarks.first_light import chart, table
from benchmarks.first_light.models import MEASURED
from benchmarks.first_light.record import Record, document
from benchmarks.first_light.run import Options, run_workload
from benchmarks.harness import modes, record
from benchmarks.harness.device import Device
from benchmarks.harness.environment import command_line, environment
from benchmarks.harness.measure import Effort, Phases
from pygraph.demo import what_next
from pygraph.demo.models import WORKLOADS, Workload
from pygraph.demo.output import terminal
from pygraph.reporting import Report

OUT = Path("demo-out")
NAME = "first-light"
BUDGET_S = 60.0

EARLY = ("mlp-8", "alexnet")
"""Measured before the others: they compile in seconds, and so show a speed-up soon. Tables and
files keep the order of the request."""


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    models: tuple[str, ...] | None = None
    """None: MEASURED on a GPU, and without one those of without_gpu.PLANNED."""
    modes: tuple[str, ...] = tuple(modes.MODES)
    out: Path = OUT
    name: str = NAME
    budget_s: float = BUDGET_S
    """For the timing loops of all models together; compiling comes on top."""
    quick: bool = False
    cold: bool = False
    twin_model: str = "resnet18"
    """Without a GPU: which of small_models runs on the CPU twin."""

    def workloads(self, default: Sequence[str] = MEASURED) -> list[Workload]:
        return [WORKLOADS[name] for name in self.models or default]

    def effort(self) -> Effort:
        seconds = self.budget_s / max(1, len(self.workloads()))
        return Effort(seconds / 4, rounds=3, least=5) if self.quick else Effort(seconds)


def demo(request: Request, console: Console | None = None) -> int:
    """Show what there is to see; 0 if nothing failed."""
    console = console or terminal()
    if torch.cuda.is_available():
        return _with_gpu(request, console)
    from pygraph.demo.without_gpu import PLANNED, show_without_gpu

    return show_without_gpu(request.workloads(PLANNED), request.out, console, request.twin_model)


def _with_gpu(request: Request, console: Console) -> int:
    device = Device("cuda")
    found = environment()
    torch.set_float32_matmul_precision("highest")
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    started = time.perf_counter()
    phases: dict[str, Phases] = {}
    console.print(Text(f"{found['gpu']}, driver {found['driver']}, torch {found['torch']}"))
    data, picture = (request.out / f"{request.name}.{end}" for end in ("json", "png"))
    content: dict[str, Any] = {}

    def save(records: Sequence[Record]) -> None:
        names = dict.fromkeys(each.workload for each in records)
        spent = {name: phases[name] for name in names if name in phases}
        content.update(document(records, found, command_line(), spent))
        record.write(data, content)

    records = _run_all(request, device, console, save, phases)
    total = time.perf_counter() - started
    show(records, console)
    _show_reports(records, console)
    drawn = _draw(records, found, picture, console)
    for line in table.summary_lines(content["summary"]):
        console.print(Text(line, style="bold"))
    console.print(Text(table.time_line(phases.values(), total)))
    for line in content["summary"]["failed"]:
        console.print(Text(f"failed: {line}", style="red"))
    console.print(Text(f"written: {data}" + (f", {picture}" if drawn else ""), style="dim"))
    console.print(Text(what_next.WITH_GPU))
    return 1 if content["summary"]["failed"] else 0


def _run_all(
    request: Request,
    device: Device,
    console: Console,
    save: Callable[[Sequence[Record]], None],
    phases: dict[str, Phases],
) -> list[Record]:
    """All models; what is known is saved after each, so that a run cut short leaves something."""
    options = Options(effort=request.effort(), modes=request.modes, cold=request.cold)
    steps = len(request.modes) + 2
    waiting = sorted(enumerate(request.workloads()), key=lambda each: _turn(each[1].name))
    found: dict[int, list[Record]] = {}
    columns = (
        TextColumn("{task.description:<48}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # No thread of its own that redraws: it would take the interpreter's lock from the timed calls.
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("", total=steps * len(waiting))
        for turn, (place, workload) in enumerate(waiting):
            progress.update(task, completed=turn * steps)

            def advance(what: str, name: str = workload.name) -> None:
                progress.update(task, advance=1, description=f"{name}: {what}", refresh=True)

            spent = phases.setdefault(workload.name, Phases())
            found[place] = run_workload(workload, device, options, advance, spent)
            _say_how_it_went(found[place], spent, progress.console)
            broken = device.broken()
            if broken is not None:
                reason = f"the GPU failed before: {broken}"
                for later, unreached in waiting[turn + 1 :]:
                    found[later] = _not_reached(unreached, request.modes, reason)
            save(_in_order(found))
            if broken is not None:
                break
        progress.update(task, completed=steps * len(waiting), description="done", refresh=True)
    return _in_order(found)


def _turn(name: str) -> int:
    return EARLY.index(name) if name in EARLY else len(EARLY)


def _in_order(found: Mapping[int, Sequence[Record]]) -> list[Record]:
    return [record for place in sorted(found) for record in found[place]]


def _not_reached(workload: Workload, modes: Sequence[str], reason: str) -> list[Record]:
    return [Record(workload.name, workload.batch, mode, error=reason) for mode in modes]


def _say_how_it_went(records: Sequence[Record], spent: Phases, console: Console) -> None:
    """One line per model as soon as it is done: the speed-up, and what failed."""
    took = f" ({sum(spent.values()):.0f} s)"
    console.print(Text(f"{records[0].workload}: {table.speed_up(records)}{took}", style="bold"))
    for each in records:
        if each.error:
            console.print(Text(f"  {each.mode}: {each.error}", style="red"))


def show(records: Sequence[Record], console: Console) -> None:
    for each in table.tables(records):
        console.print(each)


def _show_reports(records: Sequence[Record], console: Console) -> None:
    for each in records:
        if "report" in each.extra:
            console.print(Text(f"{each.workload}, as PyGraph reports it", style="bold"))
            console.print(Report.from_dict({**each.extra["report"], "environment": {}}))


def _draw(
    records: Sequence[Record], found: dict[str, object], path: Path, console: Console
) -> bool:
    try:
        return chart.draw(records, found, path)
    except ImportError as error:
        console.print(Text(f"no chart: {error}", style="yellow"))
        return False
