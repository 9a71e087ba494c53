"""A plan for a reader: as plain text, and with rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pygraph.planning.model import KINDS, Argument, GraphPlan, Plan

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = 6
"""Arguments and findings that are listed one by one; the rest is counted."""


def size(arguments: list[Argument]) -> str:
    return f"{sum(argument.nbytes for argument in arguments) / 2**20:.1f} MiB"


def verdict(plan: Plan) -> str:
    """The plan in one line."""
    if plan.error:
        return f"trace ended early: {plan.error}"
    if plan.capturable:
        return "one graph, nothing in its way"
    split = sum(not graph.whole for graph in plan.graphs)
    parts = [f"{len(plan.graphs)} graph{'s' * (len(plan.graphs) != 1)}"]
    if plan.breaks:
        parts.append(f"{len(plan.breaks)} break{'s' * (len(plan.breaks) != 1)}")
    if split:
        parts.append(f"{split} with something in the way")
    return ", ".join(parts)


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
    return "\n".join(lines)


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
    for finding in graph.findings[:SHOWN]:
        kind = KINDS[finding.kind]
        times = f" ({finding.count} times)" if finding.count > 1 else ""
        where = f" at {finding.source}" if finding.source else ""
        lines.append(f"    {kind.title}: {finding.operator}{where}{times}: {kind.effect}")
        if finding.code:
            lines.append(f"      {finding.code}")
    if len(graph.findings) > SHOWN:
        lines.append(f"    and {len(graph.findings) - SHOWN} more lines")
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
