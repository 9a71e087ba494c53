"""What can be shown on a machine without a GPU: everything but the clock.

First the CPU twin: a real model through torch.compile (on_twin.py), and in one line the engine by
itself. Then plans of models, traced without memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from pygraph.demo import on_twin, output, what_next
from pygraph.demo.models import STAND_INS, WORKLOADS, Unavailable, Workload
from pygraph.frontends.compile.plan import plan
from pygraph.planning import Plan
from pygraph.planning.fake import built_without_memory
from pygraph.planning.text import as_table
from pygraph.runtime.registry import info
from pygraph.twin import demonstrate

PLANNED = ("alexnet", "DebertaV2ForQuestionAnswering")
"""Planned unless others are asked for: a short trace with nothing in the way, and a long one with
something. Tracing all of them takes a minute and says no more."""

_ENGINE_FIGURES = ("nodes", "relocations", "arena_bytes", "lower_bound_bytes", "proof")


def plan_workload(workload: Workload, training: bool = False) -> Plan:
    """The plan of one workload; `Unavailable` where its library is missing."""
    torch.compiler.reset()
    model = built_without_memory(workload.make_model)
    return plan(model, workload.make_inputs(0, "cpu"), name=workload.name, training=training)


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


def show_engine(console: Console) -> dict[str, Any]:
    """One line of the engine's own demonstration, without torch; what it found."""
    try:
        shown = demonstrate()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        console.print(Text(f"the engine did not run on its CPU twin: {reason}", style="red"))
        return {"passed": False, "error": reason}
    figures = {name: getattr(shown, name) for name in _ENGINE_FIGURES}
    passed = bool(shown.moved_equal and shown.proven)
    verdict = "the same bits" if passed else f"other bits (proof: {shown.proof})"
    console.print(
        Text(
            f"The engine alone, without torch: {shown.nodes} nodes, {shown.relocations} "
            f"relocations; all memory moved, {verdict}.",
            style="" if passed else "red",
        )
    )
    return {"passed": passed, **figures}


def show_without_gpu(
    workloads: Sequence[Workload], out: Path, console: Console, twin_model: str = on_twin.MODEL
) -> int:
    """The whole demonstration; the exit code: 0 if every check passed."""
    console.print(
        Text(
            f"No GPU here: {twin_model} on the CPU twin, which does all but the speed, and then "
            f"plans of {len(workloads)} models.",
            style="bold",
        )
    )
    shown = on_twin.show(twin_model, console)
    engine = show_engine(console)
    plans, missing = plan_all(workloads, console)
    if plans:
        console.print(as_table(plans))
        device = plans[0].device
        console.print(Text(f'Traced without memory on "{device}", autocast off.', style="dim"))
    for name, reason in missing.items():
        stand_in = f"; {STAND_INS[name]} stands in" if name in STAND_INS else ""
        console.print(Text(f"{name} is not planned here ({reason}){stand_in}", style="yellow"))
    failed = [each.name for each in plans if each.error]
    output.write(
        out / "plan.json",
        {
            "env": info(),
            "command": output.command_line(),
            "plans": [each.to_dict() for each in plans],
            "missing": missing,
            "engine": engine,
            "twin": shown.to_dict(),
        },
    )
    for name in failed:
        console.print(Text(f"the trace of {name} ended early", style="red"))
    console.print(Text(what_next.WITHOUT_GPU))
    return 0 if engine["passed"] and shown.passed and not failed else 1
