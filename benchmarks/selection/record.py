"""What is stored of one scenario in one mode of `./run bench-selection`, and the summary.

Beside the modes that are measured stands the row `best` of each scenario: the figures of the
fastest of modes.STATIC, and which one that is.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from benchmarks.harness.measure import Samples
from benchmarks.harness.record import by_mode, restored, shareable
from benchmarks.harness.reports import fallbacks
from benchmarks.harness.timed import Timed
from benchmarks.selection import goals
from benchmarks.selection.catalogue import SCENARIOS, THEME_OF
from pygraph.reporting import GraphReport
from pygraph.reporting.text import selection_lines

SETTINGS = {
    "cost_us": "one figure per scenario, by what its caller does. waits: microseconds from a call "
    "until the GPU is idle; flows: microseconds per call of many in a row, and one wait behind "
    "them. A mean per round, and of all rounds the median",
    "cost_error_us": "standard error of that median, from the rounds",
    "latency_us": "from a call until the GPU is idle, whatever the caller does; p10, p90, p99 and "
    "worst are of that",
    "pipelined_us": "per call of many in a row, whatever the caller does",
    "best": "the mode of least cost of default and PyGraph's static choices",
    "noise": "how far a ratio of costs may be off: two measurements of one choice "
    "(pygraph-always, and again), or twice the standard errors, whichever is more",
    "inputs": "a pool of buffers in turn, each with other values at another address",
}
PER_MAD = 1.4826
"""Of a normal distribution: its standard deviation, in median absolute deviations."""
OF_MEDIAN = 1.2533
"""And the standard error of a median in times of that of a mean."""


@dataclass
class Record(Timed):
    not_run = False

    caller: str = ""
    """What the scenario's caller does: waits or flows."""
    cost_us: float | None = None
    """The figure that counts; SETTINGS says what it is."""
    cost_error_us: float | None = None
    rounds: int = 0
    of: str | None = None
    """best: the mode whose figures these are."""
    compile_s: float | None = None
    """Up to the end of the first call; of caches on disk default has filled Inductor's for all
    others."""
    cold: dict[str, int] = field(default_factory=dict)
    """Graphs that a cache on disk did not have, by figures.NOT_CACHED."""
    settled: bool | None = None
    """pygraph's modes: nothing was undecided any more when the clocks began."""
    settling_calls: int | None = None
    """Calls behind the first until the steady state, or until patience ended."""
    settling_s: float | None = None
    """Of these, with captures and proofs."""
    compiled_in_clocks: int | None = None
    """What Dynamo compiled while the clocks ran, for all modes together."""
    peak_mib: float | None = None
    reserved_mib: float | None = None
    bytes_copied: float | None = None
    """pygraph's modes: per call."""
    replayed: float | None = None
    """pygraph's modes: the share of the graphs' calls that a graph served, while the clocks ran."""
    selection: list[str] = field(default_factory=list)
    """pygraph's modes: what was decided, and why, as the report says it."""
    fallbacks: list[dict[str, str]] = field(default_factory=list)
    """pygraph's modes: [{graph, reason}] of what is not a graph."""
    error: str | None = None
    relative_error: float | None = None
    fresh: bool | None = None
    bit_equal_to_default: bool | None = None
    max_difference_to_default: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def take_cost(self, samples: Samples, rounds: int, waits: bool) -> None:
        """From the samples of the caller's own behaviour."""
        costs = samples.pipelined
        if waits:
            many = len(samples.latency) // rounds
            parts = [samples.latency[n * many : (n + 1) * many] for n in range(rounds)]
            costs = list(map(statistics.fmean, parts))
        middle = statistics.median(costs)
        spread = PER_MAD * statistics.median(abs(each - middle) for each in costs)
        self.cost_us, self.rounds = middle, len(costs)
        self.cost_error_us = OF_MEDIAN * spread / len(costs) ** 0.5

    def take_reports(self, reports: Sequence[GraphReport]) -> None:
        self.selection = [
            shareable(f"{graph.name}: {line}")
            for graph in reports
            for line in selection_lines(graph)
        ]
        self.fallbacks = [
            {name: shareable(text) for name, text in each.items()} for each in fallbacks(reports)
        ]


def read_records(document: Mapping[str, Any]) -> list[Record]:
    """Of the modes that were measured."""
    return [restored(Record, each) for each in document["records"] if each["mode"] != "best"]


def with_best(records: Sequence[Record]) -> list[Record]:
    """And the row `best` of each scenario that has one."""
    found: list[Record] = []
    for modes in by_mode(records).values():
        found += modes.values()
        name = goals.best(modes)
        if name is not None:
            found.append(replace(modes[name], mode="best", of=name))
    return found


def summarize(records: Sequence[Record]) -> dict[str, Any]:
    rows = by_mode(records)
    wrong = [each for each in records if not each.correct]
    return {
        "goals": [each.to_dict() for each in goals.targets(rows)],
        **goals.summary(rows),
        "counts": {
            "scenarios": len(rows),
            "records": len(records),
            "timed": sum(each.timed for each in records),
            "wrong": len(wrong),
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
    """`phases`: by scenario, where the seconds went. `errors`: those whose process failed."""
    rows = by_mode(records)
    return {
        "env": dict(environment),
        "command": command,
        "settings": {**settings, **SETTINGS},
        "scenarios": {
            name: {
                "theme": THEME_OF[name],
                "about": SCENARIOS[name].about,
                "caller": SCENARIOS[name].behaviour,
                **goals.ratios(modes),
            }
            for name, modes in rows.items()
        },
        "records": [asdict(each) for each in with_best(records)],
        "summary": summarize(records),
        "phases": {name: dict(seconds) for name, seconds in phases.items()},
        "errors": [dict(each) for each in errors],
    }
