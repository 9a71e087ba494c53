"""The record, the tables, the goals, the picture and the command of the benchmark of captured
functions, from measurements that were made up; and a small one on the CPU."""

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
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.callables import chart, targets
from benchmarks.callables.modes import MODES
from benchmarks.callables.record import Document, Record, beyond_eager
from benchmarks.callables.suite import Plan, Suite
from benchmarks.callables.table import bits, not_graphed, page, skipped, tables, wrong
from benchmarks.callables.timeline import Timeline, last_call
from benchmarks.harness.device import Memory
from benchmarks.harness.jobs import Outcome
from benchmarks.harness.measure import Samples
from benchmarks.harness.profile import Launched
from benchmarks.harness.record import by_mode
from pygraph.demo.output import WIDTH
from pygraph.reporting import GraphReport

ROOT = Path(__file__).resolve().parents[3]
LATENCY = {"eager": 900.0, "torch.cuda.graph": 210.0, "pygraph": 206.0, "floor": 200.0}
ENV = {"gpu": "G", "driver": "D", "torch": "T", "date": "2026-01-02T03:04:05"}
LINE = {"host_us": 10.0, "total_us": 50.0, "launches": [[1.0, 2.0]], "kernels": [[4.0, 40.0]]}


def records(name: str, **ours: Any) -> list[Record]:
    found = []
    for mode, latency in LATENCY.items():
        each = Record(name, 8, mode, correct=True, latency_us=latency, host_us=latency / 10)
        each.held_allocated_mib = each.held_reserved_mib = each.held_driver_mib = 100.0
        each.latency_p99_us, each.latency_std_us, each.pipelined_us = latency * 2, 3.0, latency
        each.verdict = {"bit_equal": True}
        found.append(each)
    for field, value in ours.items():
        setattr(found[2], field, value)
    return found


def cells(made: Any, row: int = 0) -> dict[str, str]:
    return dict(zip(made.head, made.rows[row], strict=True))


def content(found: list[Record], **more: Any) -> dict[str, Any]:
    names = list(dict.fromkeys(each.workload for each in found))
    rows = {name: {"about": f"what {name} is", "batch": 8} for name in names}
    known = {"env": ENV, "command": "./run bench-callables", "rows": rows, "errors": []}
    return {**known, "records": [vars(each) for each in found], **more}


# ------------------------------------------------------------------------------- figures


def test_what_the_clocks_say():
    record = Record("sac", 8, "pygraph")
    assert record.jitter is None
    latency = [float(n) for n in range(1, 102)]
    record.take(Samples(latency=latency, host=[1.0], pipelined=[2.0]))
    assert (record.latency_us, record.latency_p99_us) == (51.0, 100.0)
    assert record.jitter == pytest.approx(100 / 51)
    assert record.latency_std_us == pytest.approx(((101**2 - 1) / 12) ** 0.5)


def test_memory_is_what_eager_does_not_hold():
    own, eager = Record("sac", 8, "pygraph"), Record("sac", 8, "eager")
    assert beyond_eager({"pygraph": own, "eager": eager}, "pygraph") is None
    own.take_held(Memory(1, 2, in_use=3), Memory(11, 22, in_use=133))
    eager.take_held(Memory(11, 22, in_use=133), Memory(20, 42, in_use=163))
    found = beyond_eager({"pygraph": own, "eager": eager}, "pygraph")
    assert found == {"allocated": 1, "reserved": 0, "driver": 100}
    assert beyond_eager({"pygraph": own}, "pygraph") is None


def test_what_the_profiler_and_the_report_say():
    record = Record("sac", 8, "pygraph")
    record.take_launched(Launched(1.0, 1.0, 42.0, 40.0, 2.0))
    assert (record.kernels, record.graphs, record.outside) == (42.0, 2.0, 2.0)
    known = GraphReport("graph 0", "graphed", calls=5, replays=4, proof="bit-equal")
    lacks = GraphReport("graph 1", "fallback", reason="waits at /some/where/step.py:40", calls=5)
    record.take_reports([known, lacks])
    assert record.fallbacks == [{"graph": "graph 1", "reason": "waits at step.py:40"}]
    assert [each["replays"] for each in record.extra["graphs"]] == [4, 0]


