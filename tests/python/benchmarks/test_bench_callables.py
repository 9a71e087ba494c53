"""The benchmark of captured functions on the CPU: its programs are deterministic, and what does not
compute what eager does is found, and not timed. What captures stands for pygraph and a GPU here."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.callables import check, modes, run  # noqa: E402
from benchmarks.callables.catalogue import ROWS, TINY, find  # noqa: E402
from benchmarks.callables.check import Apart, Reference, Runs, Track, judge, take  # noqa: E402
from benchmarks.callables.program import Row  # noqa: E402
from benchmarks.callables.record import Record  # noqa: E402
from benchmarks.callables.run import POOL, run_row  # noqa: E402
from benchmarks.harness import floor  # noqa: E402
from benchmarks.harness.compare import same_bits  # noqa: E402
from benchmarks.harness.device import Device  # noqa: E402
from benchmarks.harness.measure import Effort  # noqa: E402
from benchmarks.harness.modes import Bench  # noqa: E402
from pygraph.reporting import GraphReport  # noqa: E402

CPU = Device("cpu")
QUICK = Effort(0.01, rounds=1, least=2, most=2)
TRAINED = [name for name, row in TINY.items() if row.training]
WITHOUT_LIBRARIES = [name for name in TINY if name != "generate"]

pytestmark = pytest.mark.usefixtures("one_thread", "fresh_dynamo")


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Row:
    if request.param == "generate":
        pytest.importorskip("transformers")
    return TINY[request.param]


every = pytest.mark.parametrize("made", list(TINY), indirect=True)


def captures(monkeypatch: pytest.MonkeyPatch, capture: Callable[..., Any]) -> None:
    """For pygraph's functions."""
    monkeypatch.setattr(modes, "ours", lambda name: capture)


def by_mode(row: Row, names: Sequence[str]) -> dict[str, Record]:
    records, _ = run_row(row, CPU, QUICK, modes.of_row(row, tuple(names)))
    return {each.mode: each for each in records}


def eager(row: Row) -> modes.Caller:
    return modes.MODES["eager"](Bench(None, (), CPU, workload=row))


# ------------------------------------------------------------------------------- programs


def test_the_tiny_rows_are_the_rows():
    assert list(TINY) == list(ROWS)
    assert find("sac,host", True) == [TINY["sac"], TINY["host"]] and find("sac") == [ROWS["sac"]]
    for name, row in ROWS.items():
        assert (row.callables, row.skips) == (TINY[name].callables, TINY[name].skips)
        assert row.goal == TINY[name].goal and row.random == TINY[name].random


@every
def test_a_row_is_made_of_its_seeds_alone(made: Row):
    first, second = made.make(CPU.torch).copied(), made.make(CPU.torch).copied()
    assert first.keys() == second.keys()
    assert all(same_bits((each,), (second[name],)) for name, each in first.items())
    here, again = (made.inputs(3, CPU.torch, seed=5) for _ in range(2))
    assert all(map(same_bits, here, again))
    assert not any(same_bits(here[0], each) for each in here[1:])


@every
def test_two_eager_copies_agree_bit_for_bit(made: Row):
    inputs = made.inputs(3, CPU.torch)
    start = made.make(CPU.torch).copied()
    callers = [eager(made), eager(made)]
    with torch.set_grad_enabled(made.training):
        callers[1].run(inputs[2])  # what was before the start is forgotten
        tracks = [take(each, start, inputs) for each in callers]
    assert tracks[0].same_bits(tracks[1])
    assert not same_bits(tracks[0].outputs[0], tracks[0].outputs[1])


@pytest.mark.parametrize("name", TRAINED)
def test_all_that_a_step_writes_is_state(name: str):
    """Two programs whose states were made equal go on alike, whatever they did before."""
    row = TINY[name]
    inputs = row.inputs(4, CPU.torch)
    callers = [eager(row), eager(row)]
    callers[0].run(inputs[0])
    for each in inputs:
        callers[1].run(each)
    middle = callers[0].program.copied()
    tracks = [take(each, middle, inputs[1:]) for each in callers]
    assert tracks[0].same_bits(tracks[1])
    parameters = {each.data_ptr() for each in callers[0].program.parameters()}
    changed = [
        name
        for name, each in callers[0].program.state().items()
        if each.data_ptr() in parameters and not torch.equal(each, middle[name])
    ]
    assert changed


