"""What can be shown on a machine without a GPU: everything but the clock.

First the plans of the same models, traced without memory, then the engine itself on its CPU twin:
captured, probed, proven, moved and replayed.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pygraph.bench import record
from pygraph.bench.environment import command_line, environment
from pygraph.bench.models import STAND_INS, WORKLOADS, Unavailable, Workload
from pygraph.planning import Plan, plan
from pygraph.planning.fake import built_without_memory
from pygraph.planning.text import as_table


def plan_workload(workload: Workload) -> Plan:
    """The plan of one workload; `Unavailable` where its library is missing."""
    torch._dynamo.reset()
    model = built_without_memory(workload.make_model)
    return plan(model, workload.make_inputs(0, "cpu"), name=workload.name)


def plan_all(workloads: Sequence[Workload], console: Console) -> tuple[list[Plan], dict[str, str]]:
    """Plans, and the reasons of the models that there is none of; stand-ins take their places."""
    plans: dict[str, Plan] = {}
    missing: dict[str, str] = {}
    waiting = list(workloads)
    with console.status("") as status:
        for workload in waiting:
            if workload.name in plans:
                continue
            status.update(f"planning {workload.name}")
            try:
                plans[workload.name] = plan_workload(workload)
            except Unavailable as reason:
                stand_in = STAND_INS.get(workload.name)
                missing[workload.name] = str(reason)
                if stand_in and WORKLOADS[stand_in] not in waiting:
                    waiting.append(WORKLOADS[stand_in])
                continue
            console.print(plans[workload.name])
    return list(plans.values()), missing


def show_twin(console: Console) -> dict[str, Any] | None:
    """The engine's own demonstration on the CPU twin; None where it cannot run."""
    try:
        result = importlib.import_module("pygraph.twin").demonstrate()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        console.print(Text(f"the engine's CPU twin did not run: {reason}", style="red"))
        return None
    figures = _figures(result)
    for line in figures.pop("lines", None) or []:
        console.print(Text(str(line)))
    table = Table(title="the engine on its CPU twin", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        table.add_row(Text(name.replace("_", " ")), Text(_shown(value)))
    console.print(table)
    return figures


def _figures(result: Any) -> dict[str, Any]:
    """The public attributes of what the twin returned, whichever kind of record that is."""
    if isinstance(result, dict):
        return dict(result)
    return {name: getattr(result, name) for name in dir(result) if not name.startswith("_")}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def twin_is_sound(figures: dict[str, Any] | None) -> bool:
    """Whether the twin ran, and gave the same bits after all its memory had moved."""
    return figures is not None and bool(figures.get("moved_equal", True))


def show_without_gpu(workloads: Sequence[Workload], out: Path, console: Console) -> int:
    """The whole demonstration; the exit code."""
    console.print(
        Text("No GPU here: the plans of the models, then the engine on its CPU twin.", style="bold")
    )
    plans, missing = plan_all(workloads, console)
    if plans:
        console.print(as_table(plans))
        shown = plans[0].device
        console.print(Text(f'Traced without memory on "{shown}", autocast off.', style="dim"))
    for name, reason in missing.items():
        stand_in = f"; {STAND_INS[name]} stands in" if name in STAND_INS else ""
        console.print(Text(f"{name} is not planned here ({reason}){stand_in}", style="yellow"))
    figures = show_twin(console)
    failed = [each.name for each in plans if each.error]
    record.write(
        out / "plan.json",
        {
            "env": environment(),
            "command": command_line(),
            "plans": [each.to_dict() for each in plans],
            "missing": missing,
            "twin": {name: _plain(value) for name, value in (figures or {}).items()},
        },
    )
    for name in failed:
        console.print(Text(f"the trace of {name} ended early", style="red"))
    return 0 if twin_is_sound(figures) and not failed else 1


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else str(value)
