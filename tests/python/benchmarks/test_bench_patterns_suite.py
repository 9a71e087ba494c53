"""The record, the tables and the suite of the patterns, from measurements that were made up."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from rich.console import Console

from benchmarks.harness.jobs import Job
from benchmarks.harness.measure import Samples
from benchmarks.harness.profile import Launched
from benchmarks.patterns import table
from benchmarks.patterns.record import Record, document, read_records, summarize
from benchmarks.patterns.suite import Plan, Suite
from pygraph.reporting import GraphReport

ROOT = Path(__file__).resolve().parents[3]
LATENCY = {"eager": 900.0, "default": 400.0, "reduce-overhead": 250.0, "pygraph": 200.0}
REASON = {"graph": "graph 0", "reason": "copies to the CPU"}


def records(name: str, clean: float | None = 160.0, **ours: Any) -> list[Record]:
    found = [Record(name, 1, mode, correct=True, latency_us=us) for mode, us in LATENCY.items()]
    found.append(Record(name, 1, "clean", correct=clean is not None, latency_us=clean, error="off"))
    for field, value in {
        "bit_equal_to_default": True,
        "graphs": 2.0,
        "outside": 3.5,
        **ours,
    }.items():
        setattr(found[3], field, value)
    return found


def cells(made: Any, row: int = 0) -> dict[str, str]:
    return dict(zip(made.head, made.rows[row], strict=True))


def test_the_ratios_of_a_row():
    shown = cells(table.latency(records("print")))
    assert shown["pygraph / clean"] == "1.25" and shown["pygraph / best of torch"] == "0.80"
    assert shown["reduce-overhead"] == "250" and shown["results"] == "bit-equal"
    own = cells(table.ours(records("print", latency_p99_us=321.0, recompilations=3)))
    assert (own["p99"], own["graphs"], own["outside"], own["recompiled"]) == (
        "321",
        "2",
        "3.5",
        "3",
    )
    both = [*records("print"), *records("logging", clean=100.0)]
    means = dict(zip(table.latency(both).head, table.latency(both).foot[0], strict=True))
    assert means["pygraph / clean"] == "1.58" and means["pygraph / best of torch"] == "0.80"


def test_a_wrong_mode_is_told_and_counted():
    found = records("print", clean=None, bit_equal_to_default=False)
    shown = cells(table.latency(found))
    assert shown["clean"] == "failed" and shown["pygraph / clean"] == "-"
    assert shown["results"] == "wrong: clean"
    summary = summarize(found)
    assert summary["counts"]["wrong"] == 1 and summary["counts"]["timed"] == 4
    assert summary["wrong"] == ["print, clean: off"]
    assert summary["latency"]["pygraph/clean"] == {"geomean": None, "patterns": 0}
    assert summary["counts"]["pygraph_bit_equal"] == 0 == 1 - summary["counts"]["pygraph_compared"]
    assert "wrong: 1 of 5 results" in table.summary_lines(summary)[-1]


def test_reasons_are_told_once():
    found = records("print", fallbacks=[REASON, REASON | {"graph": "graph 1"}])
    assert table.reasons(found) == ["print: copies to the CPU"]


def test_what_the_clocks_and_the_profiler_say():
    record = Record("print", 1, "pygraph")
    record.take(Samples(latency=[float(n) for n in range(101)], host=[1.0], pipelined=[2.0]))
    assert (record.latency_us, record.latency_p99_us, record.samples) == (50.0, 99.0, 101)
    record.take_launched(Launched(1.0, 1.0, 42.0, 40.0, 2.0))
    assert (record.kernels, record.graphs, record.outside) == (42.0, 2.0, 2.0)


def test_what_the_report_says_can_be_shared():
    record = Record("cond", 1, "pygraph")
    known = GraphReport("graph 0", "graphed", calls=5, replays=5, programs=1)
    lacks = GraphReport("graph 1", "fallback", reason="cond at /some/where/control.py:40", calls=5)
    record.take_reports([known, lacks])
    assert record.fallbacks == [{"graph": "graph 1", "reason": "cond at control.py:40"}]
    assert [each["replays"] for each in record.extra["graphs"]] == [5, 0]


def test_a_record_is_read_back_and_shown_in_the_docs():
    env, phases = {"gpu": "G"}, {"print": {"time": 1.0}}
    made = json.loads(json.dumps(document(records("print"), env, "c", phases, {"seconds": 1.5})))
    assert made.keys() >= {"env", "command", "records", "summary", "phases"}  # as of ./run demo
    assert made["patterns"]["print"] == {
        "theme": "control",
        "about": "print() in the middle",
        "pygraph/clean": 1.25,
        "pygraph/best of torch": 0.8,
    }
    assert read_records(made) == records("print")
    head, (row, mean) = table.page(made)
    shown = dict(zip(head, row, strict=True))
    assert shown["what stands in the way"] == "print() in the middle"
    assert (shown["pygraph"], shown["graphs"], shown["results"]) == ("200", "2", "bit-equal")
    assert "pipelined" not in head and mean[0] == "geometric mean" and len(mean) == len(head)


WORKER = """
import json, sys
out, options = (sys.argv[sys.argv.index(name) + 1] for name in ("--out", "--options"))
assert sys.stdin.readline() == "go\\n"
if sys.argv[2] == "logging":
    raise SystemExit("no luck at /some/where/else")