# ------------------------------------------------------------------------------- goals


def met(found: list[Record]) -> dict[str, Any]:
    name = found[0].workload
    return {each.name.split(",")[0]: each for each in targets.evaluate([name], found)}


def test_a_step_is_judged_by_the_floor():
    found = met(records("sac"))
    assert found["goal"].value == pytest.approx(1.03) and found["goal"].met
    assert found["right"].met and found["right"].detail == "bit-equal"
    assert found["held"].met and found["held"].value == 0.0
    assert met(records("sac", latency_us=211.0))["goal"].met is False
    assert met(records("dcgan", latency_us=211.0))["goal"].met
    assert met(records("decode"))["goal"].met and met(records("decode"))["goal"].limit == 1.0
    assert met(records("decode", latency_us=211.0))["goal"].met is False
    assert "goal" not in met(records("generate"))


def test_the_host_is_judged_by_its_time():
    assert met(records("host", host_us=7.9))["goal"].met
    assert met(records("host", host_us=8.1))["goal"].met is False
    found = met(records("blog", host_us=30.0))["goal"]
    assert found.value == pytest.approx(3.0) and found.met
    assert found.requirement == "pygraph: 2.7 times less host time than eager"
    assert met(records("blog", host_us=40.0))["goal"].met is False


def test_memory_that_is_held_misses_its_goal():
    assert met(records("sac", held_driver_mib=101.5))["held"].met
    found = met(records("sac", held_driver_mib=164.0))["held"]
    assert found.met is False and found.value == 64.0
    assert found.detail == "allocated +0.0, reserved +0.0, driver +64.0"


def test_what_is_wrong_misses_and_what_is_skipped_is_open():
    found = met(records("sac", correct=False, latency_us=None, error="off"))
    assert [each.met for each in found.values()] == [False] * 3
    assert found["right"].detail == "off"
    skip = {"correct": False, "latency_us": None, "skipped": "no capture"}
    found = met(records("sac", **skip, held_driver_mib=None))
    assert [each.met for each in found.values()] == [None] * 3
    assert [each.met for each in targets.evaluate(["sac"], [])] == [None] * 3


# ------------------------------------------------------------------------------- tables


def test_the_table_of_a_record():
    found = [*records("sac"), *records("host", host_us=12.0)]
    found[1].skipped, found[1].correct = "needs a GPU", False
    shown = [cells(each) for each in tables(found)]
    assert shown[0]["pygraph"] == "206" and shown[0]["goal"] == "1.03 of 1.05, met"
    assert shown[0]["torch.cuda.graph"] == "skipped" and shown[0]["default"] == "-"
    assert shown[1]["pygraph"] == "20.6" and shown[3]["pygraph"] == "412; 2.00"
    assert cells(tables(found)[0], 1)["goal"] == "12 of 8, MISSED"
    assert tables(found)[0].rows[1][-1].kind == "bad"
    assert skipped(found) == ["sac, torch.cuda.graph: needs a GPU"]
    assert wrong(found) == [] and bits(found).endswith("2 of 2 rows")


def test_a_wrong_mode_is_told():
    found = records("sac", correct=False, latency_us=None, error="state: 1 off eager")
    assert cells(tables(found)[0])["pygraph"] == "failed"
    assert wrong(found) == ["sac, pygraph: state: 1 off eager"]


def test_what_runs_without_a_graph_is_told():
    reason = {"graph": "graph 0", "reason": "it waits"}
    found = records("blog-branch", fallbacks=[reason])
    assert not_graphed(found) == ["blog-branch, pygraph, graph 0: it waits"]
    assert met(found)["right"].detail == "bit-equal; not graphed"
    assert "- without a graph: blog-branch, pygraph, graph 0: it waits" in page(content(found))
    found = records("generate", fallbacks=[reason], graphs=31.0)
    assert met(found)["right"].detail == "bit-equal; graphed in part"


def test_rows_with_parts_graphed_have_a_table_of_their_own():
    assert len(tables(records("sac"))) + 1 == len(tables([*records("sac"), part()]))
    assert (
        cells(tables([*records("blog"), part("blog")])[-1])["make_graphed_callables"] == "5.0 / -"
    )


