"""The benchmark of lanes: its workloads and what a mode is checked for; the summary, the goals and
the pictures, from measurements that were made up; and the command, on the twin."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import typer  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from benchmarks.harness import floor  # noqa: E402
from benchmarks.harness.compare import relative_error, same_bits  # noqa: E402
from benchmarks.harness.device import Device  # noqa: E402
from benchmarks.harness.jobs import Job, Outcome  # noqa: E402
from benchmarks.harness.modes import Bench  # noqa: E402
from benchmarks.parallel import check, command, goals, nets, suite, timeline  # noqa: E402
from benchmarks.parallel import modes as ways  # noqa: E402
from benchmarks.parallel.modes import MODES, LaneRunner  # noqa: E402
from benchmarks.parallel.record import Record  # noqa: E402
from benchmarks.parallel.workloads import BRANCHY, OTHER, WORKLOADS, find  # noqa: E402
from pygraph.demo.models import Unavailable  # noqa: E402
from pygraph.demo.output import terminal  # noqa: E402
from pygraph.reporting import GraphReport  # noqa: E402

CPU = Device("cpu")
ROOT = Path(__file__).resolve().parents[3]
FLOOR_US, SERIAL_US = 100.0, 110.0

pytestmark = pytest.mark.usefixtures("one_thread", "fresh_dynamo")


def bench_of(name: str) -> Bench:
    workload = WORKLOADS[name]
    inputs = [workload.make_inputs(1000 + n, CPU.torch, True) for n in range(2)]
    model = workload.make_program(CPU.torch, True)
    return Bench(model, inputs, CPU, workload=workload)


def checked(bench: Bench, count: int = 2) -> list[Any]:
    return [bench.workload.make_inputs(n, CPU.torch, True) for n in range(count)]


# ------------------------------------------------------------------------------ workloads


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "mask_rcnn"])
def test_a_tiny_workload_shows_which_inputs_it_was_given(name: str) -> None:
    """Otherwise a graph that reads the inputs of an earlier call would pass for right. (Mask R-CNN
    is the paper's, and tested there.)"""
    try:
        bench = bench_of(name)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with torch.set_grad_enabled(bench.workload.trains):
        reference = check.learn_eager(bench, checked(bench))
    first, second = reference.eager
    assert reference.distinct and all(each.isfinite().all() for each in first)
    assert relative_error(second, first) > 10 * reference.tolerance
    assert len(first) == 2 if bench.workload.trains else len(first) >= 1


def test_there_are_workloads_of_both_kinds() -> None:
    kinds = [each.kind for each in WORKLOADS.values()]
    assert kinds.count(BRANCHY) == 8 and kinds.count(OTHER) == 5
    assert [name for name, each in WORKLOADS.items() if each.by_hand] == ["towers-4"]
    with pytest.raises(KeyError, match="no workload 'nothing': there are mask_rcnn"):
        find("bert,nothing")


class Stream:
    """Stands in for a GPU's; what is done with it is told in order."""

    def __init__(self, told: list[str], name: str) -> None:
        self.told, self.name = told, name

    def wait_stream(self, other: Stream) -> None:
        self.told.append(f"{self.name} waits for {other.name}")


def test_towers_on_streams_branch_off_and_join_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    streams = [Stream(told, name) for name in "ab"]

    @contextlib.contextmanager
    def on(stream: Stream) -> Iterator[None]:
        told.append(f"on {stream.name}")
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda: streams.pop(0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream(told, "origin"))
    monkeypatch.setattr(torch.cuda, "stream", on)
    used = lambda _, stream: told.append(f"memory for {stream.name}")  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "record_stream", used)
    towers = nets.Towers(2, 1, 8)
    given = torch.randn(3, 8), torch.randn(3, 8)
    assert torch.equal(nets.OnStreams(towers)(*given), towers(*given))
    assert told == [
        *("a waits for origin", "memory for a", "on a"),
        *("b waits for origin", "memory for b", "on b"),
        *("origin waits for a", "memory for origin", "origin waits for b", "memory for origin"),
    ]


# ------------------------------------------------------------------------------ modes


