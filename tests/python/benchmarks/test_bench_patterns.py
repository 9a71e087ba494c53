"""The patterns: the clean model of each computes what the model with the obstacle does, inputs do
not repeat, and a mode that is wrong is found."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.harness.compare import relative_error  # noqa: E402
from benchmarks.harness.device import Device  # noqa: E402
from benchmarks.patterns import check, host_values, modes  # noqa: E402
from benchmarks.patterns.catalogue import PATTERNS, find  # noqa: E402
from benchmarks.patterns.pattern import (  # noqa: E402
    BY_HAND,
    TENSORS,
    VALUES,
    Loaded,
    Pattern,
    as_tensor,
    flat,
)
from benchmarks.patterns.record import Record  # noqa: E402
from benchmarks.patterns.run import Options, run_pattern  # noqa: E402

CPU = Device("cpu")
ROOT = Path(__file__).resolve().parents[3]
EQUAL = 1e-5
SEEDS = (0, 1, 1001)

pytestmark = pytest.mark.usefixtures("one_thread", "fresh_dynamo")


def eager(pattern: Pattern, clean: bool) -> modes.PatternRunner:
    bench = modes.bench_of("eager", pattern, pattern.build(clean, CPU.torch), CPU)
    return modes.maker("eager", {})(bench)


def computed(pattern: Pattern, runner: modes.PatternRunner, clean: bool, seed: int) -> Any:
    inputs = pattern.inputs(seed, clean, CPU.torch)
    torch.manual_seed(seed)
    return flat(modes.observed(runner, inputs))


def test_there_are_many():
    assert len(PATTERNS) >= 28


@pytest.mark.parametrize("name", PATTERNS)
def test_the_clean_model_computes_the_same(name: str):
    if name == "numpy_scalar":
        pytest.importorskip("numpy")
    pattern = PATTERNS[name]
    with torch.set_grad_enabled(pattern.training):
        runners = {clean: eager(pattern, clean) for clean in (False, True)}
        results = []
        for seed in SEEDS:
            own, clean = (computed(pattern, runners[c], c, seed) for c in (False, True))
            assert relative_error(clean, own) < EQUAL
            assert all(each.isfinite().all() for each in own)
            results.append(own)
    # Otherwise a graph that reads the inputs of an earlier call would pass for right.
    assert min(relative_error(results[0], each) for each in results[1:]) > 10 * pattern.tolerance


@pytest.mark.parametrize("name", [name for name, each in PATTERNS.items() if each.values(0)])
def test_numbers_are_others_in_each_call(name: str):
    if name == "numpy_scalar":
        pytest.importorskip("numpy")
    stream = PATTERNS[name].stream(False, CPU.torch)
    seen = [float(stream[0][-1]) for _ in range(VALUES)]
    assert len(set(seen)) >= 256


@pytest.mark.parametrize("name", [name for name, each in PATTERNS.items() if each.values(0)])
def test_a_number_of_another_call_would_be_noticed(name: str):
    pattern = PATTERNS[name]
    runner = eager(pattern, clean=False)
    own, other = (pattern.inputs(seed, False, CPU.torch) for seed in (0, 1))
    result = flat(modes.observed(runner, own))
    many = len(pattern.values(0))
    for place in range(len(own) - many, len(own)):
        changed = (*own[:place], other[place], *own[place + 1 :])
        found = flat(modes.observed(runner, changed))
        assert relative_error(result, found) > 10 * pattern.tolerance, place


def test_a_clean_program_has_as_much_fresh_input():
    """The same values, in as many places of memory: each number is a tensor of its own."""
    for name, pattern in PATTERNS.items():
        own, clean = (pattern.stream(c, CPU.torch) for c in (False, True))
        for place in range(len(own[0])):
            pairs = [(a[place], b[place]) for a, b in zip(own, clean, strict=True)]
            assert all(torch.equal(as_tensor(a), b) for a, b in pairs), name
            given, kept = ([each[n] for each in pairs] for n in (0, 1))
            numbers = place >= len(own[0]) - len(pattern.values(0))
            addresses = {each.data_ptr() for each in kept}
            assert len(addresses) == (VALUES if numbers else TENSORS), (name, place)
            if isinstance(given[0], torch.Tensor):
                assert len({each.data_ptr() for each in given}) == len(addresses), (name, place)
            many = len({float(each) for each in kept}) if numbers else VALUES
            assert many >= 256, (name, place)


COPYING = {
    "cpu_one",
    "cpu_three",
    "cpu_later",
    "cpu_both",
    "tolist",
    "item_end",
    "input_1mb",
    "input_pinned",
}


def test_a_clean_program_copies_by_hand_outside_of_its_model():
    """And says so; host inputs are brought by it, and its model neither sees nor makes any."""
    assert {name for name, each in PATTERNS.items() if each.clean.by_hand} == COPYING
    docs = (ROOT / "docs" / "benchmarks.md").read_text()
    for name, pattern in PATTERNS.items():
        assert (BY_HAND in pattern.about) == (name in COPYING), name
    for name in COPYING:
        pattern = PATTERNS[name]
        assert name in docs
        model = pattern.build(True, CPU.torch)
        seen: list[Any] = []

        def forward(*inputs: Any, model: Any = model, seen: Any = seen) -> Any:
            seen.extend([*inputs, model(*inputs)])
            return seen[-1]

        inputs = pattern.inputs(0, True, torch.device("cpu"))
        own = flat(pattern.build(False, CPU.torch)(*inputs))
        assert all(map(torch.allclose, flat(model.called(forward, *inputs)), own)), name
        assert len(seen) == len(inputs) + 1
        on_meta = pattern.inputs(0, True, torch.device("meta"))
        where = [n for n, each in enumerate(on_meta) if each.device.type == "cpu"]
        assert where == list(pattern.host), name


def test_copies_by_hand_are_timed(monkeypatch: pytest.MonkeyPatch):
    told: list[str] = []
    real = PATTERNS["cpu_one"].clean.called

    def called(self: Any, forward: Any, *inputs: Any) -> Any:
        told.append(type(forward).__name__)
        return real(self, forward, *inputs)

    monkeypatch.setattr(PATTERNS["cpu_one"].clean, "called", called)
    found = run("cpu_one", "eager", "clean")
    assert found["clean"].timed and set(told) == {"OptimizedModule"}
    assert len(told) > found["clean"].samples


def test_one_copy_more_is_needed_for_what_the_host_alone_has():
    for name, pattern in PATTERNS.items():
        if pattern.clean.by_hand:
            assert not pattern.one_copy_more, name
        elif pattern.host or pattern.values(0):
            assert pattern.one_copy_more, name
    limits = {name: PATTERNS[name].limit for name in ("float_scale", "item_end", "table_moved")}
    assert limits == {"float_scale": 1.15, "item_end": 1.10, "table_moved": 1.15}


def test_a_mode_that_would_end_the_process_is_not_run(monkeypatch: pytest.MonkeyPatch):
    assert "captures_underway" in PATTERNS["custom_operator"].ends_process["reduce-overhead"]
    print_ = dataclasses.replace(PATTERNS["print"], ends_process={"default": "not run: boom"})
    monkeypatch.setitem(PATTERNS, "print", print_)
    found = run("print", "eager", "default", "clean")
    assert found["eager"].timed and found["clean"].timed
    ended = found["default"]
    assert (ended.not_run, ended.error, ended.correct, ended.timed) == (
        True,
        "not run: boom",
        False,
        False,
    )
    assert ended.compile_s is None


def test_what_is_to_stay_on_the_host_is_not_moved():
    meta = torch.device("meta")
    pattern = PATTERNS["mask_input"]
    assert [each.device.type for each in pattern.inputs(0, False, meta)] == ["meta", "cpu"]
    assert [each.device.type for each in pattern.inputs(0, True, meta)] == ["meta", "meta"]
    (_, scale), (_, clean) = (PATTERNS["float_scale"].inputs(0, c, meta) for c in (False, True))
    assert isinstance(scale, float) and clean.device.type == "meta"
    built = PATTERNS["scalar_buffer"].build(False, meta)
    assert built.scale.device.type == "cpu" and built.head.weights[0].device.type == "meta"
    assert PATTERNS["scalar_buffer"].build(True, meta).scale.device.type == "meta"


def test_an_unknown_pattern_is_named():
    with pytest.raises(KeyError, match="no pattern 'nothing'"):
        find("float_scale,nothing")


def test_in_training_gradients_are_compared():
    pattern = PATTERNS["dropout_checkpoint"]
    runner = eager(pattern, clean=False)
    loss, *gradients = computed(pattern, runner, False, 0)
    assert loss.shape == () and len(gradients) == len(list(runner.model.parameters()))
    again = computed(pattern, runner, False, 0)
    assert all(map(torch.equal, (loss, *gradients), again))  # they do not add up


class Wrong(host_values.Scaled):
    def forward(self, x: Any, scale: Any) -> Any:
        return self.tail(self.head(x) * scale) * 1.01


def judged(pattern: Pattern, mode: str, step: Any = None) -> Any:
    """A mode beside a right eager one; `step` in place of its model."""
    reference = check.Reference(PATTERNS["float_scale"])
    for each in ("eager", "default"):
        found = check.results(eager(PATTERNS["float_scale"], False), each, pattern, CPU)
        assert check.judge(each, found, reference).correct
    runner = eager(pattern, mode == "clean")
    runner.step = step or runner.step
    return check.judge(mode, check.results(runner, mode, pattern, CPU), reference)


def test_a_right_mode_is_found_right():
    verdict = judged(PATTERNS["float_scale"], "pygraph")
    assert verdict.correct and verdict.fresh and verdict.bit_equal_to_default


def test_a_wrong_mode_is_found():
    wrong = Pattern("wrong", "", Wrong, Wrong, values=PATTERNS["float_scale"].values)
    verdict = judged(wrong, "pygraph")
    assert not verdict.correct and "against eager" in verdict.reason
    assert verdict.bit_equal_to_default is False


def test_results_of_other_inputs_are_found(monkeypatch: pytest.MonkeyPatch):
    pattern = PATTERNS["float_scale"]
    stale = pattern.inputs(0, False, CPU.torch)
    model = pattern.build(False, CPU.torch)
    assert not judged(pattern, "pygraph", lambda *_: model(*stale)).correct
    monkeypatch.setattr(check, "relative_error", lambda *_: 0.5)  # near enough for a tolerance
    reference = check.Reference(Pattern("far", "", Loaded, Loaded, tolerance=1.0))
    found = [(n, (torch.zeros(()),)) for n in range(check.CALLS)]
    verdict = check.judge("eager", found, reference)
    assert verdict.reason == "a result is that of other inputs"


def test_a_random_mode_is_compared_with_default():
    reference = check.Reference(PATTERNS["multinomial"])
    for mode, value in (("eager", 1.0), ("default", 2.0)):
        found = [(n, (torch.full((2,), value + n),)) for n in range(check.CALLS)]
        assert check.judge(mode, found, reference).correct, mode
    assert check.judge("pygraph", found, reference).correct
    off = check.judge("clean", found, reference)
    assert not off.correct and "against eager" in off.reason


def run(name: str, *wanted: str, **options: Any) -> dict[str, Record]:
    records = run_pattern(PATTERNS[name], CPU, Options(wanted, seconds=0.01, **options))
    return {each.mode: each for each in records}


@pytest.mark.parametrize("name", ["float_computed", "step_tensor"])
def test_a_pattern_in_all_modes_of_the_twin(name: str):
    told: list[str] = []
    found = run(name, *modes.ON_CPU, timed=lambda: told.append("timed"))
    for mode, each in found.items():
        assert each.timed and each.error is None, (mode, each.error)
        assert each.samples >= 100 and each.latency_p99_us >= each.latency_us > 0
        assert each.recompilations <= 2
    assert found["pygraph"].bit_equal_to_default and found["clean"].extra["graphs"]
    assert found["clean"].fallbacks == []
    assert told == ["timed"]


def test_options_reach_pygraph():
    (record,) = run("float_scale", "pygraph", pygraph={"no_such_option": 1}).values()
    assert not record.timed and "no_such_option" in record.error


def test_a_wrong_mode_is_not_timed_and_costs_only_itself(monkeypatch: pytest.MonkeyPatch):
    wrong = Pattern("float_scale", "", host_values.Scaled, Wrong, values=lambda k: (0.5,))
    monkeypatch.setitem(PATTERNS, "float_scale", wrong)
    found = run("float_scale", "eager", "clean")
    assert found["eager"].timed
    assert not found["clean"].correct and found["clean"].latency_us is None
    assert "against eager" in found["clean"].error
