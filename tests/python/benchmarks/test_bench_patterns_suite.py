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

from benchmarks.harness import changes
from benchmarks.harness.jobs import Job
from benchmarks.harness.measure import Samples
from benchmarks.harness.profile import Launched
from benchmarks.harness.record import by_mode
from benchmarks.patterns import table
from benchmarks.patterns.catalogue import PATTERNS
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
    assert shown["/ clean"] == "1.25" and shown["/ best"] == "0.80"
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
    assert means["/ clean"] == "1.58" and means["/ best"] == "0.80"


def test_a_wrong_mode_is_told_and_counted():
    found = records("print", clean=None, bit_equal_to_default=False)
    shown = cells(table.latency(found))
    assert shown["clean"] == "failed" and shown["/ clean"] == "-"
    assert shown["results"] == "wrong"
    assert table.in_short(by_mode(found)["print"]).endswith("clean - us; wrong: clean")
    summary = summarize(found)
    assert summary["counts"]["wrong"] == 1 and summary["counts"]["timed"] == 4
    assert summary["wrong"] == ["print, clean: off"]
    assert summary["latency"]["pygraph/clean"] == {"geomean": None, "patterns": 0}
    assert summary["counts"]["pygraph_bit_equal"] == 0 == 1 - summary["counts"]["pygraph_compared"]
    assert "wrong: 1 of 5 results" in table.summary_lines(summary)[-1]


def test_a_mode_that_is_not_run_is_told_and_is_not_wrong():
    found = records("print")
    found[2] = Record("print", 1, "reduce-overhead", error="not run: boom", not_run=True)
    shown = cells(table.latency(found))
    assert (shown["reduce-overhead"], shown["results"]) == ("failed", "bit-equal")
    summary = summarize(found)
    assert (summary["counts"]["wrong"], summary["counts"]["not_run"]) == (0, 1)
    assert table.summary_lines(summary)[-1].endswith("wrong: 0 of 5 results; not run: 1")
    assert table.not_run(found) == ["print, reduce-overhead: not run: boom"]
    suite = Suite(Plan(("print",)), "command", Console(file=io.StringIO()))
    suite._found["print"] = found
    assert suite.problems() == []


def test_goals_by_group():
    """float_scale may cost one copy more; pygraph takes 200 us, and the best of torch 250."""
    found = [
        *records("float_scale", clean=200 / 1.12),
        *records("item_end", clean=200 / 1.12),
        *records("cpu_one", clean=200 / 1.05),
        *records("input_1mb", clean=200.0, latency_us=260.0),
        *records("print", clean=None),
    ]
    made = summarize(found)["goals"]
    assert list(made) == ["host values", "host tensors", "results", "all"]
    values, results = made["host values"]["pygraph/clean"], made["results"]["pygraph/clean"]
    assert values["exceeding"] == {} and values["patterns"] == 1
    assert results["worst_pattern"] == "item_end" and results["patterns"] == 2
    assert results["worst"] == pytest.approx(1.12)
    assert results["geomean"] == pytest.approx((1.12 * 1.05) ** 0.5)
    assert list(results["exceeding"]) == ["item_end"]
    everything = made["all"]
    assert list(everything["pygraph/clean"]["exceeding"]) == ["input_1mb", "item_end"]
    assert everything["pygraph/clean"]["patterns"] == 4
    best = everything["pygraph/best of torch"]
    assert best["exceeding"] == pytest.approx({"input_1mb": 1.04}) and best["patterns"] == 5
    shown = [
        dict(zip(table.goals(found).head, row, strict=True)) for row in table.goals(found).rows
    ]
    assert len(shown) == 8 and shown[4]["worst"] == "item_end 1.12"
    assert (shown[4]["pygraph over"], shown[4]["over limit"]) == ("clean", "1 of 2")
    lines = table.summary_lines(summarize(found))
    assert (
        "pygraph/clean over 1.10, or 1.15 where one copy more is needed: 2 of 4 patterns: "
        "input_1mb 1.300, item_end 1.120"
    ) in lines
    assert "pygraph/best of torch over 1.00: 1 of 5 patterns: input_1mb 1.040" in lines
    kinds = {row[0]: row[6].kind for row in table.latency(found).rows if row[6] != "-"}
    assert kinds == {"float_scale": "", "item_end": "bad", "cpu_one": "", "input_1mb": "bad"}


def test_groups_without_patterns_are_empty():
    made = summarize(records("print"))["goals"]["results"]["pygraph/clean"]
    assert made == {
        "patterns": 0,
        "worst": None,
        "worst_pattern": None,
        "geomean": None,
        "exceeding": {},
    }


def test_tables_fit_120_columns():
    found = []
    for name in PATTERNS:
        found += records(name, clean=1.0, latency_us=12345.6, latency_p99_us=12345.6, host_us=1e4)
        for each in found[-5:]:
            each.latency_us = 12345.6
            each.graphs, each.outside, each.recompilations = 12.5, 123.4, 12
        found[-4].correct = False
    console = Console(file=io.StringIO(), width=400)
    for made in table.tables(found):
        console.print(made)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "dropout_checkpoint" in shown
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 120


def test_what_changed_beside_default():
    before = [*records("print"), *records("logging"), *records("cond"), *records("while")]
    now = [*records("print"), *records("logging"), *records("cond"), *records("branch")]
    by_name = {(each.workload, each.mode): each for each in now}
    by_name["print", "pygraph"].latency_us = 220.0
    for mode, factor in (("pygraph", 1.5), ("default", 1.5)):
        by_name["logging", mode].latency_us *= factor
    by_name["cond", "default"].latency_us = 480.0
    found = changes.changes(before, now)
    assert found == pytest.approx({"print": 1.1, "logging": 1.0, "cond": 1 / 1.2})
    _, slower, faster = changes.lines(before, now, "patterns")
    assert slower == "slower by more than 5%: print 1.10"
    assert faster == "faster by more than 5%: cond 0.83"
    by_name["print", "default"].correct = False
    assert "print" not in changes.changes(before, now)


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
    assert shown["pygraph / clean"] == "1.25" and shown["pygraph / best of torch"] == "0.80"
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
    again = ["--only", "print", "--modes", "eager,default,pygraph", "--compare", str(out)]
    found = command_line(*again, "--device", "cpu", "--seconds", "0.1")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "change taken out, of 1 patterns" in found.stdout


def test_mistakes_are_told():
    assert "item_end" in command_line("--list").stdout
    for options in (["--only", "nothing"], ["--options", "[]"], ["--compare", "gone.json"]):
        found = command_line(*options, "--device", "cpu", "--budget", "1")
        assert found.returncode == 2 and options[1] in found.stderr