def test_a_mode_is_named_so_that_the_harness_knows_it() -> None:
    assert ways.name_of("serial") == "pygraph-serial" and ways.name_of("floor") == "floor"
    assert ways.available(CPU) == ("serial", "parallel", "lanes-2", "lanes-4", "lanes-8")
    assert ways.taken(WORKLOADS["towers-4"], MODES) == MODES
    assert ways.taken(WORKLOADS["moe"], MODES) == MODES[:-1]


def test_graphs_belong_to_the_mode_that_compiled_them() -> None:
    bench = bench_of("heads")
    with torch.no_grad():
        runners = [ways.compiled(mode, bench) for mode in ("serial", "lanes-2")]
        for runner in runners:
            ways.settle(runner, bench)
    (serial,), (lanes,) = (runner.reports() for runner in runners)
    assert serial.name != lanes.name and (serial.lanes, lanes.lanes) == (1, 2)
    assert serial.graphed and lanes.graphed


def test_training_has_its_gradients_compared() -> None:
    bench = bench_of("gpt2_training")
    runner = ways.eager(bench, bench.model)
    loss, gradients = runner.compute(bench.inputs[0])
    parameters = list(bench.model.parameters())
    assert loss.dim() == 0 and gradients.numel() == sum(each.numel() for each in parameters)
    assert gradients.norm() > 0 and all(each.grad is None for each in parameters)


def test_a_floor_that_cannot_be_captured_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        try:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        finally:
            raise RuntimeError("capture_end")

    monkeypatch.setattr(floor, "capture", refuse)
    with torch.no_grad(), pytest.raises(ways.FloorImpossible, match="not permitted when stream"):
        ways.captured_floor(bench_of("heads"))


def test_the_floor_replays_on_inputs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(step: Any, inputs: Any, parameters: Any, error_mode: str) -> floor.Captured:
        static = tuple(each.clone() for each in inputs)
        found = floor.Captured(None, step(*static), static, [], step)
        replay = lambda: [a.copy_(b) for a, b in zip(found.outputs, step(*static), strict=True)]  # noqa: E731
        found.graph = SimpleNamespace(replay=replay)
        return found

    monkeypatch.setattr(floor, "capture", capture)
    bench = bench_of("heads")
    with torch.no_grad():
        runner = ways.captured_floor(bench)
        expected = bench.model(*bench.inputs[1])
        assert same_bits(runner.compute(bench.inputs[1]), expected)
        assert same_bits(runner.step(*bench.inputs[0]), expected), "a replay takes no new inputs"
    assert runner.compile_s > 0 and not runner.reports()


# ------------------------------------------------------------------------------ the check


def judged(
    mode: str,
    step: Callable[..., Any],
    reference: check.Reference,
    bench: Bench,
) -> check.Verdict:
    with torch.no_grad():
        return check.judge(mode, LaneRunner(ways.name_of(mode), step), reference, bench)


@pytest.fixture
def heads() -> tuple[Bench, check.Reference]:
    """Of which serial was right."""
    bench = bench_of("heads")
    with torch.no_grad():
        reference = check.learn_eager(bench, checked(bench))
    verdict = judged("serial", bench.model, reference, bench)
    assert verdict.correct and reference.serial_repeats and reference.serial_spread == 0.0
    return bench, reference


def test_lanes_with_the_bits_of_serial_are_right(heads: tuple[Bench, check.Reference]) -> None:
    bench, reference = heads
    verdict = judged("lanes-2", bench.model, reference, bench)
    assert verdict.correct and verdict.bit_equal_to_serial and verdict.compiled_apart is None