def test_random_rows_are_those_that_draw():
    for name in WITHOUT_LIBRARIES:
        row = TINY[name]
        inputs, start = row.inputs(2, CPU.torch), row.make(CPU.torch).copied()
        with torch.set_grad_enabled(row.training):
            tracks = [take(eager(row), start, inputs, seed) for seed in (1, 2)]
        assert tracks[0].same_bits(tracks[1]) != row.random, name


# ------------------------------------------------------------------------------- modes


@every
def test_a_capture_that_is_right_is_timed(made: Row, monkeypatch: pytest.MonkeyPatch):
    given = []

    def capture(unit: Any, device: str) -> Any:
        given.append(device)
        return lambda *inputs, **named: unit(*inputs, **named)

    captures(monkeypatch, capture)
    found = by_mode(made, ["pygraph"])
    assert list(found) == ["eager", "pygraph"] and given == ["twin"]
    for record in found.values():
        assert record.timed and record.error is None, record.error
        assert record.latency_us >= record.host_us > 0 and record.latency_p99_us
    assert found["pygraph"].verdict["bit_equal"] is True


class Stale:
    """Computes the first inputs' results for ever."""

    def __init__(self, unit: Any) -> None:
        self.unit, self.first = unit, None

    def __call__(self, *inputs: Any) -> Any:
        self.first = self.first or copy.deepcopy(inputs)
        return self.unit(*self.first)


def forgetful(unit: Any) -> Any:
    """Right results, and a state that nobody looks at while it is called: targets stay behind."""

    def called(*inputs: Any) -> Any:
        before = [each.clone() for each in unit.__self__.targets.parameters()]
        found = unit(*inputs)
        with torch.no_grad():
            for each, old in zip(unit.__self__.targets.parameters(), before, strict=True):
                each.lerp_(old, 0.001)
        return found

    return called


@pytest.mark.parametrize("name", WITHOUT_LIBRARIES)
def test_stale_inputs_are_found_and_not_timed(name: str, monkeypatch: pytest.MonkeyPatch):
    captures(monkeypatch, lambda unit, device: Stale(unit))
    found = by_mode(TINY[name], ["pygraph"])
    assert found["eager"].timed
    wrong = found["pygraph"]
    assert not wrong.correct and wrong.latency_us is None and wrong.samples == 0
    assert "off eager, and 0.00e+00 is explained" in wrong.error


def test_a_state_that_is_a_little_off_is_found(monkeypatch: pytest.MonkeyPatch):
    captures(monkeypatch, lambda unit, device: forgetful(unit))
    wrong = by_mode(TINY["sac"], ["pygraph"])["pygraph"]
    assert not wrong.correct and wrong.latency_us is None
    assert wrong.verdict["apart"]["tensor"] > 0


def test_what_raises_costs_only_itself(monkeypatch: pytest.MonkeyPatch):
    def capture(unit: Any, device: str) -> Any:
        raise OSError(f"no {__file__}")

    captures(monkeypatch, capture)
    found = by_mode(TINY["host"], ["pygraph"])
    assert found["eager"].timed and not found["pygraph"].timed
    assert found["pygraph"].error == "OSError: no test_bench_callables.py"


@pytest.mark.parametrize("replays", [0, 1])
def test_a_graph_that_served_none_of_the_steps_is_wrong(
    replays: int, monkeypatch: pytest.MonkeyPatch
):
    """Where all that was compared ran as it is, right results say nothing of the graph."""
    captures(monkeypatch, lambda unit, device: unit)
    graph = GraphReport("graph 0", "graphed")

    def reports(caller: modes.Caller) -> list[GraphReport]:
        graph.replays += replays
        return [graph] if caller.mode == "pygraph" else []

    monkeypatch.setattr(modes.Caller, "reports", reports)
    monkeypatch.setattr(
        modes.Caller, "counted", lambda caller, _: sum(each.replays for each in caller.reports())
    )
    found = by_mode(TINY["host"], ["pygraph"])["pygraph"]
    assert found.timed == bool(replays) and bool(found.replays_checked) == found.timed
    assert replays or found.error == run.NOT_SERVED