def part(name: str = "sac") -> Record:
    return Record(name, 8, "make_graphed_callables", correct=True, host_us=5.0)


def test_the_page_of_a_record():
    found = [*records("sac"), *records("host", skipped="no | capture", correct=False)]
    text = page(json.loads(json.dumps(content(found))))
    assert text.startswith("G, driver D, torch T, 2026-01-02. `./run bench-callables`")
    lines = text.splitlines()
    heads = [line for line in lines if line.startswith("| row |")]
    assert heads[0].startswith("| row | eager | default | reduce-overhead | torch.cuda.graph |")
    assert "| sac | 900 | - | - | 210 | 206 | - | 200 | 1.03 of 1.05, met |" in lines
    assert "- skipped: host, pygraph: no \\| capture" in lines
    assert "- `sac`: what sac is" in lines and any("| goal, host |" in line for line in lines)


def test_tables_fit_a_terminal():
    found = [Record("blog-branch", 640, mode, correct=True) for mode in MODES]
    for each in found:
        each.latency_us = each.host_us = each.pipelined_us = 12345.6
        each.latency_p99_us, each.latency_std_us, each.prepare_s = 23456.7, 1234.5, 123.4
        each.held_allocated_mib = each.held_reserved_mib = each.held_driver_mib = 123.4
    console = Console(file=io.StringIO(), width=400)
    for made in tables(found):
        console.print(made)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "blog-branch" in shown
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= WIDTH


# ------------------------------------------------------------------------------- timelines


def event(category: str, name: str, start: float, us: float) -> dict[str, Any]:
    return {"cat": category, "name": name, "ts": start, "dur": us}


def calls(launch: bool = True) -> list[dict[str, Any]]:
    """Two calls, which begin at 110 and at 310 and whose kernels run behind them."""
    found = [{"name": "no duration", "cat": "kernel", "ts": 1.0}]
    for start in (100.0, 300.0):
        found.append(event("cuda_runtime", "cudaDeviceSynchronize", start, 10.0))
        found.append(event("kernel", "k", start + 30, 50.0))
        found.append(event("cpu_op", "aten::add", start + 11, 3.0))
        if launch:
            found.append(event("cuda_runtime", "cudaGraphLaunch", start + 15, 5.0))
    found.append(event("cuda_runtime", "cudaDeviceSynchronize", 325.0, 60.0))
    found.append(event("cuda_runtime", "cudaDeviceSynchronize", 390.0, 1.0))
    return found


def test_the_last_call_is_drawn():
    found = last_call(calls())
    assert (found.host_us, found.total_us) == (15.0, 70.0)
    assert found.launches == [(5.0, 5.0)] and found.kernels == [(20.0, 50.0)]
    found = last_call(calls(launch=False))  # the profiler does not see every way to launch
    assert (found.host_us, found.launches, found.kernels) == (15.0, [], [(20.0, 50.0)])


def test_what_is_no_call_is_not_drawn():
    for events in ([], calls()[:4], [event("cuda_runtime", "cudaDeviceSynchronize", 1.0, 1.0)]):
        with pytest.raises(RuntimeError, match="no call"):
            last_call(events)


def test_a_picture_of_a_record(tmp_path: Path):
    pytest.importorskip("matplotlib")
    made = content(records("sac"))
    path = tmp_path / "new" / "callables.svg"
    assert not chart.draw(made, path) and not path.exists()
    made["rows"]["sac"]["timelines"] = {"eager": LINE, "pygraph": LINE | {"total_us": 1234.0}}
    assert chart.draw(json.loads(json.dumps(made)), path)
    first = path.read_text()
    assert first.lstrip().startswith("<?xml")
    assert chart.draw(made, path) and path.read_text() == first
    assert Timeline(**LINE).kernels == [[4.0, 40.0]]


# ------------------------------------------------------------------------------- suite, command


def document(path: Path, *measured: str) -> Document:
    return Document(path, "./run bench-callables", measured)


def suite(path: Path, *rows: str, **plan: Any) -> Suite:
    given = Plan(rows, tuple(MODES), device="cpu", **plan)
    return Suite(given, document(path, *rows), Console(file=io.StringIO()))