records = json.loads({records!r})
records[0]["extra"] = json.loads(options)
result = dict(env=dict(gpu="G"), records=records, phases=dict(time=1.0))
json.dump(dict(result=result), open(out, "w"))
"""


def test_a_crash_costs_only_its_own_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = document(records("print"), {}, "c", {}, {})["records"]

    def command(job: Job) -> list[str]:
        code = WORKER.format(records=json.dumps(made))
        return [sys.executable, "-c", code, job.kind, job.model, job.mode]

    monkeypatch.setattr(Job, "command", command)
    plan = Plan(("print", "logging"), budget_s=60.0, options={"arguments": "copied"})
    console = Console(file=io.StringIO(), width=200)
    out = tmp_path / "new" / "patterns.json"
    suite = Suite(plan, "command", console, out)
    suite.run()
    content = json.loads(out.read_text())
    assert content["env"] == {"gpu": "G"} and content["settings"]["preparing"] == 12
    assert [each["workload"] for each in content["records"]] == ["print"] * 5
    assert content["records"][0]["extra"] == {"arguments": "copied"}
    (error,) = content["errors"]
    assert error == {"pattern": "logging", "error": "exit status 1: no luck at else", "ran": True}
    assert suite.problems() == ["logging: exit status 1: no luck at else"]
    assert "/some/where/else" in Path(tmp_path, "new", "patterns.logs", "logging.txt").read_text()
    assert "pygraph 200, clean 160 us; bit-equal" in console.file.getvalue()  # type: ignore[attr-defined]


def test_what_there_was_no_time_for_is_named(tmp_path: Path):
    suite = Suite(Plan(("print",), budget_s=-1.0), "command", Console(file=io.StringIO()))
    suite.run()
    assert suite.problems() == ["print: not run: out of time"] and suite.records == []


def command_line(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "patterns", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_the_command_on_the_twin(tmp_path: Path):
    out = tmp_path / "patterns.json"
    wanted = ["--only", "print,item_end", "--modes", "eager,default,pygraph,clean"]
    found = command_line(*wanted, "--device", "cpu", "--seconds", "0.1", "--out", str(out))
    assert found.returncode == 0, found.stdout + found.stderr
    assert "wrong: 0 of 8 results" in found.stdout and "written: patterns.json" in found.stdout
    content = json.loads(out.read_text())
    assert content["command"].startswith("./run bench-patterns --only print,item_end")
    assert {each["workload"] for each in content["records"]} == {"print", "item_end"}
    assert all(each["correct"] and each["samples"] >= 100 for each in content["records"])
    assert content["phases"]["print"].keys() >= {"pygraph", "check", "wait", "time", "all"}


def test_mistakes_are_told():
    assert "item_end" in command_line("--list").stdout
    for options in (["--only", "nothing"], ["--options", "[]"]):
        found = command_line(*options, "--device", "cpu", "--budget", "1")
        assert found.returncode == 2 and options[1] in found.stderr
