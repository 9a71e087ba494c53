"""All rows, each in a process of its own; a crash or a time-out of one costs only that one.

First the rows' code is compiled at once, so that Inductor's caches on disk are filled. Then the
rows are measured one after the other, for they are weighed by the driver's figures, too; the next
one's process imports everything meanwhile, and waits. The record is saved after each.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from benchmarks.callables.catalogue import ROWS
from benchmarks.callables.modes import COMPILED
from benchmarks.callables.record import Document, Record
from benchmarks.callables.table import wrong
from benchmarks.callables.targets import evaluate
from benchmarks.harness.jobs import Outcome
from benchmarks.harness.record import restored
from benchmarks.harness.session import Session
from benchmarks.harness.targets import Target

LIMITS_S = {"environment": 60.0, "compile": 150.0, "measure": 180.0}
COMPILING = 10
"""Processes that compile at once."""


@dataclass(frozen=True)
class Plan:
    """What is to be measured, and how."""

    rows: tuple[str, ...]
    modes: tuple[str, ...]
    device: str = "cuda"
    tiny: bool = False
    budget_s: float = 360.0
    """For everything: rows that are not measured by then are left out."""
    seconds: float = 7.0
    """Of the clocks, per row."""

    @property
    def arguments(self) -> list[str]:
        given = ["--device", self.device, "--seconds", str(self.seconds)]
        return [*given, "--tiny"] if self.tiny else given


class Suite:
    """A run: its jobs, and the record that they fill."""

    def __init__(self, plan: Plan, document: Document, console: Console) -> None:
        self.plan, self.document, self.console = plan, document, console
        self.session = Session(
            "benchmarks.callables.worker",
            LIMITS_S,
            plan.budget_s,
            console,
            self._save,
            plan.arguments,
            document.errors,
            document.seconds,
        )

    def run(self) -> None:
        if self.plan.device == "cuda":
            self.session.part("compile", self._compile)
        self.session.part("measure", self._measure)

    def targets(self) -> list[Target]:
        return evaluate(list(self.document.rows), self.document.records)

    def problems(self) -> list[str]:
        """What was not measured, or went wrong: empty if all ran right."""
        errors = [f"{each['job']}: {each['error']}" for each in self.document.errors]
        return [*errors, *wrong(self.document.records)]

    def _compile(self) -> None:
        """What fails here fails again where it is measured, and is told there."""
        modes = [mode for mode in COMPILED[:2] if mode in self.plan.modes]
        jobs = [self.session.job("compile", row, mode) for mode in modes for row in self.plan.rows]
        known = list(self.document.errors)
        self.session.run(jobs, most=COMPILING)
        self.document.errors[:] = known

    def _measure(self) -> None:
        modes = ",".join(self.plan.modes)
        jobs = [self.session.job("measure", row, modes) for row in self.plan.rows]
        self.session.run(jobs, self._store)

    def _store(self, outcome: Outcome) -> None:
        found = outcome.result
        self.document.take_environment(found["env"])
        name = outcome.job.model
        self.document.rows[name] = {"command": self.document.command, **found["about"]}
        self.document.records += [restored(Record, each) for each in found["records"]]
        order = {row: place for place, row in enumerate(ROWS)}
        self.document.records.sort(key=lambda each: order[each.workload])

    def _save(self) -> None:
        self.document.save([each.to_dict() for each in self.targets()])
