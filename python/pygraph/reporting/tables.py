"""A report as rich tables: how each graph runs, and what it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pygraph.reporting.text import (
    as_bytes,
    environment_line,
    headline,
    outside_line,
    selection_lines,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pygraph.reporting.model import GraphReport, Report

STYLES = {
    "graphed": "green",
    "graphed, partly copied": "yellow",
    "fallback": "red",
    "warming": "dim",
    "replaced": "dim",
}


def as_tables(report: Report) -> RenderableType:
    parts: list[RenderableType] = [Text(headline(report), style="bold")]
    if report.environment:
        parts.append(Text(environment_line(report), style="dim"))
    if report.graphs:
        parts.append(_graphs(report.graphs))
    blamed = [graph for graph in report.graphs if graph.blame]
    if blamed:
        parts.append(_reasons(blamed))
    parts += [
        Text(f"{graph.name}: pass {each}") for graph in report.graphs for each in graph.passes
    ]
    outside = [graph for graph in report.graphs if graph.culprits]
    parts += [Text(f"{graph.name}: {outside_line(graph)}", style="yellow") for graph in outside]
    parts += [
        Text(f"{graph.name}: {line}") for graph in report.graphs for line in selection_lines(graph)
    ]
    parts += [Text(f"event: {event}", style="yellow") for event in report.events]
    return Group(*parts)


def _graphs(graphs: list[GraphReport]) -> Table:
    table = Table(title="compiled graphs", title_justify="left")
    table.add_column("graph")
    table.add_column("state")
    for name in ("nodes", "in / const / out", "reloc", "coinc", "noise"):
        table.add_column(name, justify="right")
    table.add_column("proof")
    for name in ("arena", "outputs", "replays / calls", "copied"):
        table.add_column(name, justify="right")
    for graph in graphs:
        table.add_row(
            Text(graph.name),
            Text(graph.state, style=STYLES.get(graph.state, "")),
            str(graph.nodes),
            f"{graph.inputs} / {graph.constants} / {graph.outputs}",
            str(graph.relocations),
            str(graph.coincidences),
            str(graph.noise),
            Text(graph.proof),
            as_bytes(graph.arena_bytes),
            as_bytes(graph.output_bytes),
            f"{graph.replays} / {graph.calls}",
            as_bytes(graph.bytes_copied),
        )
    return table


def _reasons(graphs: list[GraphReport]) -> Table:
    table = Table(title="what stood in the way", title_justify="left")
    for name in ("graph", "reason", "operator", "source"):
        table.add_column(name)
    for graph in graphs:
        # Text, not str: a reason may hold brackets, which rich would read as markup.
        cells = (graph.name, graph.reason, graph.operator, graph.source)
        table.add_row(*(Text(cell or "") for cell in cells))
    return table
