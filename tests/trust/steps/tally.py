"""What many whole steps came to: above all, how much was replayed, and with which features."""

from __future__ import annotations

import collections
import dataclasses

from ..tally import Counts, _counter
from .check import StepOutcome
from .programs import WholeStep
from .strategies import UNGRAPHED


@dataclasses.dataclass
class StepTally(Counts):
    raised: int = 0  #: calls that raised on both sides
    graphs: int = 0
    replayed: int = 0  #: programs of which some call was
    replayable: int = 0  #: programs without a feature that runs as it is, that seldom raise
    replayable_replayed: int = 0
    drawn: collections.Counter[str] = dataclasses.field(default_factory=_counter)
    #: The features of replayable programs.
    in_replayable: collections.Counter[str] = dataclasses.field(default_factory=_counter)
    with_replays: collections.Counter[str] = dataclasses.field(default_factory=_counter)
    unexpected: collections.Counter[str] = dataclasses.field(default_factory=_counter)

    def add(self, program: WholeStep, outcome: StepOutcome) -> None:
        self.programs += 1
        self.calls += outcome.calls
        self.raised += outcome.raised
        self.replays += outcome.replays
        self.graphs += outcome.programs
        self.add_reasons(outcome.reasons)
        features = set(program.features)
        self.drawn.update(features)
        if outcome.replays:
            self.replayed += 1
            self.with_replays.update(features)
        if not features & UNGRAPHED and outcome.raised < outcome.calls / 2:
            self.replayable += 1
            self.in_replayable.update(features)
            self.replayable_replayed += outcome.replays > 0
            if not outcome.replays:
                self.unexpected.update(outcome.reasons[:1] or ["no reason"])

    def replayed_share(self) -> float:
        """Of all calls."""
        return self.replays / self.calls if self.calls else 0.0

    def replayable_share(self) -> float:
        """Programs with replays, among those that nothing keeps from it."""
        return self.replayable_replayed / self.replayable if self.replayable else 0.0

    def never_replayed(self, least: int = 1) -> list[str]:
        """Features of `least` replayable programs or more, none of which was replayed."""
        return sorted(
            name
            for name, count in self.in_replayable.items()
            if count >= least and not self.with_replays[name]
        )

    def shares(self) -> dict[str, float]:
        return {
            "replayed_share": self.replayed_share(),
            "replayable_share": self.replayable_share(),
        }

    def headlines(self) -> list[str]:
        features = ", ".join(
            f"{name} {self.with_replays[name]}/{count}"
            for name, count in sorted(self.drawn.items())
        )
        return [
            f"{self.programs} whole steps, {self.calls} calls, {self.raised} of which raised on "
            "both sides",
            f"{self.replays} calls replayed ({self.replayed_share():.1%}), by {self.graphs} graphs",
            f"programs with replays: {self.replayed}; of those that nothing keeps from it: "
            f"{self.replayable_replayed} of {self.replayable} ({self.replayable_share():.1%})",
            f"programs with replays, by feature: {features}",
            f"never replayed: {', '.join(self.never_replayed()) or 'none'}",
        ]

    def tables(self) -> list[tuple[str, collections.Counter[str]]]:
        return [("why not", self.reasons), ("not expected", self.unexpected)]
