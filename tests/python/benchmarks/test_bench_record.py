"""What is stored and shown: arithmetic, schema, tables and chart, from made-up measurements."""

import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from rich.console import Console

from benchmarks.callables.record import Record as OfCallables
from benchmarks.first_light import chart, demo, table
from benchmarks.first_light.record import REQUIRED, Record, document, summarize
from benchmarks.harness import measure, record
from benchmarks.harness.device import Device
from benchmarks.harness.figures import over
from benchmarks.harness.measure import Effort, Samples, geomean, percentile
from benchmarks.harness.modes import Runner
from benchmarks.harness.reports import fallbacks
from benchmarks.harness.timed import Timed
from benchmarks.paper.record import Result as OfPaper
from benchmarks.patterns.record import Record as OfPatterns
from benchmarks.selection.record import Record as OfSelection
from benchmarks.training.record import Result as OfTraining
from pygraph.reporting import FALLBACK, GRAPHED, REPLACED, GraphReport

KINDS = (Record, OfPaper, OfTraining, OfPatterns, OfCallables, OfSelection, Timed)
SPEEDS = {"eager": 3.0, "default": 2.0, "reduce-overhead": 1.5, "pygraph": 1.0, "floor": 0.5}


def made_up(workload: str = "alexnet", us: float = 100.0) -> list[Record]:
    records = []
    for mode, factor in SPEEDS.items():
        made = Record(workload, 2, mode, correct=True, peak_mib=10.0, reserved_mib=12.0)
        made.bytes_copied, made.compile_s, made.relative_error = 0, 1.5, 1e-4
        samples = Samples(latency=[us * factor] * 3, host=[5.0] * 3, pipelined=[us * factor])
        made.take(samples)
        records.append(made)
    return records


def test_geomean():
    assert geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert geomean([]) is None


def test_percentiles_interpolate():
    assert [percentile([4, 1, 3, 2], p) for p in (0, 50, 100)] == [1, 2.5, 4]
    assert percentile([7.0], 90) == 7.0


def test_samples_are_condensed():
    made = Record("m", 1, "eager", correct=True)
    made.take(Samples(latency=[1.0, 2.0, 9.0], host=[1.0], pipelined=[3.0, 5.0]))
    assert (made.latency_us, made.latency_worst_us, made.pipelined_us) == (2.0, 9.0, 4.0)
    assert made.samples == 3


def test_summary_ratios():
    summary = summarize(made_up("alexnet", 100.0) + made_up("densenet121", 7.0))
    assert summary["latency"]["default/pygraph"] == {"geomean": pytest.approx(2.0), "models": 2}
    assert summary["latency"]["pygraph/floor"]["geomean"] == pytest.approx(2.0)
    assert summary["latency"]["reduce-overhead/pygraph"]["geomean"] == pytest.approx(1.5)
    assert summary["host"]["default/pygraph"]["geomean"] == pytest.approx(1.0)
    assert summary["counts"]["failed"] == 0 and summary["failed"] == []


def test_mlps_do_not_count_as_models():
    slow_mlp = made_up("mlp-8")
    next(each for each in slow_mlp if each.mode == "pygraph").latency_us = 1e9
    summary = summarize(made_up() + slow_mlp)
    assert summary["latency"]["default/pygraph"]["geomean"] == pytest.approx(2.0)
    assert summary["counts"] | {"models": 2, "real_models": 1} == summary["counts"]


def test_a_wrong_mode_gives_no_ratio_and_is_listed():
    records = made_up()
    wrong = next(each for each in records if each.mode == "pygraph")
    wrong.correct, wrong.error = False, "stale"
    summary = summarize(records)
    assert summary["latency"]["default/pygraph"] == {"geomean": None, "models": 0}
    assert summary["latency"]["default/floor"]["models"] == 1
    assert summary["failed"] == ["alexnet, pygraph: stale"]


