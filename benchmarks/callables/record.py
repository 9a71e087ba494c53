"""What is stored of the benchmark of captured functions, and how a file is read back.

env, command, settings   the machine; how this was called last; how it is measured
rows                     {name: command, about, batch, check, phases, timelines, loop_step_ns: the
                         host's speed before and after the clocks, measure.loop_step_ns()}
records                  [Record], one per row and mode
targets                  [{name, requirement, met, value, limit, detail}]
errors                   [{job, error, ran}], also of what there was no time for
seconds                  by part of the run
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import record
from benchmarks.harness.device import Memory
from benchmarks.harness.measure import Samples
from benchmarks.harness.profile import Launched
from benchmarks.harness.record import shareable
from benchmarks.harness.reports import fallbacks
from benchmarks.harness.timed import Timed
from pygraph.reporting import GraphReport

SETTINGS = {
    "inputs": "16 different buffers in turn, made before the clocks",
    "memory": "growth since before the mode was prepared, its program included; held: after a "
    "collection, with torch's cache given back",
    "prepare_s": "until the steady state, with Inductor's caches on disk filled",
    "random numbers": "as each mode draws them; Inductor's are not eager's",
}


@dataclass
class Record(Timed):
    """One row in one mode."""

    skipped: str | None = None
    """Why it is not run."""
    error: str | None = None
    """Why it is wrong, or what it raised; a wrong mode is not timed."""
    verdict: dict[str, Any] = field(default_factory=dict)
    """check.Verdict."""
    latency_std_us: float | None = None
    prepare_s: float | None = None
    """Compiling, capturing and proving, all first calls included."""
    peak_mib: float | None = None
    """Of calls in the steady state; private pools count whole."""
    reserved_mib: float | None = None
    """The same of what torch's allocator holds."""
    held_allocated_mib: float | None = None
    """Between calls, as the next two."""
    held_reserved_mib: float | None = None
    held_driver_mib: float | None = None
    """By cuMemGetInfo."""
    bytes_copied: float | None = None
    """Per call, to bring inputs in place."""
    kernels: float | None = None
    """Per call by the profiler, as the next two."""
    graphs: float | None = None
    """Launches of graphs."""
    outside: float | None = None
    """Kernels that no graph launched."""
    replays_checked: int | None = None
    """pygraph: calls that graphs served of those that were compared."""
    fallbacks: list[dict[str, str]] = field(default_factory=list)
    """pygraph: [{graph, reason}] of what does not run as a CUDA graph."""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def jitter(self) -> float | None:
        """The 99th percentile over the median."""
        if self.latency_p99_us is None or not self.latency_us:
            return None
        return self.latency_p99_us / self.latency_us

    def take(self, samples: Samples) -> None:
        super().take(samples)
        self.latency_std_us = statistics.pstdev(samples.latency)

    def take_held(self, before: Memory, held: Memory) -> None:
        self.held_allocated_mib = held.allocated - before.allocated
        self.held_reserved_mib = held.reserved - before.reserved
        self.held_driver_mib = held.in_use - before.in_use

    def take_launched(self, seen: Launched) -> None:
        self.kernels, self.graphs = seen.kernels, seen.graph_launches
        self.outside = seen.kernels - seen.kernels_in_graphs

    def take_reports(self, reports: Sequence[GraphReport]) -> None:
        self.fallbacks = [
            {name: shareable(text) for name, text in each.items()} for each in fallbacks(reports)
        ]
        self.extra["graphs"] = [
            {
                "name": each.name,
                "state": each.state,
                "calls": each.calls,
                "replays": each.replays,
                "proof": each.proof,
            }
            for each in reports
        ]


HELD = ("allocated", "reserved", "driver")
"""The counts of memory that is held between calls."""


def beyond_eager(modes: Mapping[str, Record], mode: str) -> dict[str, float] | None:
    """MiB that a mode holds between calls more than eager does, by each count; None where one of
    the two was not weighed."""
    if mode not in modes or "eager" not in modes:
        return None
    pairs = {
        kind: [getattr(modes[each], f"held_{kind}_mib") for each in (mode, "eager")]
        for kind in HELD
    }
    if any(None in pair for pair in pairs.values()):
        return None
    return {kind: own - eager for kind, (own, eager) in pairs.items()}


class Document(record.OneMachine):
    """The file. What it has of rows that are not measured again is kept."""

    def __init__(self, path: Path, command: str, measured: Collection[str]) -> None:
        """`measured`: the rows that are measured now."""
        self.measured = measured
        self.rows: dict[str, dict[str, Any]] = {}
        self.records: list[Record] = []
        super().__init__(path, command, SETTINGS)

    def load(self, content: Mapping[str, Any]) -> None:
        known = [record.restored(Record, each) for each in content.get("records", [])]
        self.records = [each for each in known if each.workload not in self.measured]
        kept = {each.workload for each in self.records}
        self.rows = {name: each for name, each in content.get("rows", {}).items() if name in kept}
        self.env = dict(content.get("env", {})) if kept else {}

    def content(self, targets: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        return {
            **self.head(),
            "rows": self.rows,
            "records": [asdict(each) for each in self.records],
            "targets": list(targets),
            "errors": self.errors,
        }
