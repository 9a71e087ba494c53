"""All scenarios, each in a process of its own."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness import suite
from benchmarks.harness.figures import Modes
from benchmarks.selection.record import Record, document
from benchmarks.selection.table import in_short


@dataclass(frozen=True)
class Plan(suite.Plan):
    scenarios: tuple[str, ...]
    tiny: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return self.scenarios

    @property
    def arguments(self) -> list[str]:
        return [*super().arguments, *(["--tiny"] if self.tiny else [])]


class Suite(suite.Suite):
    worker = "benchmarks.selection.worker"
    one = "scenario"
    kind = Record

    def document(self) -> dict[str, Any]:
        settings = asdict(self.plan)
        return document(self.records, self.env, self.command, self._phases, settings, self.errors)

    def in_short(self, modes: Modes) -> str:
        return in_short(modes)
