"""What a run of many programs came to: counts that add up over workers, and failures."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from .check import Outcome
from .programs import Program

GRAPHED = ("graphed", "graphed, partly copied")


def _counter() -> collections.Counter[str]:
    return collections.Counter()


@dataclasses.dataclass
class Tally:
    programs: int = 0
    through_dynamo: int = 0
    steps: int = 0
    calls: int = 0  #: that users made
    graph_calls: int = 0  #: that reached compiled graphs
    replays: int = 0
    copies: int = 0
    states: collections.Counter[str] = dataclasses.field(default_factory=_counter)
    graph_states: collections.Counter[str] = dataclasses.field(default_factory=_counter)
    reasons: collections.Counter[str] = dataclasses.field(default_factory=_counter)
    torch_differs: collections.Counter[str] = dataclasses.field(default_factory=_counter)
    operations: collections.Counter[str] = dataclasses.field(default_factory=_counter)
    failures: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def add(self, program: Program, outcome: Outcome) -> None:
        self.programs += 1
        self.through_dynamo += program.dynamo
        self.steps += len(program.lines)
        self.calls += len(program.calls)
        self.graph_calls += outcome.calls
        self.replays += outcome.replays
        self.copies += outcome.copies
        self.states[outcome.state if outcome.torch_differs is None else "torch differs"] += 1
        self.graph_states.update(outcome.states)
        self.reasons.update(re.sub(r"\d+", "#", reason)[:160] for reason in outcome.reasons)
        self.operations.update(program.operations)
        if outcome.torch_differs is not None:
            self.torch_differs[outcome.torch_differs] += 1

    def merge(self, other: Tally) -> None:
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if isinstance(mine, collections.Counter):
                mine.update(theirs)
            else:
                setattr(self, field.name, mine + theirs)

    def graphed_share(self) -> float:
        """Programs all of whose graphs were linked and proven, among those that torch itself
        compiles rightly."""
        counted = self.programs - self.states["torch differs"]
        return sum(self.states[state] for state in GRAPHED) / counted if counted else 0.0

    def to_dict(self) -> dict[str, Any]:
        found = dataclasses.asdict(self)
        for field in dataclasses.fields(self):
            if isinstance(getattr(self, field.name), collections.Counter):
                found[field.name] = dict(getattr(self, field.name).most_common())
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Tally:
        tally = cls()
        for field in dataclasses.fields(cls):
            value = data[field.name]
            setattr(
                tally,
                field.name,
                collections.Counter(value) if isinstance(value, dict) else value,
            )
        return tally

    def summary(self) -> str:
        lines = [
            f"{self.programs} programs ({self.through_dynamo} through Dynamo, {self.steps} steps, "
            f"{len(self.operations)} operations), {self.calls} calls",
            f"{self.replays} of {self.graph_calls} calls of compiled graphs replayed, "
            f"{self.copies} copies",
            f"all graphs linked and proven: {self.graphed_share():.1%} of programs",
        ]
        for title, counts in (
            ("programs", self.states),
            ("graphs", self.graph_states),
            ("why not", self.reasons),
            ("torch against eager", self.torch_differs),
        ):
            lines += [f"  {title}: {count} {text}" for text, count in counts.most_common(12)]
        for failure in self.failures:
            lines.append(f"FAILED: {failure['error']}\n{failure['reproducer']}")
        return "\n".join(lines)
