"""All training programs, each in processes of its own, within a budget; a crash costs only one.

precompile  fills Inductor's caches on disk, several programs at once; nothing is measured
time        a process per program: all modes, checked and timed. Several may prepare at once; for
            the clocks each is alone on the GPU
memory      a process per program and mode

Everything that is known is saved after each job, and what a file has already is not done again.
Models that were never tried come first: they are timed, then all are weighed, and then those are
timed that failed before.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from benchmarks.harness.jobs import Outcome
from benchmarks.harness.modes import CONFIGURATIONS
from benchmarks.harness.session import Session
from benchmarks.harness.targets import Target
from benchmarks.training.record import Document, Result, Weight
from benchmarks.training.targets import evaluate

PARTS = ("precompile", "time", "memory")
ORDER = ("precompile", "time", "memory", "time again")
LIMITS_S = {"environment": 60.0, "compile": 240.0, "time": 420.0, "memory": 120.0}
"""Per job; that of "time" includes waiting for its turn."""


@dataclass(frozen=True)
class Plan:
    """What is to be measured, and how."""

    models: tuple[str, ...]
    parts: tuple[str, ...] = ("time", "memory")
    device: str = "cuda"
    tiny: bool = False
    budget_s: float = 520.0
    seconds: float = 8.0
    """Of the clocks, per program."""
    preparing: int = 4
    """Programs that compile and capture at once, before each is timed alone."""
    weighing: int = 7
    """Processes that are weighed at once; with one, the driver's figures are known too."""
    again: tuple[str, ...] = ()
    """Models whose records are dropped first."""

    @property
    def weighed_modes(self) -> tuple[str, ...]:
        on_gpu = ("default", "reduce-overhead", "pygraph")
        return on_gpu if self.device == "cuda" else ("default", "pygraph")

    @property
    def options(self) -> list[str]:
        return ["--device", self.device, *(["--tiny"] if self.tiny else [])]


class Suite:
    """A run: its jobs, and the file that they fill."""

    def __init__(self, plan: Plan, document: Document, console: Console) -> None:
        self.plan, self.document, self.console = plan, document, console
        self.session = Session(
            "benchmarks.training.worker",
            LIMITS_S,
            plan.budget_s,
            console,
            self.save,
            options=plan.options,
            errors=document.errors,
            seconds=document.seconds,
        )
        self.document.settings |= {
            "preparing_at_once": plan.preparing,
            "weighed_at_once": plan.weighing,
            "tiny": plan.tiny,
        }

    def targets(self) -> list[Target]:
        """On the CPU there is nothing to be judged: its figures mean nothing."""
        if self.plan.device != "cuda" or self.plan.tiny:
            return []
        document = self.document
        return evaluate(self.plan.models, document.results, document.weights)

    def save(self) -> None:
        self.document.save([target.to_dict() for target in self.targets()])

    def run(self) -> None:
        """Raises ValueError where the file is from another machine."""
        if self.document.env:
            self._environment()
        self.document.drop(self.plan.again, self.plan.parts)
        # As it stands: what fails in this run is not tried twice.
        failed = frozenset(self.document.failed)
        for step in ORDER:
            part = step.split()[0]
            if part in self.plan.parts:
                names = self._names(step, failed)
                if names:
                    self.console.print(Text(step, style="bold"))
                    self.session.part(part, partial(STEPS[part], self, names))
        self.save()

    def problems(self) -> list[str]:
        """What was not measured, or went wrong: empty if all ran right."""
        found = [f"{each['job']}: {each['error']}" for each in self.document.errors]
        for name in self.plan.models:
            if "time" in self.plan.parts and not self.document.timed(name):
                found.append(f"{name}: not timed")
            found += [
                f"{name}, {mode}: not weighed"
                for mode in self.plan.weighed_modes
                if "memory" in self.plan.parts and not self.document.weighed(name, mode)
            ]
        wrong = [
            each
            for each in self.document.results
            if each.workload in self.plan.models and not each.timed
        ]
        return [*found, *(f"{each.workload}, {each.mode}: {each.error}" for each in wrong)]

    def _names(self, step: str, failed: Collection[str]) -> list[str]:
        """The models that a step is for, those that failed before at the end."""
        names = sorted(self.plan.models, key=lambda name: name in failed)
        if step == "memory":
            weighed = self.document.weighed
            modes = self.plan.weighed_modes
            return [name for name in names if not all(weighed(name, mode) for mode in modes)]
        names = [name for name in names if not self.document.timed(name)]
        if step == "precompile":
            return names
        return [name for name in names if (name in failed) is (step == "time again")]

    def _environment(self) -> None:
        """Whether what the file has can be gone on with, before anything is done."""

        def store(outcome: Outcome) -> None:
            self.document.take_environment(outcome.result)

        self.session.run([self.session.job("environment", self.plan.models[0])], store)

    def precompile(self, names: Sequence[str]) -> None:
        jobs = [
            self.session.job("compile", name, mode)
            for name in sorted(names, key=self.plan.models.index, reverse=True)  # the longest first
            for mode in CONFIGURATIONS
            if self.plan.device == "cuda" or mode == "default"
        ]
        cores = os.cpu_count() or 1
        self.session.run(jobs, lambda _: None, max(2, min(len(jobs), cores)))

    def time(self, names: Sequence[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            lock = Path(folder, "turns")
            extra = ["--turns", str(lock), "--seconds", str(self.plan.seconds)]
            jobs = [self.session.job("time", name) for name in names]
            self.session.run(jobs, self._store_times, self.plan.preparing, extra)

    def _store_times(self, outcome: Outcome) -> None:
        found = outcome.result
        self.document.take_environment(found["env"])
        self.document.models[outcome.job.model] = {**found["about"], "seconds": outcome.seconds}
        self.document.results += [Result(**each) for each in found["results"]]

    def memory(self, names: Sequence[str]) -> None:
        """The first mode of all models, then the others: Inductor decides by the clock whether to
        pad a matrix, which may be a logits matrix more or less at the peak, and keeps the decision
        for who compiles later."""
        extra = ["--shared"] if self.plan.weighing > 1 else []
        first, *others = self.plan.weighed_modes
        for modes in ([first], others):
            jobs = [
                self.session.job("memory", name, mode)
                for name in names
                for mode in modes
                if not self.document.weighed(name, mode)
            ]
            self.session.run(jobs, self._store_weight, self.plan.weighing, extra)

    def _store_weight(self, outcome: Outcome) -> None:
        self.document.weights.append(Weight(**outcome.result))


STEPS: dict[str, Callable[[Suite, Sequence[str]], None]] = {
    "precompile": Suite.precompile,
    "time": Suite.time,
    "memory": Suite.memory,
}
