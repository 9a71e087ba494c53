"""What is stored of one workload in one mode of `./run bench-parallel`.

In `extra`: `kind`, `about` and `precision` of the workload; of PyGraph's modes, `lanes` of the
graph that has most, `lanes_of_graphs` of each, `arena_bytes` of all together, `chosen`, which is
what the report says of selection, `report`, the whole text, and `replayed`, the share of calls that
graphs served while the clocks ran; `bit_equal_to_serial` and what else the check found; and how
often, while this mode was compiled, a cache on disk lacked a graph (figures.NOT_CACHED): modes
share these caches, and the first of them pays. `compile_s` is taken while other workloads compile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.first_light import record as first_light
from benchmarks.harness.record import by_mode
from benchmarks.harness.reports import fallbacks
from benchmarks.harness.shown import mebibytes, microseconds, percent, ratio, shortened
from benchmarks.harness.table import Column, Table, made, words
from benchmarks.parallel.goals import summary
from pygraph.reporting import REPLACED, GraphReport
from pygraph.reporting.text import graph_lines, selection_lines

MOST_REPORTED = 12
"""Graphs of one mode whose whole text is kept."""


@dataclass
class Record(first_light.Record):
    @property
    def not_run(self) -> str | None:
        """Why this mode was left out, if that is as it should be."""
        found = self.extra.get("not_run")
        return None if found is None else str(found)

    def take_reports(self, reports: Sequence[GraphReport]) -> None:
        """What PyGraph says of this mode's graphs."""
        graphs = [each for each in reports if each.state != REPLACED]
        self.extra["lanes"] = max((each.lanes for each in graphs), default=None)
        self.extra["lanes_of_graphs"] = [each.lanes for each in graphs]
        self.extra["arena_bytes"] = sum(each.arena_bytes for each in graphs)
        chosen = [line for each in graphs for line in selection_lines(each)]
        self.extra["chosen"] = "; ".join(dict.fromkeys(chosen))
        self.extra["fallbacks"] = fallbacks(graphs)
        self.extra["report"] = ["\n".join(graph_lines(each)) for each in graphs[:MOST_REPORTED]]


def document(
    records: Sequence[Record],
    env: Mapping[str, Any],
    command: str,
    phases: Mapping[str, Any],
    errors: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    return {
        "env": dict(env),
        "command": command,
        "records": [asdict(each) for each in records],
        "summary": summary(records),
        "phases": dict(phases),
        "errors": list(errors),
    }


def table(records: Sequence[Record]) -> Table:
    """A row a mode."""
    serial = {name: modes.get("serial") for name, modes in by_mode(records).items()}

    def over(row: Record, field: str) -> str:
        base = serial[row.workload]
        own, other = (None if each is None else getattr(each, field) for each in (row, base))
        return ratio(own / other if own and other else None)

    def arena(row: Record) -> str:
        found = row.extra.get("arena_bytes")
        return mebibytes(None if found is None else found / 2**20)

    columns = [
        words("workload", lambda row: row.workload),
        words("mode", lambda row: row.mode),
        words("right", lambda row: shortened(row.not_run or row.error or "yes", 60)),
        Column("latency", lambda row: microseconds(row.latency_us)),
        Column("/ serial", lambda row: over(row, "latency_us")),
        Column("p99", lambda row: microseconds(row.latency_p99_us)),
        Column("pipelined", lambda row: microseconds(row.pipelined_us)),
        Column("/ serial ", lambda row: over(row, "pipelined_us")),
        Column("peak MiB", lambda row: mebibytes(row.peak_mib)),
        Column("arena MiB", arena),
        Column("lanes", lambda row: str(row.extra.get("lanes") or "")),
        Column("replayed", lambda row: percent(row.extra.get("replayed"))),
    ]
    return made(records, columns, title="us, medians; / serial: over that mode's")
