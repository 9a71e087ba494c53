"""Workloads, each in a process of its own; a crash or a time-out of one costs only that one.

Many prepare at once; for the clocks each is alone on the machine (turns.py). The record is saved
after each workload.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.text import Text

from benchmarks.harness import record
from benchmarks.harness.figures import Modes
from benchmarks.harness.jobs import Job, Outcome, together
from benchmarks.harness.record import by_mode, restored, shareable
from benchmarks.harness.turns import Clocks, status

LIMIT_S = 240.0
"""Per workload, the time left out in which it is stopped for others' clocks."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be measured, and how. A suite adds its workloads."""

    modes: tuple[str, ...] = ()
    """Empty: all that there are."""
    device: str = "cuda"
    budget_s: float = 480.0
    """For everything: workloads that are not measured by then are left out."""
    seconds: float = 1.5
    """Of the clocks, per workload."""
    preparing: int = 12
    """Workloads that compile and capture at once, before each is timed alone."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """PyGraph's."""

    @property
    def names(self) -> tuple[str, ...]:
        raise NotImplementedError

    @property
    def arguments(self) -> list[str]:
        """Of a worker."""
        given = ["--device", self.device, "--seconds", str(self.seconds)]
        return [*given, "--options", json.dumps(dict(self.options))]


class Suite:
    """A run: its jobs, and the record that they fill, which is written if it has a path."""

    worker: ClassVar[str]
    """The module that measures one workload."""
    one: ClassVar[str]
    """What a workload is called."""
    kind: ClassVar[Any]
    """Of a record of one mode; a subclass of Timed with `error` and `not_run`."""

    def __init__(self, plan: Any, command: str, console: Console, out: Path | None = None) -> None:
        self.plan, self.command, self.console, self.out = plan, command, console, out
        self.env: dict[str, Any] = {}
        self.errors: list[dict[str, Any]] = []
        self._found: dict[str, list[Any]] = {}
        self._phases: dict[str, dict[str, float]] = {}

    @property
    def records(self) -> list[Any]:
        """In the order of the catalogue, whichever workload was measured first."""
        known = self._found
        return [each for name in self.plan.names if name in known for each in known[name]]

    def document(self) -> dict[str, Any]:
        raise NotImplementedError

    def in_short(self, modes: Modes) -> str:
        """A line about a workload."""
        raise NotImplementedError

    def problems(self) -> list[str]:
        """What was not measured, or went wrong: empty if all ran right."""
        wrong = [each for each in self.records if not each.timed and not each.not_run]
        return [
            *(f"{each[self.one]}: {each['error']}" for each in self.errors),
            *(f"{each.workload}, {each.mode}: {each.error}" for each in wrong),
        ]

    def run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            turns = Path(folder)

            def done(outcome: Outcome) -> None:
                self._store(outcome, status(turns, outcome.job.model))

            mode = ",".join(self.plan.modes) or "all"
            together(
                [Job("measure", e, mode, LIMIT_S, worker=self.worker) for e in self.plan.names],
                time.monotonic() + self.plan.budget_s,
                done,
                self.plan.preparing,
                # More threads than cores: compilers wait for each other.
                max(1, 2 * (os.cpu_count() or 1) // self.plan.preparing),
                [*self.plan.arguments, "--turns", folder],
                tick=Clocks(turns).tick,
            )

    def _store(self, outcome: Outcome, doing: str) -> None:
        """`doing`: what it was at when it ended."""
        name = outcome.job.model
        if outcome.error is not None:
            error = shareable(outcome.error) + (f" ({doing})" if doing else "")
            self.errors.append({self.one: name, "error": error, "ran": outcome.ran})
            self.console.print(Text(f"  {name}: {error}", style="red"))
        else:
            found = outcome.result
            self.env = found["env"]
            self._found[name] = [restored(self.kind, each) for each in found["records"]]
            self._phases[name] = found["phases"] | {"all": round(outcome.seconds, 1)}
            said = self.in_short(by_mode(self._found[name])[name])
            self.console.print(Text(f"  {name} ({outcome.seconds:.0f} s): {said}"))
        if self.out is not None:
            record.write(self.out, self.document())
            if name not in self._found or not all(
                each.timed or each.not_run for each in self._found[name]
            ):
                # Beside the record, not part of it: it is full of paths.
                folder = self.out.with_suffix(".logs")
                folder.mkdir(parents=True, exist_ok=True)
                Path(folder, f"{name}.txt").write_text(outcome.log)