@pytest.mark.parametrize("lacking", [SimpleNamespace(), SimpleNamespace(capture=json)])
def test_what_pygraph_lacks_is_skipped(lacking: Any, monkeypatch: pytest.MonkeyPatch):
    """Without the function it has a package of that name."""
    monkeypatch.setattr(modes, "pygraph", lacking)
    found = by_mode(TINY["host"], ["pygraph", "pygraph-compiled", "floor"])
    assert found["pygraph"].skipped == "this pygraph has no function capture"
    assert found["pygraph-compiled"].skipped == found["pygraph"].skipped
    assert found["floor"].skipped == "needs a GPU"
    assert all(each.error is None for each in found.values())
    monkeypatch.setattr(modes, "pygraph", SimpleNamespace(capture=lambda unit, device: unit))
    assert by_mode(TINY["host"], ["pygraph"])["pygraph"].timed


def test_a_wrong_compilation_is_not_timed_and_is_no_reference(monkeypatch: pytest.MonkeyPatch):
    captures(monkeypatch, lambda unit, device: unit)
    wanted = ["default", "pygraph", "pygraph-compiled"]
    found = by_mode(TINY["host"], wanted)
    assert all(each.timed for each in found.values())
    assert found["pygraph-compiled"].verdict["against"] == "default"
    torch._dynamo.reset()
    compiled = torch.compile

    made: list[Any] = []

    def off(part: Any, **how: Any) -> Any:
        made.append(compiled(part, **how))
        good, factor = made[-1], 1.01 if len(made) == 1 else 1.0
        return lambda *inputs: good(*inputs) * factor

    monkeypatch.setattr(torch, "compile", off)
    found = by_mode(TINY["host"], wanted)
    assert found["eager"].timed and found["pygraph"].timed
    assert "1.00e-02 off eager" in found["default"].error
    assert found["default"].latency_us is None
    right = found["pygraph-compiled"]
    assert right.timed and right.verdict["against"] == "eager"


class Replayed:
    """Stands for a CUDA graph: computes anew from its buffers, into the same results."""

    def __init__(self, found: floor.Captured) -> None:
        self.found = found

    def replay(self) -> None:
        leaves = torch.utils._pytree.tree_leaves
        again = self.found.source(*self.found.inputs)
        for place, each in zip(leaves(self.found.outputs), leaves(again), strict=True):
            place.copy_(each)


def capture_on_cpu(step: Any, inputs: Any, parameters: Any = ()) -> floor.Captured:
    static = tuple(each.clone() for each in inputs)
    for _ in range(2):
        outputs = step(*static)
    found = floor.Captured(None, outputs, static, [], step)
    found.graph = Replayed(found)
    return found


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "ON_GPU", frozenset())
    monkeypatch.setattr(floor, "capture", capture_on_cpu)


@pytest.mark.parametrize("name", ["blog", "sac", "gpt", "decode-64", "host"])
def test_graphs_by_hand_copy_and_the_floor_does_not(
    name: str, without_gpu: None, monkeypatch: pytest.MonkeyPatch
):
    row = TINY[name]
    loaded = []
    load = floor.Captured.load

    def noted(found: floor.Captured, inputs: Any) -> None:
        loaded.append(found)
        load(found, inputs)

    monkeypatch.setattr(floor.Captured, "load", noted)
    found = by_mode(row, ["torch.cuda.graph", "floor"])
    for mode in ("torch.cuda.graph", "floor"):
        assert found[mode].timed and found[mode].verdict["bit_equal"], found[mode].error
    assert found["torch.cuda.graph"].bytes_copied > 0 == found["floor"].bytes_copied
    by_hand, limit = dict.fromkeys(map(id, loaded))
    many = len(row.inputs(1, CPU.torch)[0]) if name == "decode-64" else 1
    counts = [sum(id(each) == one for each in loaded) for one in (by_hand, limit)]
    assert counts[1] == check.STEPS * many < counts[0]  # the floor's are those of the check


