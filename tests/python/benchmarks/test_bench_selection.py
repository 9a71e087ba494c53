"""The scenarios of selection: what they are made of, how a mode settles, and that a wrong mode is
found; and the record, the goals and the command, from measurements that were made up."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import typer  # noqa: E402
from rich.console import Console  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from benchmarks.harness.compare import relative_error  # noqa: E402
from benchmarks.harness.device import Device  # noqa: E402
from benchmarks.harness.figures import figure  # noqa: E402
from benchmarks.harness.measure import Samples  # noqa: E402
from benchmarks.harness.modes import Bench  # noqa: E402
from benchmarks.harness.record import by_mode  # noqa: E402
from benchmarks.harness.reports import undecided  # noqa: E402
from benchmarks.harness.worker import Options  # noqa: E402
from benchmarks.selection import command, goals, modes, run, table  # noqa: E402
from benchmarks.selection.callers import Fresh, Now, Repeated  # noqa: E402
from benchmarks.selection.catalogue import (  # noqa: E402
    SCENARIOS,
    THEME_OF,
    THEMES,
    find,
    scenarios,
)
from benchmarks.selection.models import Kernels, Pointwise, broken  # noqa: E402
from benchmarks.selection.record import (  # noqa: E402
    Record,
    document,
    read_records,
    summarize,
    with_best,
)
from benchmarks.selection.scenario import Caller, drawn  # noqa: E402
from pygraph.decide import budget  # noqa: E402
from pygraph.reporting import GraphReport, Selected  # noqa: E402

CPU = Device("cpu")
ROOT = Path(__file__).resolve().parents[3]
TINY = scenarios(tiny=True)

pytestmark = pytest.mark.usefixtures("one_thread", "fresh_dynamo")


def bench_of(name: str, **changed: Any) -> Bench:
    scenario = dataclasses.replace(TINY[name], **changed)
    return Bench(scenario.build(CPU.torch), scenario.pool(CPU.torch), CPU, workload=scenario)


def test_there_are_many_of_each_theme_and_of_both_callers():
    assert len(SCENARIOS) >= 44 and list(SCENARIOS) == list(TINY) == list(THEME_OF)
    assert all(len(make(True)) >= 5 for make in THEMES.values())
    for waits in (True, False):
        assert sum(each.waits == waits for each in SCENARIOS.values()) >= 20
    assert all(each.about and not each.about.endswith(".") for each in SCENARIOS.values())
    with pytest.raises(KeyError, match="no scenario 'nothing'"):
        find("matmul,nothing")


@pytest.mark.parametrize("name", list(TINY))
def test_eager_runs_and_shows_which_inputs_it_was_given(name: str):
    """Otherwise a graph that reads the inputs of an earlier call would pass for right."""
    scenario = TINY[name]
    with torch.set_grad_enabled(scenario.training or scenario.gradients):
        expected = run.expect(bench_of(name))
    assert expected.distinct and len(expected.outputs) == run.CHECKED
    first, *others = expected.outputs
    assert all(each.isfinite().all() for each in first)
    assert min(relative_error(each, first) for each in others) > 10 * scenario.tolerance
    parameters = len(list(scenario.model().parameters()))
    assert not scenario.training or len(first) == 1 + parameters


@pytest.mark.parametrize("name", list(TINY))
def test_inputs_are_others_elsewhere_in_each_call(name: str):
    pool = TINY[name].pool(CPU.torch)
    assert len(pool) >= 8
    for place in range(len(pool[0])):
        assert len({inputs[place].data_ptr() for inputs in pool}) == len(pool)
    assert not any(torch.equal(pool[0][0], each[0]) for each in pool[1:])


def test_sizes_are_those_that_are_said():
    sizes = {
        name: {inputs[0].shape[0] for inputs in TINY[name].pool(CPU.torch)}
        for name in ("lengths_2", "lengths_8_flow", "two_batches", "matmul")
    }
    assert {name: len(them) for name, them in sizes.items()} == {
        "lengths_2": 2,
        "lengths_8_flow": 8,
        "two_batches": 2,
        "matmul": 1,
    }
    assert SCENARIOS["lengths_40"].buffers == 40
    # What is checked has the sizes of the stream.
    scenario = TINY["two_batches"]
    checked = {scenario.inputs(scenario.buffers + n, CPU.torch)[0].shape[0] for n in range(2)}
    assert checked == sizes["two_batches"]


def test_a_forward_breaks_into_as_many_graphs_as_are_said():
    graphs: list[Any] = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = broken(4, 2)().eval()
    x = torch.randn(4, 128)
    with torch.no_grad():
        assert torch.equal(torch.compile(model, backend=count)(x), model(x))
    assert len(graphs) == 4 and type(model) is not type(broken(4, 2)())


def test_callers_do_what_they_say(monkeypatch: pytest.MonkeyPatch):
    x, seen = torch.zeros(2), []

    def compiled(y: Any) -> Any:
        seen.append(y)
        return y + 1

    assert Repeated(CPU.torch)(compiled, x).tolist() == [20.0, 20.0] and len(seen) == 20
    fresh = Fresh(CPU.torch)
    seen.clear()
    for _ in range(3):
        fresh(compiled, x)
    assert len({each.data_ptr() for each in (x, *seen)}) == 4
    waits: list[int] = []
    now = Now(CPU.torch)
    monkeypatch.setattr(now, "wait", lambda: waits.append(now.calls))
    for _ in range(120):
        now(compiled, x)
    assert waits == [50, 100]


def measured(name: str, *wanted: str, **options: Any) -> dict[str, Record]:
    found = run.run_scenario(TINY[name], CPU, Options(wanted, seconds=0.02, **options))
    return {each.mode: each for each in found}


@pytest.mark.parametrize("name", ["breaks_3_flow", "mlp_tiny_training", "two_batches"])
def test_a_scenario_in_all_modes_of_the_twin(name: str):
    told: list[str] = []
    wanted = modes.available(CPU)
    found = measured(name, *wanted, timed=lambda: told.append("timed"))
    assert list(found) == list(wanted) and "reduce-overhead" not in found
    for mode, each in found.items():
        assert each.timed and each.error is None, (mode, each.error)
        assert each.caller == TINY[name].behaviour and each.cost_us and each.rounds == run.ROUNDS
        assert each.latency_worst_us >= each.latency_p99_us >= each.latency_us > 0
        assert (each.settled is None) == (mode == "default")
        assert each.settling_calls >= run.STEADY_PASSES * run.LEAST_CALLS
    assert found["pygraph"].bit_equal_to_default and found["pygraph"].settled
    assert found["pygraph-always"].replayed == 1.0
    assert found["pygraph-copied"].bytes_copied > found["pygraph-always"].bytes_copied == 0
    assert told == ["timed"]


def test_what_decides_by_clocks_is_alone_meanwhile(monkeypatch: pytest.MonkeyPatch):
    seen: list[str] = []
    settle = run.settle

    def told(runner: Any, *rest: Any) -> None:
        seen.append(runner.mode)
        settle(runner, *rest)

    class Alone:
        def __enter__(self) -> None:
            seen.append("alone")

        def __exit__(self, *_: object) -> None:
            seen.append("ended")

    monkeypatch.setattr(run, "settle", told)
    measured("matmul", "default", "pygraph-always", "pygraph", alone=Alone)
    assert seen == ["default", "pygraph-always", "alone", "pygraph", "ended"]
    seen.clear()
    measured("lengths_2", "default", "pygraph", alone=Alone)
    assert seen == ["alone", "default", "pygraph", "ended"]


class Decides(modes.ScenarioRunner):
    """Has a graph that is decided after so many calls."""

    made: Callable[[int], GraphReport]
    calls = 0
    graphs = frozenset({"graph 0"})

    def run(self, inputs: Any) -> Any:
        self.calls += 1

    def other_graphs(self) -> frozenset[str]:
        return frozenset()

    def reports(self) -> list[GraphReport]:
        report = self.made(self.calls)
        report.calls = self.calls
        return [report]


def settled(made: Callable[[int], GraphReport], scenario: str = "matmul") -> Record:
    record = Record(scenario, 1, "pygraph")
    runner = Decides("pygraph", lambda: (), graphs=Decides.graphs)
    runner.made = made
    run.settle(runner, bench_of(scenario), record)
    return record


def test_a_mode_is_called_until_it_has_decided():
    def warming(calls: int) -> GraphReport:
        return GraphReport("graph 0", "warming" if calls < 100 else "graphed")

    record = settled(warming)
    assert record.settled and 100 <= record.settling_calls < 200
    # One pass more than it takes to see that nothing changes any more.
    assert settled(lambda calls: GraphReport("graph 0", "graphed")).settling_calls == 48


def test_patience_ends(monkeypatch: pytest.MonkeyPatch):
    def never(calls: int) -> GraphReport:
        report = GraphReport("graph 0", "graphed")
        report.undecided = True  # type: ignore[attr-defined]
        return report

    assert undecided([never(1)]) and not undecided([GraphReport("graph 0", "fallback")])
    record = settled(never)
    assert record.settled is False and 2000 <= record.settling_calls < 2020
    lines = table.unsettled([record])
    assert lines[0].startswith("matmul, pygraph: still undecided after 2000 calls")
    monkeypatch.setattr(run, "LOST_PATIENCE_S", 0.0)
    assert settled(never).settling_calls == 16


def test_sizes_of_a_stream_are_called_until_each_has_a_graph(monkeypatch: pytest.MonkeyPatch):
    def linking(until: int) -> Callable[[int], GraphReport]:
        return lambda calls: GraphReport("graph 0", "graphed", replays=max(0, calls - until))

    record = settled(linking(3000), "lengths_40")
    assert record.settled and 3016 <= record.settling_calls < 3064
    assert settled(linking(3000)).settling_calls == 48
    monkeypatch.setattr(run, "SIZES_S", 0.0)
    record = settled(linking(3000), "lengths_40")
    assert record.settled is False and record.settling_calls == 16


def test_each_mode_has_a_budget_of_its_own():
    budget.BUDGET.spend(1e3, on_top=False)
    settled(lambda calls: GraphReport("graph 0", "graphed"))
    assert not budget.BUDGET.seconds_to_wait()


def test_a_wrong_mode_is_not_timed_and_costs_only_itself(monkeypatch: pytest.MonkeyPatch):
    made = modes.maker

    def wrong(mode: str, options: Any) -> Any:
        def make(bench: Bench) -> Any:
            runner = made(mode, options)(bench)
            if mode == "pygraph-never":
                step = runner.step
                runner.step = lambda *inputs: step(*inputs) * 1.01
            if mode == "pygraph-always":
                stale = runner.step(*bench.inputs[0])
                runner.step = lambda *inputs: stale
            return runner

        return make

    monkeypatch.setattr(run, "maker", wrong)
    found = measured("matmul", "default", "pygraph-never", "pygraph-always", "pygraph")
    assert found["default"].timed and found["pygraph"].timed
    assert "against eager" in found["pygraph-never"].error
    assert not found["pygraph-always"].correct and not found["pygraph-always"].timed
    assert found["pygraph-never"].cost_us is None


def test_gradients_are_compared():
    scenario = TINY["mlp_tiny_training"]
    with torch.enable_grad():
        bench = bench_of(scenario.name)
        expected = run.expect(bench)
        runner = modes.maker("eager", {})(bench)
        found = runner.compute(expected.inputs[0])
        again = runner.compute(expected.inputs[0])
    assert all(map(torch.equal, found, expected.outputs[0])) and len(found) > 4
    assert all(map(torch.equal, found, again))  # they do not add up


def test_modes_have_their_options(monkeypatch: pytest.MonkeyPatch):
    given: dict[str, Any] = {}

    def compile(model: Any, **how: Any) -> Any:
        given[mode] = how.get("options"), how["dynamic"]
        return model

    monkeypatch.setattr(torch, "compile", compile)
    for mode in modes.MODES:
        modes.maker(mode, {"max_programs": 8})(bench_of("lengths_2"))
    twin = {"device": "twin", "max_programs": 8}
    assert given["default"] == (None, True) and given["pygraph"] == (twin, True)
    assert given["pygraph-never"] == (twin | {"select": "never"}, True)
    assert given["pygraph-copied"] == (twin | {"select": "always", "arguments": "copied"}, True)
    assert set(given) == set(modes.MODES)


def test_a_call_has_nothing_around_it_that_its_caller_does_not_do():
    runner = modes.maker("pygraph", {})(bench_of("matmul"))
    assert runner.step is runner.keep
    assert modes.maker("pygraph", {})(bench_of("work_between")).step is not runner.keep
    assert TINY["matmul"].caller is Caller and isinstance(TINY["matmul"].model(), torch.nn.Module)
    assert len(drawn((2, 3), (4,))(torch.Generator(), CPU.torch, 0)) == 2
    assert Pointwise()(torch.zeros(1)).item() == 0 and len(Kernels(5).weights) == 3


COST = {"default": 50.0, "reduce-overhead": 60.0, "pygraph-never": 51.0, "pygraph-always": 40.0}
COST |= {"pygraph-copied": 45.0, "pygraph-always-again": 40.4, "pygraph": 40.6}


def records(name: str, **changed: float | None) -> list[Record]:
    """Each cost with an error of 0.1%; None: the mode was wrong."""
    found = []
    for mode, cost in (COST | {k.replace("_", "-"): v for k, v in changed.items()}).items():
        known = cost is not None
        record = Record(name, 1, mode, correct=known, latency_us=cost, caller="waits")
        record.cost_us, record.cost_error_us = cost, cost and 0.001 * cost
        record.error = None if known else "off"
        found.append(record)
    return found


def test_the_cost_is_of_what_the_caller_does():
    waits, flows = Record("a", 1, "default"), Record("a", 1, "default")
    samples = Samples(latency=[1.0, 3.0, 4.0, 6.0, 2.0, 4.0], pipelined=[10.0, 30.0, 20.0])
    waits.take_cost(samples, 3, waits=True)  # means of 2, 5 and 3
    flows.take_cost(samples, 3, waits=False)
    assert (waits.cost_us, flows.cost_us, flows.rounds) == (3.0, 20.0, 3)
    assert flows.cost_error_us == pytest.approx(1.2533 * 1.4826 * 10.0 / 3**0.5)


def test_the_best_is_of_what_a_selector_could_choose():
    row = by_mode(records("matmul"))["matmul"]
    assert goals.best(row) == "pygraph-always" and goals.over_best(row) == pytest.approx(1.015)
    assert goals.over_default(row) == pytest.approx(0.812)
    quick = by_mode(records("matmul", reduce_overhead=1.0, pygraph_always_again=1.0))["matmul"]
    assert goals.best(quick) == "pygraph-always"  # neither torch's nor a second measurement
    wrong = by_mode(records("matmul", pygraph_always=None))["matmul"]
    assert goals.best(wrong) == "pygraph-copied"
    assert goals.best({}) is None and goals.grade({}) is None


def test_a_miss_within_the_noise_is_called_that():
    def grade(**changed: float | None) -> str | None:
        return goals.grade(by_mode(records("matmul", **changed))["matmul"])

    assert grade() == "fine" and grade(pygraph=42.0) == "missed"  # 5% with a noise of 1%
    assert grade(pygraph=41.0) == "within noise"  # 2.5%
    assert grade(pygraph=42.0, pygraph_always_again=42.0) == "within noise"
    assert grade(pygraph=None) is None
    row = by_mode(records("matmul", pygraph_always_again=None))["matmul"]
    assert goals.noise(row) == pytest.approx(2 * 0.001 * 2**0.5)  # of the rounds alone


def test_goals_over_all_scenarios():
    found = [*records("matmul", pygraph=42.0), *records("breaks_3", pygraph=41.0)]
    slower = {"pygraph_always": 54.0, "pygraph_always_again": 54.0, "pygraph_copied": 54.0}
    found += records("two_streams", pygraph=55.0, **slower)
    each, median = goals.targets(by_mode(found))
    assert each.met is False and each.value == pytest.approx(1.1)
    assert (
        each.detail
        == "missed by 2: two_streams 1.100, matmul 1.050; within the noise: breaks_3 1.025"
    )
    assert median.met and median.value == pytest.approx(0.84)
    near, _ = goals.targets(by_mode(records("breaks_3", pygraph=41.0)))
    assert near.met and near.value > 1.02
    said = table.goal_lines([each, median])
    assert said[0].startswith("MISSED") and "two_streams 1.100" in said[0]
    assert said[1].startswith("met") and "0.84" in said[1]
    assert [each.met for each in goals.targets({})] == [None, None]


def test_the_row_best_is_in_the_record_and_not_measured():
    found = with_best(records("matmul"))
    assert [each.of for each in found if each.mode == "best"] == ["pygraph-always"]
    made = json.loads(json.dumps(document(records("matmul"), {"gpu": "G"}, "c", {}, {})))
    assert made["scenarios"]["matmul"] == {
        "theme": "few kernels",
        "about": "one small matrix product",
        "caller": "waits",
        "best": "pygraph-always",
        "pygraph/best": pytest.approx(1.015),
        "pygraph/default": pytest.approx(0.812),
        "noise": pytest.approx(0.4 / 40.4),
        "grade": "fine",
    }
    assert "waits" in made["settings"]["cost_us"] and len(made["records"]) == 8
    assert read_records(made) == records("matmul")


def test_what_was_decided_is_shown():
    found = records("matmul", pygraph=43.0)
    report = GraphReport("graph 0", "graphed")
    found[-1].take_reports([report])
    assert found[-1].selection == []  # a report that does not say it
    clocks = {"host": 9.0}, {"host": 7.0}
    report.selection = [Selected("", True, "host", 8, *clocks)] * 2
    found[-1].take_reports([report])
    made = table.costs(found)
    shown = dict(zip(made.head, made.rows[0], strict=True))
    assert (
        shown["decided"].startswith("graph 0: a graph serves: 9.0 us with it,")
        and shown["best"] == "40.0 (always)"
    )
    assert (shown["/ best"], shown["/ best"].kind, shown["noise"]) == ("1.075", "bad", "1.0%")
    assert dict(zip(made.head, made.foot[0], strict=True))["/ best"] == "1.075"
    page = table.page(document(found, {}, "c", {}, {}))
    assert (
        "| one small matrix product | few kernels | waits | 50.0 | 60.0 | 40.0 (always) |" in page
    )


def test_a_wrong_mode_is_told_and_counted():
    found = records("matmul", pygraph_copied=None)
    summary = summarize(found)
    assert summary["counts"]["wrong"] == 1 and summary["wrong"] == ["matmul, pygraph-copied: off"]
    assert table.in_short(by_mode(found)["matmul"]).endswith("1.015 of best; wrong: pygraph-copied")
    shown = dict(zip(table.choices(found).head, table.choices(found).rows[0], strict=True))
    assert shown["copied"] == "failed" and shown["always"] == "40.0"
    assert figure(by_mode(found)["matmul"], "pygraph-copied", "cost_us") is None
    console = Console(file=io.StringIO(), width=160)
    for each in table.tables(found):
        console.print(each)
    assert "few kernels" in console.file.getvalue()  # type: ignore[attr-defined]


def command_line(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "selection", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_the_command_on_the_twin(tmp_path: Path):
    out = tmp_path / "selection.json"
    wanted = ["--only", "reduction,two_kernels", "--modes", "default,pygraph-always,pygraph"]
    small = ["--device", "cpu", "--tiny", "--seconds", "0.1"]
    found = command_line(*wanted, *small, "--out", str(out))
    assert found.returncode == 0, found.stdout + found.stderr
    assert "written: selection.json" in found.stdout and "limit 1.02" in found.stdout
    content = json.loads(out.read_text())
    assert content["command"].startswith("./run bench-selection --only reduction,two_kernels")
    assert content["settings"]["tiny"] is True
    assert [each["mode"] for each in content["records"]] == [
        "default", "pygraph-always", "pygraph", "best",
    ] * 2  # fmt: skip
    assert content["phases"]["reduction"].keys() >= {"pygraph", "wait", "settle", "time", "all"}
    shown = command_line("--report-only", "--out", str(out))
    assert shown.returncode == 0 and "| one small reduction |" in shown.stdout
    again = ["--only", "reduction", "--modes", "default,pygraph", "--compare", str(out)]
    found = command_line(*again, *small)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "pygraph's cost over its earlier one" in found.stdout
    assert "of 1 scenarios" in found.stdout


def test_mistakes_are_told():
    app = typer.Typer()
    app.command()(command.main)
    invoke = functools.partial(CliRunner().invoke, app)
    assert "breaks_30_flow" in invoke(["--list"]).output
    for options in (["--only", "nothing"], ["--options", "[]"], ["--compare", "gone.json"]):
        found = invoke([*options, "--device", "cpu", "--budget", "1"])
        assert found.exit_code == 2 and options[1] in found.output
    assert invoke(["--report-only", "--out", "gone.json"]).exit_code == 2
