"""Measurements as processes: one after the other or together, each with a limit."""

import itertools
import sys
import time
from dataclasses import dataclass

import pytest

pytest.importorskip("torch")

from benchmarks.harness.jobs import Job, Outcome, in_turn, together

WORKER = """
import json, sys, time
out = sys.argv[sys.argv.index("--out") + 1]
assert sys.stdin.readline() == "go\\n"
began = time.monotonic()
{body}
json.dump({{"result": [began, time.monotonic()]}}, open(out, "w"))
"""


@dataclass(frozen=True)
class Script(Job):
    body: str = ""

    def command(self) -> list[str]:
        return [sys.executable, "-c", WORKER.format(body=self.body)]


def soon(seconds: float = 60.0) -> float:
    return time.monotonic() + seconds


def test_jobs_in_turn_do_not_overlap():
    outcomes: list[Outcome] = []
    in_turn([Script("a", body="time.sleep(0.2)")] * 3, soon(), outcomes.append)
    spans = [outcome.result for outcome in outcomes]
    assert len(spans) == 3
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


def test_a_job_that_dies_costs_only_itself():
    outcomes: list[Outcome] = []
    jobs = [
        Script("a", body="raise ValueError('no luck')"),
        Script("b", body="import os; os._exit(7)"),
        Script("c", body="time.sleep(60)", limit_s=0.5),
        Script("d"),
    ]
    in_turn(jobs, soon(), outcomes.append)
    errors = [outcome.error for outcome in outcomes]
    assert errors[0] == "exit status 1: ValueError: no luck"
    assert errors[1] == "exit status 7: no output"
    assert errors[2] is not None and errors[2].startswith("ended after")
    assert errors[3] is None and outcomes[3].result


def test_no_job_begins_behind_the_deadline():
    outcomes: list[Outcome] = []
    jobs = [Script("a", body="time.sleep(60)"), Script("b")]
    started = time.monotonic()
    in_turn(jobs, soon(1.0), outcomes.append)
    assert time.monotonic() - started < 20
    assert [bool(outcome.error) for outcome in outcomes] == [True, True]
    assert outcomes[1].error == "not run: out of time"
    outcomes.clear()
    together([Script("a")], time.monotonic() - 1, outcomes.append, most=2)
    assert [outcome.error for outcome in outcomes] == ["not run: out of time"]


def test_jobs_together_overlap_up_to_the_limit():
    outcomes: list[Outcome] = []
    together([Script("a", body="time.sleep(1.0)")] * 4, soon(), outcomes.append, most=2)
    spans = [outcome.result for outcome in outcomes]
    busy = [sum(a[0] <= b[0] < a[1] for a in spans) for b in spans]
    assert len(spans) == 4 and max(busy) == 2