def test_lanes_without_the_bits_of_serial_are_wrong(
    heads: tuple[Bench, check.Reference], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, reference = heads

    def off(*given: Any) -> Any:
        return tuple(each * (1 + 2**-20) for each in bench.model(*given))

    with torch.no_grad():
        right = [(n, bench.model(*given)) for n, given in enumerate(reference.inputs)]
        own = [(n, off(*given)) for n, given in enumerate(reference.inputs)]
    monkeypatch.setattr(check, "_without_graphs", lambda *_: right)
    verdict = judged("parallel", off, reference, bench)
    assert verdict.relative_error < reference.tolerance
    assert not verdict.correct and "not serial's bits" in str(verdict.reason)
    # As far off as its own code without graphs: kernels are others, lanes have changed nothing.
    monkeypatch.setattr(check, "_without_graphs", lambda *_: own)
    verdict = judged("parallel", off, reference, bench)
    assert verdict.correct and verdict.compiled_apart and verdict.bit_equal_to_serial is False
    # The floor is not compared with serial.
    assert judged("floor", off, reference, bench).bit_equal_to_serial is None


def test_lanes_may_be_off_where_serial_does_not_repeat_its_bits(
    heads: tuple[Bench, check.Reference],
) -> None:
    bench, reference = heads
    calls = iter(range(1000))

    def moving(by: float) -> Callable[..., Any]:
        return lambda *given: tuple(
            each * (1 + by * (next(calls) % 2)) for each in bench.model(*given)
        )

    assert judged("serial", moving(1e-5), reference, bench).correct
    assert not reference.serial_repeats and reference.serial_spread == pytest.approx(1e-5, rel=0.1)
    assert judged("lanes-4", moving(2e-5), reference, bench).correct
    verdict = judged("lanes-4", moving(2e-4), reference, bench)
    assert not verdict.correct and "off serial, whose own runs are" in str(verdict.reason)


def test_results_that_are_wrong_or_stale_are_found(heads: tuple[Bench, check.Reference]) -> None:
    bench, reference = heads
    wrong = judged("floor", lambda *given: (2 * bench.model(*given)[0],), reference, bench)
    assert not wrong.correct and "against eager" in str(wrong.reason)
    reference.tolerance = 10.0
    stale = judged("floor", lambda *_: bench.model(*reference.inputs[0]), reference, bench)
    assert not stale.correct and stale.reason == "a result is that of other inputs"


# ------------------------------------------------------------------------------ goals


def row(name: str, mode: str, us: float, peak: float = 50.0, arena: int = 4 << 20) -> Record:
    extra = {"kind": WORKLOADS[name].kind, "arena_bytes": arena, "lanes": 4}
    found = Record(name, 1, mode, correct=True, latency_us=us, pipelined_us=us, extra=extra)
    found.peak_mib = peak
    return found


def rows(branchy_us: float = 60.0, other_us: float = SERIAL_US) -> list[Record]:
    """Of all workloads."""
    found = []
    for name, each in WORKLOADS.items():
        ours = branchy_us if each.kind == BRANCHY else other_us
        found += [row(name, "serial", SERIAL_US), row(name, "parallel", ours)]
        if each.without_floor is None:
            found.append(row(name, "floor", FLOOR_US))
        else:
            found.append(Record(name, 1, "floor", extra={"not_run": each.without_floor}))
    return found


def met(records: Sequence[Record]) -> dict[str, bool | None]:
    return {each["name"]: each["met"] for each in goals.summary(records)["goals"]}


ALL = dict.fromkeys(
    ["branchy, latency", "branchy, pipelined", "other, latency", "other, pipelined", "memory"], True
)


def of(records: list[Record], name: str, mode: str = "parallel") -> Record:
    return next(each for each in records if (each.workload, each.mode) == (name, mode))


def test_goals_are_met_where_lanes_pay_and_cost_nothing() -> None:
    assert met(rows()) == ALL
    # Clocks do not tell 0.4%.
    assert met(rows(other_us=1.004 * SERIAL_US)) == ALL


def test_ratios_are_over_serial_and_over_the_floor() -> None:
    records = rows(branchy_us=55.0)
    records.append(row("moe", "lanes-4", 50.0))
    found = goals.summary(records)
    moe, detections = found["workloads"]["moe"], found["workloads"]["mask_rcnn"]
    assert moe["latency parallel/serial"] == 0.5 and moe["latency parallel/floor"] == 0.55
    assert moe["pipelined serial/floor"] == 1.1 and moe["latency parallel/best"] == 1.1
    assert (moe["lanes"], moe["arena parallel/serial"], moe["peak parallel/serial"]) == (
        4,
        1.0,
        1.0,
    )
    assert detections["latency parallel/floor"] is None
    assert found[BRANCHY]["latency parallel/floor, geomean"] == pytest.approx(0.55)
    assert found[BRANCHY]["latency parallel/serial, geomean"] == pytest.approx(0.5)
    # Over serial's where there is no floor.
    assert found[BRANCHY]["pipelined, worst"]["ratio"] == 0.55
    of(records, "mask_rcnn").pipelined_us = 100.0
    worst = goals.summary(records)[BRANCHY]["pipelined, worst"]
    assert worst == {"workload": "mask_rcnn", "ratio": pytest.approx(100.0 / 110.0)}


@pytest.mark.parametrize(
    ("name", "field", "value", "missed"),
    [
        ("moe", "latency_us", 400.0, "branchy, latency"),
        ("moe", "pipelined_us", 97.0, "branchy, pipelined"),
        ("mask_rcnn", "pipelined_us", 107.0, "branchy, pipelined"),
        ("bert", "latency_us", 112.0, "other, latency"),
        ("mt5", "pipelined_us", 112.0, "other, pipelined"),
        ("unet", "peak_mib", 53.0, "memory"),
    ],
)
def test_one_workload_can_miss_a_goal(name: str, field: str, value: float, missed: str) -> None:
    records = rows()
    setattr(of(records, name), field, value)
    assert met(records) == {**ALL, missed: False}
    (goal,) = (each for each in goals.summary(records)["goals"] if each["name"] == missed)
    assert goal["name"] == "branchy, latency" or f"beyond: {name} " in goal["detail"]


def test_what_was_not_measured_meets_no_goal() -> None:
    few = [each for each in rows() if each.workload not in ("moe", "bert")]
    assert met(few) == dict.fromkeys(ALL)
    without_floor = [each for each in rows() if each.mode != "floor"]
    assert met(without_floor) == {**ALL, "branchy, latency": None, "branchy, pipelined": None}
    assert met([]) == dict.fromkeys(ALL)


def test_a_wrong_mode_misses_its_goals() -> None:
    records = rows()
    of(records, "heads").correct = False
    found = met(records)
    assert found["branchy, latency"] is False and found["memory"] is False
    assert found["other, latency"] is True


def test_a_record_has_what_the_report_says_of_lanes() -> None:
    reports = [
        GraphReport("graph 1", "graphed", lanes=4, arena_bytes=100),
        GraphReport("graph 2", "fallback", reason="copies to the CPU", arena_bytes=20),
        GraphReport("graph 0", "replaced", lanes=8, arena_bytes=7),
    ]
    record = Record("moe", 1, "parallel")
    record.take_reports(reports)
    assert record.extra["lanes"] == 4 and record.extra["lanes_of_graphs"] == [4, 1]
    assert record.extra["arena_bytes"] == 120
    assert record.extra["fallbacks"] == [{"graph": "graph 2", "reason": "copies to the CPU"}]
    assert record.extra["report"][0].startswith("graph 1: graphed")
    assert record.not_run is None and Record("a", 1, "floor", extra={"not_run": "no"}).not_run


# ------------------------------------------------------------------------------ timelines


def event(kind: str, ts: float, dur: float, stream: int = 7, name: str = "mm") -> dict[str, Any]:
    return {"cat": kind, "ts": ts, "dur": dur, "name": name, "args": {"stream": stream}}


def test_the_last_calls_kernels_are_told() -> None:
    wait = "cudaDeviceSynchronize"
    events = [
        event("cuda_runtime", 0.0, 1.0, name=wait),
        event("kernel", 2.0, 5.0),
        event("cuda_runtime", 3.0, 6.0, name=wait),
        event("cuda_runtime", 9.5, 1.0, name="cudaGraphLaunch"),
        event("kernel", 13.0, 4.0, stream=9),
        event("kernel", 12.0, 3.0),
        event("gpu_memset", 18.0, 1.0, name="Memset (Device)"),
        event("cuda_runtime", 12.0, 9.0, name=wait),
        {"ph": "M", "name": "no event"},
    ]
    assert timeline.last_call(events) == [
        (0.0, 3.0, "mm"),
        (1.0, 4.0, "mm"),
        (6.0, 1.0, "gpu_memset"),
    ]
    assert timeline.last_call([]) == []


def test_a_picture_has_a_row_for_all_that_runs_at_the_same_time(tmp_path: Path) -> None:
    alone = [(0.0, 3.0, "a<b>"), (3.0, 4.0, "b")]
    beside = [
        (0.0, 3.0, "a"),
        (1.0, 4.0, "b"),
        (2.0, 2.0, "c"),
        (4.0, 1.0, "gpu_memset"),
    ]
    assert [len(row) for row in timeline.rows_of(alone)] == [2]
    # What runs at the same time gets rows beside each other, whichever its stream.
    assert [[each[2] for each in row] for row in timeline.rows_of(beside)] == [
        ["a", "gpu_memset"],
        ["b"],
        ["c"],
    ]
    path = tmp_path / "pictures" / "moe.svg"
    assert timeline.draw("moe", {"serial": alone, "parallel": beside, "floor": []}, path)
    text = path.read_text()
    assert "moe, serial: 2 kernels, 7 us" in text and "moe, parallel: 4 kernels, 5 us" in text
    assert text.count("<rect") == 4 + 6 and "a&lt;b&gt;: 3.0 us at 0.0" in text
    assert not timeline.draw("moe", {"serial": []}, tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()


# ------------------------------------------------------------------------------ the command


def test_a_floor_that_fails_has_its_workload_measured_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def together(jobs: list[Job], *_: Any, **__: Any) -> None:
        done = _[1]
        while jobs:
            job = jobs.pop(0)
            asked.append((job.kind, job.mode))
            if "floor" in job.mode:
                result: dict[str, Any] = {"without_floor": "RuntimeError: not permitted"}
            else:
                found = vars(row("moe", "serial", 1.0)).copy()
                found["extra"] = {"kind": BRANCHY, "timeline": [(0.0, 1.0, "mm")]}
                result = {"env": {"gpu": "G"}, "records": [found], "phases": {}}
            if (further := done(Outcome(job, 1.0, result))) is not None:
                jobs.append(further)

    monkeypatch.setattr(suite, "together", together)
    plan = suite.Plan(("moe",), timelines=tmp_path / "pictures", modes=("serial", "floor"))
    ran = suite.Suite(plan, "./run bench-parallel", terminal(), tmp_path / "out.json")
    ran.run()
    assert asked == [("draw", "serial,floor"), ("draw", "serial")]
    assert [(each.mode, each.error) for each in ran.records] == [
        ("serial", None),
        ("floor", "RuntimeError: not permitted"),
    ]
    assert ran.problems() == ["moe, floor: RuntimeError: not permitted"]
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["records"][0]["extra"] == {"kind": BRANCHY}
    assert (tmp_path / "pictures" / "moe.svg").read_text().count("<title>") == 1


def test_the_command_on_the_twin(tmp_path: Path) -> None:
    out = tmp_path / "parallel.json"
    options = ["--device", "cpu", "--tiny", "--seconds", "0.1", "--out", str(out)]
    wanted = ["--workloads", "towers-4", "--modes", "serial,parallel,lanes-2"]
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks", "parallel", *wanted, *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=200,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    content = json.loads(out.read_text())
    assert content["command"].startswith("./run bench-parallel --workloads towers-4")
    serial, parallel, two = content["records"]
    assert [each["mode"] for each in (serial, parallel, two)] == ["serial", "parallel", "lanes-2"]
    assert serial["extra"]["lanes"] == 1 and two["extra"]["lanes"] == 2
    assert parallel["extra"]["lanes"] >= 4 and parallel["extra"]["kind"] == BRANCHY
    for each in (serial, parallel, two):
        assert each["correct"] and each["latency_us"] > 0 and each["pipelined_us"] > 0
        assert each["extra"]["replayed"] == 1.0 and each["extra"]["arena_bytes"] > 0
        assert each["compile_s"] > 0 and not each["extra"]["fallbacks"]
    assert serial["extra"]["repeats_its_bits"] and two["extra"]["bit_equal_to_serial"]
    ratio = parallel["latency_us"] / serial["latency_us"]
    known = content["summary"]["workloads"]["towers-4"]
    assert known["latency parallel/serial"] == pytest.approx(ratio)
    assert content["phases"]["towers-4"].keys() >= {"compile serial", "capture parallel", "time"}


def test_mistakes_are_told() -> None:
    app = typer.Typer()
    app.command()(command.main)
    for options, told in (
        (["--workloads", "nothing"], "no workload 'nothing'"),
        (["--modes", "floor"], "no mode 'floor'"),
        (["--timelines", "x"], "which looks at a GPU"),
    ):
        found = CliRunner().invoke(app, ["--device", "cpu", *options], env={"COLUMNS": "200"})
        assert found.exit_code == 2 and told in found.output, found.output
