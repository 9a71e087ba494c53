"""A plan for a reader: as plain text, and with rich."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pygraph.planning.kinds import COVERS, KINDS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pygraph.planning.model import Argument, Finding, GraphPlan, Plan

SHOWN = 6
"""Arguments and findings that are listed one by one; the rest is counted."""


def size(arguments: list[Argument]) -> str:
    return f"{sum(argument.nbytes for argument in arguments) / 2**20:.1f} MiB"


def verdict(plan: Plan) -> str:
    """The plan in one line."""
    if plan.error:
        return f"trace ended early: {plan.error}"
    if not plan.graphs:
        return "no graph: nothing is left to compile"
    counts = Counter(graph.cover for graph in plan.graphs)
    each = [f"{counts[cover]} {cover}" for cover in COVERS if counts[cover]]
    runs = ", ".join(each) if len(each) > 1 else plan.graphs[0].cover
    graphs = "1 graph, runs" if len(plan.graphs) == 1 else f"{len(plan.graphs)} graphs, run"
    breaks = f"; {len(plan.breaks)} break{'s' * (len(plan.breaks) != 1)}" if plan.breaks else ""
    return f"{graphs} as CUDA graphs: {runs}{breaks}"


def as_text(plan: Plan) -> str:
    lines = [f"{plan.name}: {verdict(plan)} ({plan.seconds:.1f} s)"]
    for graph in plan.graphs:
        lines += _graph(graph)
    for each in plan.breaks:
        where = f" at {each.source}" if each.source else ""
        lines.append(f"  break{where}: {each.reason}")
        lines += [f"      {text}" for text in (each.code, each.explanation) if text]
    if plan.scalars:
        listed = _first(plan.scalars)
        lines.append(f"  numbers among the arguments: {listed}; another value compiles again")
    lines += [f"  note: {note}" for note in plan.notes]
    if plan.graphs and not plan.error and not plan.capturable:
        lines += _advice(plan)
    return "\n".join(lines)


def _advice(plan: Plan) -> list[str]:
    """What it means that not all of a program is one CUDA graph, and what would help."""
    lines = []
    covers = {graph.cover for graph in plan.graphs}
    if "in part" in covers:
        lines.append(
            "in part: what no pass takes away runs between CUDA graphs, as under torch.compile"
        )
    if "not at all" in covers:
        lines.append(
            "not at all: its inputs are on the CPU, or what is listed forbids a capture; this runs "
            "as under torch.compile"
        )
    if plan.breaks:
        lines.append("a break: Python runs there, between two graphs; the results are right")
    found = {finding.kind for finding in plan.remaining if finding.splits}
    kinds = [kind for name, kind in KINDS.items() if name in found]
    lines += [f"to do: {kind.title}: {kind.remedy}" for kind in kinds]
    if plan.breaks:
        lines.append("to do: a break: take the line out of the model, or follow its explanation")
    return [f"  {line}" for line in lines]


def _graph(graph: GraphPlan) -> list[str]:
    lines = [
        f"  {graph.name}: {graph.operators} operators ({graph.views} of them views), "
        f"{len(graph.constants)} constants ({size(graph.constants)}), "
        f"{len(graph.outputs)} outputs ({size(graph.outputs)})"
        + (f", writes to {graph.mutated} inputs" if graph.mutated else "")
    ]
    if graph.patched:
        lines.append(f"    changes per call: {_first([str(each) for each in graph.patched])}")
    if graph.host_inputs:
        lines.append(f"    on the CPU: {_first([str(each) for each in graph.host_inputs])}")
    if graph.scalars:
        lines.append(f"    numbers: {_first(graph.scalars)}")
    if graph.passes:
        before, behind = map(_in_the_way, (graph.findings, graph.remaining))
        lines.append(f"    lines in the way: {before} before the passes, {behind} behind them")
    lines += _findings(graph.remaining)
    lines += _findings(graph.taken_away)
    lines += [f"    pass {each}" for each in graph.passes[:SHOWN]]
    if len(graph.passes) > SHOWN:
        lines.append(f"    and {len(graph.passes) - SHOWN} more changes by passes")
    return lines


def _in_the_way(found: Sequence[Finding]) -> int:
    return sum(finding.splits for finding in found)


def _findings(found: Sequence[Finding]) -> list[str]:
    lines = []
    for finding in found[:SHOWN]:
        kind = KINDS[finding.kind]
        times = f" ({finding.count} times)" if finding.count > 1 else ""
        where = f" at {finding.source}" if finding.source else ""
        passes = " and ".join(finding.taken_away_by)
        effect = f"taken away by the pass {passes}" if passes else kind.effect
        lines.append(f"    {kind.title}: {finding.operator}{where}{times}: {effect}")
        if finding.code:
            lines.append(f"      {finding.code}")
    if len(found) > SHOWN:
        lines.append(f"    and {len(found) - SHOWN} more lines")
    return lines


def _first(texts: list[str]) -> str:
    rest = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + rest


def as_rich(plan: Plan) -> RenderableType:
    from rich.text import Text

    text = Text(as_text(plan))
    colour = "red" if plan.error else "green" if plan.capturable else "yellow"
    text.highlight_regex(r"\A[^\n]*", f"bold {colour}")
    text.highlight_regex(r"\b[\w-]+\.py:\d+\b", "cyan")
    return text


def as_table(plans: list[Plan]) -> RenderableType:
    """Several plans side by side."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="what would be captured", title_justify="left")
    table.add_column("model")
    for name in ("graphs", "breaks", "operators", "constants", "patched", "outputs", "s"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for plan in plans:
        constants = [each for graph in plan.graphs for each in graph.constants]
        table.add_row(
            Text(plan.name),
            str(len(plan.graphs)),
            str(len(plan.breaks)),
            str(plan.operators),
            f"{len(constants)} ({size(constants)})",
            str(sum(len(graph.patched) for graph in plan.graphs)),
            str(sum(len(graph.outputs) for graph in plan.graphs)),
            f"{plan.seconds:.0f}",
            Text(verdict(plan)),
        )
    return table