def test_json_schema(tmp_path: Path):
    records = made_up()
    records[3].relative_error = float("inf")
    record.write(tmp_path / "new" / "a.json", document(records, {"gpu": None}, "pygraph demo"))
    found = json.loads((tmp_path / "new" / "a.json").read_text())
    assert set(found) == {"env", "command", "records", "summary", "phases"}
    for each in found["records"]:
        assert set(REQUIRED) <= set(each)
        assert isinstance(each["latency_us"], float) and isinstance(each["correct"], bool)
    assert found["records"][3]["relative_error"] is None


def test_tables_show_ratios_and_failures():
    records = made_up()
    records[2].correct = False
    console = Console(width=200, record=True, file=io.StringIO())
    demo.show(records, console)
    text = console.export_text()
    assert "2.00x" in text and "failed" in text and "alexnet (2)" in text
    modes = record.by_mode(records)["alexnet"]
    assert over(modes, "default", "pygraph") == pytest.approx(2.0)
    assert over(modes, "reduce-overhead", "pygraph") is None
    lines = table.summary_lines(summarize(records))
    assert any(line.startswith("default/pygraph: 2.00") for line in lines)
    assert not any(line.startswith("reduce-overhead/") for line in lines)


def test_chart(tmp_path: Path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "chart.png"
    assert chart.draw(made_up() + made_up("densenet121"), {"gpu": "X", "torch": "2"}, path)
    assert path.read_bytes()[:4] == b"\x89PNG" and path.stat().st_size > 5000
    assert not chart.draw([], {}, tmp_path / "none.png")


def test_a_speed_up_in_one_line():
    times = {"eager": 30.0, "default": 20.0, "pygraph": 10.0, "floor": 9.0}
    made = [Record("m", 1, mode, correct=True, latency_us=us) for mode, us in times.items()]
    assert table.speed_up(made) == "pygraph 10.0 us, 3.00x over eager, 2.00x over default"
    made[2].correct = False
    assert table.speed_up(made) == (
        "eager 30.0 us, default 20.0 us, floor 9.0 us, pygraph was not timed"
    )


def test_time_line_adds_up():
    line = table.time_line([{"model": 1.0, "check": 2.0}, {"model": 3.0}], 10.0)
    assert line == "time: 10 s (model 4, check 2, elsewhere 4)"


def test_effort_is_bounded_both_ways():
    effort = Effort(seconds=10.0)
    assert effort.count(5e6) == effort.least
    assert effort.count(5.0) == effort.most
    assert effort.count(20_000.0) == 50
    assert effort.least * effort.rounds >= 50
    assert effort.count_in_a_row(5e6) < effort.least
    assert effort.count_in_a_row(20_000.0) == 50


def test_one_loop_can_have_all_of_the_time():
    apart, in_a_row = (Effort(seconds=10.0, in_a_row=share) for share in (0.0, 1.0))
    assert (apart.count(40_000.0), apart.count_in_a_row(40_000.0)) == (50, 0)
    assert (in_a_row.count(40_000.0), in_a_row.count_in_a_row(40_000.0)) == (0, 50)
    runner, samples = Runner("eager", lambda: None), {}
    for effort in (replace(apart, most=3, least=1), replace(in_a_row, most=3)):
        found = measure.measure([runner], [()], Device("cpu"), effort)["eager"]
        samples[effort.in_a_row] = len(found.latency), len(found.pipelined)
    assert samples == {0.0: (15, 0), 1.0: (0, 5)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_has_the_slowest_calls(kind: type[Timed]):
    made = kind("model", 1, "pygraph")
    latency = [float(n) for n in range(1001)]
    made.take(Samples(latency=latency, host=[1.0], pipelined=[2.0]))
    assert (made.latency_us, made.latency_p99_us, made.latency_worst_us) == (500.0, 990.0, 1000.0)
    older = asdict(made)
    del older["latency_p99_us"]
    read = record.restored(kind, older)
    assert read.latency_p99_us is None and read.latency_worst_us == 1000.0


def test_what_was_replaced_is_no_fallback() -> None:
    graphs = [GraphReport(f"graph {n}", state) for n, state in enumerate((GRAPHED, REPLACED))]
    assert fallbacks(graphs) == []
    graphs.append(GraphReport("graph 2", FALLBACK, reason="it reads a value"))
    assert fallbacks(graphs) == [{"graph": "graph 2", "reason": "it reads a value"}]
