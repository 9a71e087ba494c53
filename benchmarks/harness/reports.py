"""PyGraph's report, for records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pygraph.reporting import REPLACED, GraphReport, Report


def read_report() -> Report:
    from pygraph.runtime.registry import report

    return report()


@dataclass(frozen=True)
class Counts:
    """Taken out of a report at once: its entries go on counting."""

    calls: int
    replays: int
    bytes_copied: int

    @classmethod
    def of(cls, report: Report) -> Counts:
        return cls(report.calls, report.replays, report.bytes_copied)


def fallbacks(graphs: Iterable[GraphReport]) -> list[dict[str, str]]:
    """The graphs whose calls run as they are. Those of a replaced one are another's."""
    return [
        {"graph": graph.name, "reason": graph.blame or graph.state}
        for graph in graphs
        if not graph.graphed and graph.state != REPLACED
    ]