def test_a_graph_by_hand_without_its_copies_is_wrong(
    without_gpu: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(floor.Captured, "load", lambda found, inputs: None)
    found = by_mode(TINY["decode"], ["torch.cuda.graph", "floor"])
    assert not found["torch.cuda.graph"].correct and not found["floor"].correct


def test_what_is_given_to_make_graphed_callables(
    without_gpu: None, monkeypatch: pytest.MonkeyPatch
):
    given: list[Any] = []

    def make(part: Any, arguments: Any) -> Any:
        given.append((part, arguments))
        return part

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", make)
    captures(monkeypatch, make)
    found = by_mode(TINY["blog"], modes.CALLABLES)
    assert list(found) == ["eager", *modes.CALLABLES]
    assert all(each.timed for each in found.values())
    whole, part, ours = (type(each).__name__ for each, _ in given)
    assert (whole, part, ours) == ("Perceptron", "Sequential", "Perceptron")
    given.clear()
    found = by_mode(TINY["blog-branch"], ["make_graphed_callables"])
    assert found["make_graphed_callables"].timed
    wanted = [arguments[0].requires_grad for _, arguments in given]
    assert wanted == [False, True, True]
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", lambda part, _: torch.nn.Identity())
    found = by_mode(TINY["blog"], ["make_graphed_callables-part"])
    assert not found["make_graphed_callables-part"].timed


def test_rows_have_the_modes_that_they_say():
    assert "make_graphed_callables" not in modes.of_row(ROWS["sac"], tuple(modes.MODES))
    assert modes.of_row(ROWS["sac"], ("pygraph",)) == ["eager", "pygraph"]
    assert modes.why_not("floor", ROWS["generate"], on_gpu=True)
    assert modes.why_not("floor", ROWS["sac"], on_gpu=True) is None
    assert modes.why_not("pygraph", ROWS["sac"], on_gpu=False) is None


def test_a_missing_library_skips_the_row(monkeypatch: pytest.MonkeyPatch):
    from pygraph.demo.models import Unavailable

    def build(device: Any) -> Any:
        raise Unavailable("transformers: no module")

    row = Row("generate", "", 1, build, TINY["host"].sample)
    records, about = run_row(row, CPU, QUICK, ["eager", "pygraph"])
    assert [each.skipped for each in records] == ["transformers: no module"] * 2
    assert about["about"] == ""


def test_no_more_inputs_than_the_pool_are_alive():
    assert POOL == len(TINY["host"].inputs(POOL, CPU.torch)) == 16
    assert run.POOL_SEED > check.STEPS  # those of the check are others


# ------------------------------------------------------------------------------- judging


START = {"w": torch.zeros(4), "step": torch.zeros(())}


def track(loss: float = 1.0, weight: float = 1.0, step: float = 5.0, token: int = 3) -> Track:
    state = {"w": torch.full((4,), weight), "step": torch.tensor(step)}
    return Track([(torch.tensor(loss), torch.tensor(token))], state)


def reference(**found: Any) -> Reference:
    return Reference(START, Runs(track(), found.pop("own", Apart())), **found)


def test_eagers_kernels_have_eagers_bits_or_its_spread():
    assert judge("pygraph", track(), reference()).bit_equal
    for off in (track(loss=1.001), track(weight=1.001), track(step=4.0), track(token=4)):
        found = judge("pygraph", off, reference())
        assert found.bit_equal is False
        assert found.correct == (off.outputs[0][1] == 4)  # indices alone are not judged by spread
    own = Apart(1e-3, 1e-3, 1e-3)
    assert judge("pygraph", track(1.002, 1.002), reference(own=own)).correct
    assert not judge("pygraph", track(1.006), reference(own=own)).correct
    assert not judge("floor", track(weight=1.006), reference(own=own)).correct


def test_compiled_code_may_round_otherwise():
    assert judge("default", track(1.0005, 1.0005), reference()).correct
    assert not judge("default", track(weight=1.01), reference()).correct
    assert judge("default", track(weight=1.01), reference(rounding=Apart(0, 0.004))).correct
    assert judge("default", track(weight=1.01), reference(seeds=Apart(0, 0.01))).correct
    assert not judge("reduce-overhead", track(loss=float("nan")), reference(seeds=Apart(9))).correct


def test_compiled_and_captured_is_compared_with_default():
    known = reference(least=0.5, default=Runs(track(1.1, 1.1)))
    found = judge("pygraph-compiled", track(1.1, 1.1), known)
    assert found.bit_equal and found.against == "default"
    assert not judge("pygraph-compiled", track(1.2, 1.2), known).correct
    assert judge("pygraph-compiled", track(1.2, 1.2), reference(least=0.5)).correct
    assert not judge("pygraph-compiled", track(1.7, 1.1), known).correct


def test_eager_that_is_not_finite_is_wrong():
    found = judge("eager", track(loss=float("inf")), reference())
    assert not found.correct and found.reason == "a result is not finite"
