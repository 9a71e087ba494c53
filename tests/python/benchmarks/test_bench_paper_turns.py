"""Turns for the clocks: while one worker is timed, the others stand still."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.harness.jobs import Job, Outcome, Running, together
from benchmarks.harness.turns import WAITING, Clocks, Turn, status

# Counts until it is told to stop, so that standing still shows; then asks for its turn.
WORKER = """
import json, sys, time
sys.path[:0] = {path!r}
from pathlib import Path
from benchmarks.harness.turns import Turn
out = sys.argv[sys.argv.index("--out") + 1]
sys.stdin.readline()
turn = Turn(Path({folder!r}), {name!r})
began = turn.clock()
turn.tell("prepares")
ticks = []
for _ in range({ticks}):
    time.sleep(0.01)
    ticks.append(time.monotonic())
prepared = turn.clock() - began
with turn.alone():
    alone = time.monotonic()
    time.sleep(0.5)
    done = time.monotonic()
    if {behind}:
        turn.give_up()
        time.sleep({behind})
json.dump({{"result": [ticks, prepared, alone, done]}}, open(out, "w"))
"""


@dataclass(frozen=True)
class Ticking(Job):
    folder: str = ""
    ticks: int = 5
    behind: float = 0.0
    """Seconds that it goes on for when it has given up its turn."""

    def command(self) -> list[str]:
        import pygraph

        path = [str(Path(pygraph.__file__).parents[1])]
        code = WORKER.format(
            path=path,
            folder=self.folder,
            name=self.model,
            ticks=self.ticks,
            behind=self.behind,
        )
        return [sys.executable, "-c", code]


def test_others_stand_still_while_one_is_timed(tmp_path: Path) -> None:
    jobs = [
        Ticking("measure", "quick", folder=str(tmp_path), ticks=3, limit_s=60.0),
        Ticking("measure", "slow", folder=str(tmp_path), ticks=300, limit_s=60.0),
        Ticking("measure", "other", folder=str(tmp_path), ticks=3, limit_s=60.0),
    ]
    clocks, outcomes = Clocks(tmp_path), dict[str, Outcome]()

    def done(outcome: Outcome) -> None:
        outcomes[outcome.job.model] = outcome

    together(jobs, time.monotonic() + 60, done, 3, tick=clocks.tick)
    assert all(each.error is None for each in outcomes.values())
    ticks, prepared, alone, _ = outcomes["slow"].result
    spans = [outcomes[name].result[2:] for name in ("quick", "slow", "other")]
    spans.sort()
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    # Two were timed before: it stood still for a second of theirs, but for the first moments.
    during = [
        sum(begin + 0.2 < tick < end for tick in ticks)
        for begin, end in (outcomes[name].result[2:] for name in ("quick", "other"))
    ]
    assert during == [0, 0]
    wall = alone - ticks[0]
    assert prepared < wall - 0.5  # what it took the time of leaves that out
    assert outcomes["slow"].seconds < wall + 1.0


def test_a_clock_does_not_run_while_stopped(tmp_path: Path) -> None:
    turn = Turn(tmp_path, "A")
    before = turn.clock()
    (tmp_path / "A.stopped").write_text("100.0")
    assert -100.0 <= turn.clock() - before < -90.0
    Clocks(tmp_path).forget("A")
    assert 0.0 <= turn.clock() - before < 10.0


def test_status_is_empty_before_anything_is_said(tmp_path: Path) -> None:
    assert status(tmp_path, "A") == ""
    Turn(tmp_path, "A").tell(WAITING)
    assert status(tmp_path, "A") == WAITING


def test_a_stopped_job_can_be_ended(tmp_path: Path) -> None:
    running = Running(Ticking("measure", "A", folder=str(tmp_path), ticks=10_000), tmp_path)
    running.go()
    running.stop()
    assert running.is_stopped
    seconds = running.seconds
    time.sleep(0.2)
    assert running.seconds == seconds and running.standing_s > 0.1
    started = time.monotonic()
    running.end()
    assert time.monotonic() - started < 5.0


def test_a_job_that_does_not_fit_lets_others_pass() -> None:
    began: list[str] = []

    def fits(job: Job, running: Sequence[Running]) -> bool:
        return job.model != "large"

    @dataclass(frozen=True)
    class Noted(Job):
        def command(self) -> list[str]:
            began.append(self.model)
            return [sys.executable, "-c", "import time; time.sleep(0.3)"]

    jobs = [Noted("measure", name) for name in ("small", "large", "another")]
    together(jobs, time.monotonic() + 60, lambda _: None, 2, fits=fits)
    assert began == ["small", "another", "large"]


def test_what_a_job_returns_runs_next() -> None:
    outcomes: list[Outcome] = []

    @dataclass(frozen=True)
    class Named(Job):
        def command(self) -> list[str]:
            return [sys.executable, "-c", f"import os; print('no {self.model}'); os._exit(3)"]

    def done(outcome: Outcome) -> Job | None:
        outcomes.append(outcome)
        return Named("measure", "B") if outcome.job.model == "A" else None

    together([Named("measure", "A")], time.monotonic() + 60, done, 1)
    assert [each.error for each in outcomes] == ["exit status 3: no A", "exit status 3: no B"]
    assert outcomes[0].log == "no A\n"


def test_a_turn_that_is_given_up_is_the_next_ones(tmp_path: Path) -> None:
    jobs = [
        Ticking("measure", name, folder=str(tmp_path), limit_s=60.0, behind=3.0)
        for name in ("one", "other")
    ]
    outcomes = dict[str, Outcome]()

    def done(outcome: Outcome) -> None:
        outcomes[outcome.job.model] = outcome

    together(jobs, time.monotonic() + 60, done, 2, tick=Clocks(tmp_path).tick)
    first, second = sorted(each.result[2:] for each in outcomes.values())
    # Behind the other's clocks, and not behind its whole life.
    assert first[1] <= second[0] < first[1] + 2.0
