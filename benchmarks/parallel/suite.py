"""All workloads, each in a process of its own: one that ends early costs no other one anything.

Several compile at once; for captures and clocks each is alone on the machine (harness/turns.py).
The record is saved after each workload.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import suite
from benchmarks.harness.figures import Modes, over
from benchmarks.harness.jobs import Job, Outcome, together
from benchmarks.harness.shown import NOTHING, microseconds, ratio
from benchmarks.harness.turns import Clocks, status
from benchmarks.parallel import timeline
from benchmarks.parallel.modes import FLOOR, PARALLEL, SERIAL
from benchmarks.parallel.record import Record, document
from benchmarks.parallel.workloads import WORKLOADS

LIMIT_S = 400.0
"""Per workload, the time left out in which it is stopped for others' clocks."""


@dataclass(frozen=True)
class Plan(suite.Plan):
    workloads: tuple[str, ...]
    tiny: bool = False
    timelines: Path | None = None
    """The folder of pictures, if they are wanted."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.workloads

    @property
    def arguments(self) -> list[str]:
        return [*super().arguments, *(["--tiny"] if self.tiny else [])]

    def job(self, name: str, floor: bool = True) -> Job:
        """`floor`: whether one can be captured, as far as is known."""
        modes = ",".join(mode for mode in self.modes if floor or mode != FLOOR)
        kind = "measure" if self.timelines is None else "draw"
        return Job(kind, name, modes, LIMIT_S, worker=Suite.worker)


class Suite(suite.Suite):
    worker = "benchmarks.parallel.worker"
    one = "workload"
    kind = Record

    plan: Plan

    def document(self) -> dict[str, Any]:
        return document(self.records, self.env, self.command, self._phases, self.errors)

    def in_short(self, modes: Modes) -> str:
        if SERIAL not in modes or PARALLEL not in modes:
            return ", ".join(f"{mode} {microseconds(r.latency_us)}" for mode, r in modes.items())
        ours = modes[PARALLEL]
        return (
            f"serial {microseconds(modes[SERIAL].latency_us)}, "
            f"parallel {microseconds(ours.latency_us)} us in {ours.extra.get('lanes') or NOTHING} "
            f"lanes; of serial {ratio(over(modes, PARALLEL, SERIAL))}, of the floor "
            f"{ratio(over(modes, PARALLEL, FLOOR))}, pipelined "
            f"{ratio(over(modes, PARALLEL, SERIAL, 'pipelined_us'))}"
        )

    def run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            turns = Path(folder)
            clocks = Clocks(turns)
            impossible: dict[str, str] = {}

            def done(outcome: Outcome) -> Job | None:
                name = outcome.job.model
                why = None if outcome.error else outcome.result.get("without_floor")
                if why is not None and set(self.plan.modes) != {FLOOR}:
                    impossible[name] = why
                    clocks.forget(name)
                    return self.plan.job(name, floor=False)
                if why is not None:
                    outcome = replace(outcome, error=why)
                self._take(outcome, impossible.get(name))
                self._store(outcome, status(turns, name))
                return None

            together(
                [self.plan.job(name) for name in self.plan.names],
                time.monotonic() + self.plan.budget_s,
                done,
                self.plan.preparing,
                # More threads than cores: compilers wait for each other.
                max(1, 2 * (os.cpu_count() or 1) // self.plan.preparing),
                [*self.plan.arguments, "--turns", folder],
                tick=clocks.tick,
            )

    def _take(self, outcome: Outcome, impossible: str | None) -> None:
        """Timelines become pictures; what is known of the floor from an earlier process is put
        down."""
        if outcome.error is not None:
            return
        records, name = outcome.result["records"], outcome.job.model
        found = {each["mode"]: each["extra"].pop("timeline", []) for each in records}
        if self.plan.timelines is not None:
            timeline.draw(name, found, self.plan.timelines / f"{name}.svg")
        if impossible is not None:
            floor = Record(name, WORKLOADS[name].batch, FLOOR, error=impossible)
            floor.extra["kind"] = WORKLOADS[name].kind
            records.append(asdict(floor))


def default_preparing() -> int:
    """How many workloads compile at once: each has a process and compilers of its own."""
    return max(1, (os.cpu_count() or 1) // 2)