def outcome(made: Suite, name: str, env: Any = ENV) -> Outcome:
    found = {"env": env, "records": [vars(each) for each in records(name)], "about": {"batch": 8}}
    return Outcome(made.session.job("measure", name), 1.0, json.loads(json.dumps(found)))


def test_rows_that_are_not_measured_again_stay_in_the_file(tmp_path: Path):
    path = tmp_path / "callables.json"
    first = suite(path, "sac", "host")
    for name in ("sac", "host"):
        first._store(outcome(first, name))
    first._save()
    stored = json.loads(path.read_text())
    assert list(by_mode(first.document.records)) == ["host", "sac"]  # as in the catalogue
    assert stored.keys() >= {"env", "command", "records"}  # as of ./run demo
    assert stored["targets"][0]["met"] and stored["env"] == ENV
    again = suite(path, "sac")
    assert {each.workload for each in again.document.records} == {"host"}
    assert list(again.document.rows) == ["host"]
    with pytest.raises(ValueError, match="take another file"):
        again._store(outcome(again, "sac", ENV | {"gpu": "other"}))
    again._store(outcome(again, "sac"))
    assert again.problems() == [] and len(again.document.records) == 8
    alone = suite(path, "sac", "host")
    alone._store(outcome(alone, "sac", ENV | {"gpu": "other"}))
    assert alone.document.env["gpu"] == "other"


def test_what_there_was_no_time_for_is_named(tmp_path: Path):
    made = suite(tmp_path / "callables.json", "sac", budget_s=-1.0)
    made.run()
    (problem,) = made.problems()
    assert problem.startswith("measure sac") and problem.endswith("not run: out of time")


def test_what_fails_while_it_is_compiled_is_told_by_its_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = suite(tmp_path / "callables.json", "sac", "host")
    ran = []

    def run(jobs: Any, *_: Any, **more: Any) -> None:
        ran.append(([job.name for job in jobs], more))
        made.session.fail("compile sac", "no luck")

    monkeypatch.setattr(made.session, "run", run)
    made._compile()
    assert made.problems() == [] and ran[0][1]["most"] > 1
    assert ran[0][0][:2] == ["compile sac default", "compile host default"]
    assert ran[0][0][2:] == ["compile sac reduce-overhead", "compile host reduce-overhead"]


def command_line(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "callables", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_the_command_on_the_cpu(tmp_path: Path):
    out = tmp_path / "callables.json"
    given = ["--rows", "host,blog", "--device", "cpu", "--tiny", "--seconds", "0.1"]
    found = command_line(*given, "--out", str(out))
    assert found.returncode == 0, found.stdout + found.stderr
    assert "written: callables.json" in found.stdout
    stored = json.loads(out.read_text())
    assert stored["command"].startswith("./run bench-callables --rows host,blog --device cpu")
    assert {row["command"] for row in stored["rows"].values()} == {stored["command"]}
    known = {(each["workload"], each["mode"]): each for each in stored["records"]}
    assert list(known) == [(row, mode) for row in ("blog", "host") for mode in ("eager", "pygraph")]
    for (_, mode), each in known.items():
        assert each["skipped"] or each["samples"] >= 60, each
        assert mode == "pygraph" or (each["correct"] and not each["skipped"])
    assert stored["rows"]["blog"]["phases"].keys() >= {"eager", "check", "clocks"}
    assert all(step > 0 for step in stored["rows"]["blog"]["loop_step_ns"])
    assert "; the host took " in page(stored)
    assert not out.with_suffix(".svg").exists()
    found = command_line("--report-only", "--out", str(out))
    assert found.returncode == 0 and "| blog | " in found.stdout
    assert not (ROOT / "benchmarks/results/callables.json.part").exists()


def test_mistakes_are_told(tmp_path: Path):
    for options, named in (
        (["--rows", "nothing", "--device", "cpu"], "decode-64"),
        (["--modes", "nothing", "--device", "cpu"], "reduce-overhead"),
        (["--report-only", "--out", str(tmp_path / "gone.json")], "bench-callables"),
    ):
        found = CliRunner().invoke(app, ["callables", *options])
        assert found.exit_code == 2 and named in found.output
