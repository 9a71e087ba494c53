"""What is stored of one pattern in one mode of `./run bench-patterns`, and the summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness.figures import Modes
from benchmarks.harness.measure import geomean
from benchmarks.harness.profile import Launched
from benchmarks.harness.record import by_mode, restored, shareable
from benchmarks.harness.reports import fallbacks
from benchmarks.harness.timed import Timed
from benchmarks.patterns.catalogue import PATTERNS, THEME_OF
from benchmarks.patterns.goals import RATIOS, goals
from pygraph.reporting import GraphReport


@dataclass
class Record(Timed):
    """One pattern in one mode."""

    compile_s: float | None = None
    """Up to the steady state, the first calls included."""
    recompilations: int | None = None
    """What Dynamo compiled after the first call, until the results were checked."""
    compiled_in_clocks: int | None = None
    """And while the clocks ran, for all modes together: what a mode is still at is not steady."""
    kernels: float | None = None
    """Per call, as the next two."""
    graphs: float | None = None
    """Launches of graphs."""
    outside: float | None = None
    """Kernels that no graph launched."""
    bytes_copied: float | None = None
    """pygraph and clean: per call, by PyGraph."""
    error: str | None = None
    not_run: bool = False
    """It would end the process, as `error` says."""
    relative_error: float | None = None
    fresh: bool | None = None
    bit_equal_to_default: bool | None = None
    max_difference_to_default: float | None = None
    fallbacks: list[dict[str, str]] = field(default_factory=list)
    """pygraph and clean: [{graph, reason}] of compiled graphs that do not run as CUDA graphs."""
    extra: dict[str, Any] = field(default_factory=dict)

    def take_reports(self, reports: Sequence[GraphReport]) -> None:
        """Of the graphs that are still called."""
        self.fallbacks = [
            {name: shareable(text) for name, text in each.items()} for each in fallbacks(reports)
        ]
        self.extra["graphs"] = [
            {
                "name": each.name,
                "state": each.state,
                "calls": each.calls,
                "replays": each.replays,
                "programs": each.programs,
                "limit": each.limit,
            }
            for each in reports
        ]

    def take_launched(self, seen: Launched) -> None:
        self.kernels, self.graphs = seen.kernels, seen.graph_launches
        self.outside = seen.kernels - seen.kernels_in_graphs


def read_records(document: Mapping[str, Any]) -> list[Record]:
    return [restored(Record, each) for each in document["records"]]


def ratios(modes: Modes) -> dict[str, float | None]:
    return {name: find(modes) for name, find in RATIOS.items()}


def summarize(records: Sequence[Record]) -> dict[str, Any]:
    rows = by_mode(records)
    found: dict[str, Any] = {}
    for name, find in RATIOS.items():
        values = [value for modes in rows.values() if (value := find(modes)) is not None]
        found[name] = {"geomean": geomean(values), "patterns": len(values)}
    wrong = [each for each in records if not each.correct and not each.not_run]
    compared = [
        each for each in records if each.mode == "pygraph" and each.bit_equal_to_default is not None
    ]
    return {
        "latency": found,
        "goals": goals(rows),
        "counts": {
            "patterns": len(rows),
            "records": len(records),
            "timed": sum(each.timed for each in records),
            "wrong": len(wrong),
            "not_run": sum(each.not_run for each in records),
            "pygraph_bit_equal": sum(bool(each.bit_equal_to_default) for each in compared),
            "pygraph_compared": len(compared),
        },
        "wrong": [f"{each.workload}, {each.mode}: {each.error}" for each in wrong],
    }


def document(
    records: Sequence[Record],
    environment: Mapping[str, Any],
    command: str,
    phases: Mapping[str, Mapping[str, float]],
    settings: Mapping[str, Any],
    errors: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """`phases`: by pattern, where the seconds went. `errors`: patterns whose process failed."""
    rows = by_mode(records)
    return {
        "env": dict(environment),
        "command": command,
        "settings": dict(settings),
        "patterns": {
            name: {"theme": THEME_OF[name], "about": PATTERNS[name].about, **ratios(modes)}
            for name, modes in rows.items()
        },
        "records": [asdict(each) for each in records],
        "summary": summarize(records),
        "phases": {name: dict(seconds) for name, seconds in phases.items()},
        "errors": [dict(each) for each in errors],
    }
