"""What a run of many programs came to: counts that add up over workers, and failures."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, Self

from .check import Outcome
from .programs import Program

GRAPHED = ("graphed", "graphed, partly copied")


def _counter() -> collections.Counter[str]:
    return collections.Counter()


@dataclasses.dataclass
class Counts:
    """What is counted of any kind of program."""

    programs: int = 0
    calls: int = 0  #: that users made
    replays: int = 0
    reasons: collections.Counter[str] = dataclasses.field(default_factory=_counter)
    failures: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def add(self, program: Any, outcome: Any) -> None:
        raise NotImplementedError

    def shares(self) -> dict[str, float]:
        raise NotImplementedError

    def headlines(self) -> list[str]:
        raise NotImplementedError

    def tables(self) -> list[tuple[str, collections.Counter[str]]]:
        raise NotImplementedError

    def add_reasons(self, reasons: Iterable[str]) -> None:
        self.reasons.update(re.sub(r"\d+", "#", reason)[:160] for reason in reasons)

    def merge(self, other: Self) -> None:
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if isinstance(mine, collections.Counter):
                mine.update(theirs)
            else:
                setattr(self, field.name, mine + theirs)

    def to_dict(self) -> dict[str, Any]:
        found = dataclasses.asdict(self)
        for field in dataclasses.fields(self):
            if isinstance(getattr(self, field.name), collections.Counter):
                found[field.name] = dict(getattr(self, field.name).most_common())
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
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
        lines = self.headlines()
        for title, counts in self.tables():
            lines += [f"  {title}: {count} {text}" for text, count in counts.most_common(12)]
        for failure in self.failures:
            lines.append(
                f"FAILED: {failure['error']}\nagain: {failure['command']}\n{failure['reproducer']}"
            )
        return "\n".join(lines)


@dataclasses.dataclass
class Tally(Counts):
    """Of programs that torch.compile is given."""

    through_dynamo: int = 0
    steps: int = 0
    graph_calls: int = 0  #: that reached compiled graphs
    copies: int = 0
    wide_programs: int = 0  #: with a graph of more than one lane
    wide_graphs: int = 0  #: that have more than one lane
    #: Graphs that were linked and proven, by their lanes.
    lanes: collections.Counter[str] = dataclasses.field(default_factory=_counter)
    #: Why graphs do not run in lanes that they were to run in: never, where all is right.
    in_a_row: collections.Counter[str] = dataclasses.field(default_factory=_counter)
    states: collections.Counter[str] = dataclasses.field(default_factory=_counter)
    graph_states: collections.Counter[str] = dataclasses.field(default_factory=_counter)
    torch_differs: collections.Counter[str] = dataclasses.field(default_factory=_counter)
    operations: collections.Counter[str] = dataclasses.field(default_factory=_counter)

    def add(self, program: Program, outcome: Outcome) -> None:
        self.programs += 1
        self.through_dynamo += program.dynamo
        self.steps += len(program.lines)
        self.calls += len(program.calls)
        self.graph_calls += outcome.calls
        self.replays += outcome.replays
        self.copies += outcome.copies
        wide = sum(lanes > 1 for lanes in outcome.lanes)
        self.wide_programs += wide > 0
        self.wide_graphs += wide
        self.lanes.update(f"{lanes} lane{'s'[: lanes != 1]}" for lanes in outcome.lanes)
        self.in_a_row.update(outcome.in_a_row)
        self.states[outcome.state if outcome.torch_differs is None else "torch differs"] += 1
        self.graph_states.update(outcome.states)
        self.add_reasons(outcome.reasons)
        self.operations.update(program.operations)
        if outcome.torch_differs is not None:
            self.torch_differs[outcome.torch_differs] += 1

    def graphed_share(self) -> float:
        """Programs all of whose graphs were linked and proven, among those that torch itself
        compiles rightly."""
        counted = self.programs - self.states["torch differs"]
        return sum(self.states[state] for state in GRAPHED) / counted if counted else 0.0

    def wide_share(self) -> float:
        """Programs with a graph of more than one lane."""
        return self.wide_programs / self.programs if self.programs else 0.0

    def shares(self) -> dict[str, float]:
        return {"graphed_share": self.graphed_share(), "wide_share": self.wide_share()}

    def headlines(self) -> list[str]:
        return [
            f"{self.programs} programs ({self.through_dynamo} through Dynamo, {self.steps} steps, "
            f"{len(self.operations)} operations), {self.calls} calls",
            f"{self.replays} of {self.graph_calls} calls of compiled graphs replayed, "
            f"{self.copies} copies",
            f"all graphs linked and proven: {self.graphed_share():.1%} of programs",
            f"{self.wide_graphs} of {self.lanes.total()} of these graphs have more than one lane, "
            f"in {self.wide_share():.1%} of programs",
        ]

    def tables(self) -> list[tuple[str, collections.Counter[str]]]:
        return [
            ("programs", self.states),
            ("graphs", self.graph_states),
            ("lanes", self.lanes),
            ("why not", self.reasons),
            ("why in a row", self.in_a_row),
            ("torch against eager", self.torch_differs),
        ]
