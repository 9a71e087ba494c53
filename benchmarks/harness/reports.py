"""PyGraph's report, for records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pygraph.reporting import REPLACED, WARMING, GraphReport, Report


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


def undecided(graphs: Iterable[GraphReport]) -> bool:
    """Whether one of them is not what it will be: it is to be captured, or selection is at work."""
    return any(each.state == WARMING or each.undecided for each in graphs)


def fallbacks(graphs: Iterable[GraphReport]) -> list[dict[str, str]]:
    """The graphs whose calls run as they are. Those of a replaced one are another's."""
    return [
        {"graph": graph.name, "reason": graph.blame or graph.state}
        for graph in graphs
        if not graph.graphed and graph.state != REPLACED
    ]
