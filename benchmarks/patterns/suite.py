"""All patterns, each in a process of its own. The profiler, which only counts, runs behind the turn
of the clocks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness import suite
from benchmarks.harness.figures import Modes
from benchmarks.patterns.record import Record, document
from benchmarks.patterns.table import in_short


@dataclass(frozen=True)
class Plan(suite.Plan):
    patterns: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return self.patterns


class Suite(suite.Suite):
    worker = "benchmarks.patterns.worker"
    one = "pattern"
    kind = Record

    def document(self) -> dict[str, Any]:
        settings = asdict(self.plan)
        return document(self.records, self.env, self.command, self._phases, settings, self.errors)

    def in_short(self, modes: Modes) -> str:
        return in_short(modes)
