"""A run of many jobs: each outcome is told, stored and saved, and a failure costs only its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from benchmarks.harness.jobs import Job, Outcome, in_turn, together
from benchmarks.harness.record import shareable


@dataclass
class Session:
    worker: str
    """The module that jobs run."""
    limits_s: Mapping[str, float]
    """Per job, by kind."""
    budget_s: float
    console: Console
    save: Callable[[], None]
    options: Sequence[str] = ()
    """Of all jobs."""
    errors: list[dict[str, Any]] = field(default_factory=list)
    """[{job, error, ran}], also of what there was no time for, which has not run."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By part, added up over the runs that made a file."""

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.budget_s

    def job(self, kind: str, model: str, mode: str = "default") -> Job:
        return Job(kind, model, mode, self.limits_s[kind], worker=self.worker)

    def fail(self, name: str, error: str, ran: bool = True) -> None:
        self.errors.append({"job": name, "error": shareable(error), "ran": ran})
        self.console.print(Text(f"  {name}: {shareable(error)}", style="red"))

    def run(
        self,
        jobs: Sequence[Job],
        store: Callable[[Outcome], None] = lambda _: None,
        most: int = 1,
        options: Sequence[str] = (),
    ) -> None:
        """In turn, or up to `most` at once."""

        def done(outcome: Outcome) -> None:
            if outcome.error is not None:
                self.fail(outcome.job.name, outcome.error, outcome.ran)
            else:
                store(outcome)
                self.console.print(Text(f"  {outcome.job.name} ({outcome.seconds:.0f} s)"))
            self.save()

        options = [*self.options, *options]
        if most > 1:
            # More threads than cores: compilers wait for each other, and some jobs end early.
            threads = max(1, 2 * (os.cpu_count() or 1) // max(1, min(most, len(jobs))))
            together(jobs, self.deadline, done, most, threads, options)
        else:
            in_turn(jobs, self.deadline, done, options)

    def part(self, name: str, step: Callable[[], None]) -> None:
        """Timed and saved; what it raises is noted."""
        started = time.monotonic()
        try:
            step()
        except Exception as error:
            self.fail(name, f"{type(error).__name__}: {error}")
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started
        self.save()
