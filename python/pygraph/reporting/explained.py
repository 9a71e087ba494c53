"""An explanation for a reader: as plain text, and with rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pygraph.reporting.text import environment_line, graph_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pygraph.reporting.explanation import Blocker, Explanation
    from pygraph.reporting.model import GraphReport

SHOWN = 10
"""Kernels that are listed one by one; the rest is counted."""


def verdict(explanation: Explanation) -> str:
    """The explanation in one line."""
    if not explanation.report.graphs:
        return "no compiled graph was called"
    total = explanation.inside + explanation.outside
    if not total:
        return "nothing ran inside of a graph"
    inside = f"{explanation.inside:g} of {total:g} {explanation.counted}"
    return f"{inside} inside of graphs ({explanation.coverage:.1%})"


def as_text(explanation: Explanation) -> str:
    lines = [f"{explanation.name}: {verdict(explanation)}"]
    if explanation.error:
        lines.append(f"the program ended early: {explanation.error}")
    if explanation.report.environment:
        lines.append(environment_line(explanation.report))
    lines.append(
        f"{explanation.seconds:.1f} s in all; graphs took {explanation.build_ms:.1f} ms to build"
    )
    for blocker in explanation.blockers:
        lines += blocker_lines(blocker)
    if explanation.kernels_outside:
        lines.append("kernels outside of graphs:")
        lines += [
            f"  {each.count:g} x {each.name}: {each.us:.1f} us"
            for each in explanation.kernels_outside[:SHOWN]
        ]
        if len(explanation.kernels_outside) > SHOWN:
            lines.append(f"  and {len(explanation.kernels_outside) - SHOWN} more names")
    for graph in explanation.report.graphs:
        lines += [*graph_lines(graph), *_launches(graph)]
    lines += [f"compiled: {each}" for each in explanation.compiled]
    lines += [f"note: {each}" for each in explanation.notes]
    return "\n".join(lines)


def _launches(graph: GraphReport) -> list[str]:
    """How calls come to the graph."""
    ways = [
        text
        for way, text in (
            (graph.past_wrappers, "past the wrappers"),
            (graph.past_guards, "past the guards"),
            (graph.before_wrappers, "before the wrappers"),
            (graph.before_guards, "before the guards, where that pays"),
        )
        if way
    ]
    return [f"  launched {', '.join(ways)}"] if ways else []


def blocker_lines(blocker: Blocker) -> list[str]:
    culprit = " at ".join(part for part in (blocker.operator, blocker.source) if part)
    lines = [
        "blocker: " + ": ".join(part for part in (blocker.graph, blocker.what, culprit) if part)
    ]
    lines += [f"    {blocker.code}"] if blocker.code else []
    lines += [f"  to do: {blocker.remedy}"] if blocker.remedy else []
    return lines


def as_rich(explanation: Explanation) -> RenderableType:
    from rich.text import Text

    text = Text(as_text(explanation))
    whole = explanation.outside == 0 and explanation.inside > 0 and not explanation.error
    text.highlight_regex(r"\A[^\n]*", f"bold {'green' if whole else 'yellow'}")
    text.highlight_regex(r"(?m)^blocker:", "bold red")
    text.highlight_regex(r"(?m)^  to do:", "green")
    text.highlight_regex(r"\b[\w-]+\.py:\d+\b", "cyan")
    return text
