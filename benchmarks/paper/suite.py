"""All workloads, each in a process of its own; a crash or a time-out of one costs only that one.

Several compile at once; for its captures and the clocks each is alone on the machine (turns.py).
The file is saved after each workload, and what it has is not measured again. While it runs, a table
shows what every workload is at.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness.jobs import Job, Outcome, Running, in_turn, together
from benchmarks.harness.record import shareable
from benchmarks.harness.targets import Target
from benchmarks.harness.turns import Clocks, status
from benchmarks.paper import costs
from benchmarks.paper.progress import Progress
from benchmarks.paper.record import Document, Row
from benchmarks.paper.report.targets import evaluate
from benchmarks.paper.run import about_of
from benchmarks.paper.workloads.catalogue import WORKLOADS

STARTING_S = 60.0
NO_LIMIT_S = 7 * 86400.0


@dataclass(frozen=True)
class PaperJob(Job):
    resumed: str = "{}"
    worker: str = field(default="benchmarks.paper.worker", kw_only=True)

    def command(self) -> list[str]:
        return [*super().command(), "--resumed", self.resumed]


@dataclass(frozen=True)
class Plan:
    """What is to be measured, and how."""

    workloads: tuple[str, ...]
    modes: tuple[str, ...] = ()
    """Empty: all that there are."""
    device: str = "cuda"
    tiny: bool = False
    preparing: int = 3
    """Workloads that compile and capture at once, before each is timed alone."""
    seconds: float = 8.0
    """Of the clocks, per workload."""
    limit_s: float = 900.0
    """Per workload, the time left out in which it is stopped for others' clocks."""
    budget_s: float = NO_LIMIT_S
    """For everything: what was not begun by then is left for another run."""

    @property
    def extra(self) -> list[str]:
        return ["--device", self.device, *(["--tiny"] if self.tiny else [])]


class Suite:
    """A run: its jobs, and the file that they fill."""

    def __init__(self, plan: Plan, document: Document, command: str, console: Console) -> None:
        self.plan, self.document, self.console = plan, document, console
        self.command = command
        self.deadline = time.monotonic() + plan.budget_s
        self.started, self.run_number = 0.0, 0
        self.memory_gib = math.inf

    def targets(self) -> list[Target]:
        """On the CPU there is nothing to be judged: its figures mean nothing."""
        if self.plan.device != "cuda" or self.plan.tiny:
            return []
        return evaluate(tuple(WORKLOADS), self.document.rows)

    def save(self) -> None:
        seconds = time.monotonic() - self.started
        self.document.runs[self.run_number]["seconds"] = round(seconds, 1)
        self.document.save([target.to_dict() for target in self.targets()])

    def run(self) -> None:
        """Raises ValueError where the file is from another machine, RuntimeError where the machine
        cannot be asked."""
        names = [name for name in self.plan.workloads if not self.document.done(name)]
        if not names:
            return
        self.started = time.monotonic()
        env = self._environment()
        self.memory_gib = env.get("gpu_memory_gib") or math.inf
        self.run_number = self.document.begin(env, self.command)
        with (
            tempfile.TemporaryDirectory() as folder,
            Progress(self.console, names, Path(folder)) as progress,
        ):
            self._measure(names, Path(folder), progress)
        self.save()

    def problems(self) -> list[str]:
        """What was not measured, or went wrong: empty if all ran right."""
        found = []
        for name in self.plan.workloads:
            row = self.document.rows.get(name)
            if row is None:
                found.append(f"{name}: not run")
            elif row.error is not None:
                found.append(f"{name}: {row.error}")
            else:
                wrong = [each for each in row.records if not each.timed]
                found += [f"{name}, {each.mode}: {each.error}" for each in wrong]
        return found

    def _environment(self) -> dict[str, Any]:
        outcomes: list[Outcome] = []
        job = PaperJob("environment", self.plan.workloads[0], "all", STARTING_S)
        in_turn([job], self.deadline, outcomes.append, self.plan.extra)
        if outcomes[0].error is not None:
            raise RuntimeError(f"what this machine is could not be found out: {outcomes[0].error}")
        return outcomes[0].result

    def _measure(self, names: Sequence[str], turns: Path, progress: Progress) -> None:
        clocks = Clocks(turns)
        extra = [*self.plan.extra, "--seconds", str(self.plan.seconds), "--turns", str(turns)]
        mode = ",".join(self.plan.modes) or "all"
        longest_first = sorted(names, key=lambda name: -costs.of(name).minutes)
        jobs = [PaperJob("measure", name, mode, self.plan.limit_s) for name in longest_first]

        def done(outcome: Outcome) -> Job | None:
            name = outcome.job.model
            if outcome.result is not None and "again" in outcome.result:
                clocks.forget(name)
                known = json.dumps(outcome.result["again"])
                return PaperJob("measure", name, mode, self.plan.limit_s, known)
            self._store(outcome, status(turns, name))
            progress.measured(name, self.document.rows.get(name), outcome.seconds)
            self.save()
            return None

        def tick(running: Sequence[Running]) -> None:
            clocks.tick(running)
            progress.tick()

        def fits(job: Job, running: Sequence[Running]) -> bool:
            names = [job.model, *(each.job.model for each in running)]
            return sum(costs.of(name).memory_gib for name in names) <= self.memory_gib

        threads = max(1, 2 * (os.cpu_count() or 1) // self.plan.preparing)
        most = self.plan.preparing
        together(jobs, self.deadline, done, most, threads, extra=extra, tick=tick, fits=fits)

    def _store(self, outcome: Outcome, doing: str = "") -> None:
        """`doing`: what it was at when it ended."""
        name = outcome.job.model
        if not outcome.ran:
            return  # there is nothing to tell: another run goes on with it
        if outcome.error is not None:
            error = shareable(outcome.error) + (f" ({doing})" if doing else "")
            row = Row(name, about_of(WORKLOADS[name]), error=error)
        else:
            row = Row.from_dict(name, outcome.result["row"])
        if row.error is not None or any(each.error is not None for each in row.records):
            # Beside the record, for whoever looks into it; not part of it: it is full of paths.
            folder = self.document.path.with_suffix(".logs")
            folder.mkdir(parents=True, exist_ok=True)
            Path(folder, f"{name}.txt").write_text(outcome.log)
        row.run, row.seconds = self.run_number, round(outcome.seconds, 1)
        rows = self.document.rows | {name: row}
        self.document.rows = {each: rows[each] for each in WORKLOADS if each in rows}
