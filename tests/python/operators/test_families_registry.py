"""The operator families of the GPU tests, on the CPU: they run, their cases keep the rules, and the
exercise that they are put through finds what it must find."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "gpu"))

from families import FAMILIES
from families.exercise import Outcome, as_list, exercise
from families.record import Record
from families.registry import AOT, DIRECT, FALLS_BACK, GRAPHED, INDUCTOR, PARTLY, Case, Make

from pygraph.reporting import STATES

pytestmark = pytest.mark.filterwarnings("ignore")
ON_CPU = [family for family in FAMILIES if not family.gpu_only]


@pytest.fixture(autouse=True)
def small_and_without_gradients(one_thread: None) -> Iterator[None]:
    with torch.no_grad():
        yield


def test_the_registry_is_complete() -> None:
    names = [family.name for family in FAMILIES]
    assert len(names) == len(set(names)) == len({family.id for family in FAMILIES})
    assert sum(family.expect == GRAPHED for family in FAMILIES) >= 45
    assert {GRAPHED, PARTLY, FALLS_BACK} < set(STATES)
    for family in FAMILIES:
        assert family.why and family.path in (DIRECT, AOT, INDUCTOR), family.name
        assert family.expect in (GRAPHED, PARTLY, FALLS_BACK), family.name
        assert not family.reason or family.expect == FALLS_BACK, family.name
    assert len(ON_CPU) >= 100


def storages(values: Sequence[Any]) -> set[int]:
    return {
        value.untyped_storage().data_ptr()
        for value in values
        if isinstance(value, torch.Tensor) and value.layout == torch.strided and value.numel()
    }


@pytest.mark.parametrize("family", ON_CPU, ids=lambda family: family.id)
def test_a_case_runs_and_keeps_the_rules(family: Any) -> None:
    case = family.build(Make("cpu"))
    first, second = case.inputs(), case.inputs()
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a.layout == torch.strided]
    assert all((a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()) for a, b in pairs)
    assert any(not torch.equal(a, b) for a, b in pairs)
    constants = case.constants()
    results = as_list(case.function(*first, *constants))
    assert results and all(isinstance(result, torch.Tensor) for result in results)
    assert not storages(results) & storages([*first, *constants])
    function = boxed(case.function)
    outcome = exercise(case, function, function)
    assert not outcome.problems
    assert outcome.bit_equal
    assert outcome.constants_moved == bool(constants)


# ------------------------------------------------------------------ what the exercise must find

Call = Callable[[list[Any]], list[Any]]


def boxed(function: Callable[..., Any]) -> Call:
    return lambda arguments: as_list(function(*arguments))


def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * w


def outcome_of(call: Call, function: Callable[..., Any] = scaled) -> Outcome:
    make = Make("cpu")
    case = Case(function, lambda: [make.randn(5, 3)], lambda: [make.randn(5, 3)])
    return exercise(case, call, boxed(function))


def test_a_right_callable_passes() -> None:
    outcome = outcome_of(boxed(scaled))
    assert outcome.problems == [] and outcome.bit_equal and outcome.calls == 6


def test_an_input_that_did_not_move_is_found() -> None:
    kept: list[Any] = []

    def stale(arguments: list[Any]) -> list[Any]:
        kept[:] = kept or arguments[:1]
        return [scaled(kept[0], arguments[1])]

    assert any("differs" in problem for problem in outcome_of(stale).problems)


def test_a_constant_that_did_not_move_is_found() -> None:
    kept: list[Any] = []

    def stale(arguments: list[Any]) -> list[Any]:
        kept[:] = kept or arguments[1:]
        return [scaled(arguments[0], kept[0])]

    outcome = outcome_of(stale)
    assert [problem.split(":")[0] for problem in outcome.problems] == ["call 5"]


def test_a_stale_index_is_found() -> None:
    kept: list[Any] = []
    make = Make("cpu")

    def stale(arguments: list[Any]) -> list[Any]:
        kept[:] = kept or arguments[1:]
        return [arguments[0][kept[0]]]

    case = Case(lambda x, i: x[i], lambda: [make.randn(50), make.ints(50, 20)])
    assert exercise(case, stale, boxed(case.function)).problems


def test_an_output_that_is_used_again_is_found() -> None:
    out = torch.empty(5, 3)

    def reusing(arguments: list[Any]) -> list[Any]:
        return [torch.mul(*arguments, out=out)]

    problems = outcome_of(reusing).problems
    assert problems and all("changed after it" in problem for problem in problems)


def test_old_memory_is_poisoned_and_indices_stay_valid() -> None:
    make = Make("cpu")
    seen: list[list[Any]] = []
    spoilt: list[tuple[bool, bool, bool]] = []

    def watching(arguments: list[Any]) -> list[Any]:
        if seen:
            x, i, copy = seen[-1]
            valid = bool((i >= 0).all() and (i < 50).all())
            spoilt.append((bool(x.isnan().all()), valid, torch.equal(i, copy)))
        seen.append([*arguments, arguments[1].clone()])
        return [arguments[0][arguments[1]]]

    case = Case(lambda x, i: x[i], lambda: [make.randn(50), make.ints(50, 20)])
    assert not exercise(case, watching, boxed(case.function)).problems
    assert spoilt == [(True, True, False)] * 4
    constant = Case(scaled, lambda: [make.randn(5)], lambda: [make.randn(5)])
    weights: list[Any] = []

    def remembering(arguments: list[Any]) -> list[Any]:
        weights.append(arguments[1])
        return [scaled(*arguments)]

    assert not exercise(constant, remembering, boxed(scaled)).problems
    assert weights[0].isnan().all() and not weights[-1].isnan().any()
    assert len({weight.data_ptr() for weight in weights}) == 2


def test_an_argument_that_does_not_move_is_found() -> None:
    x = torch.randn(5)
    case = Case(scaled, lambda: [x, torch.randn(5)])
    problems = exercise(case, boxed(scaled), boxed(scaled)).problems
    assert any("where an earlier one stood" in problem for problem in problems)


def test_a_write_that_is_missing_is_found() -> None:
    def writing(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.mul_(2) * w

    def forgetful(arguments: list[Any]) -> list[Any]:
        return [arguments[0] * 2 * arguments[1]]

    assert not outcome_of(boxed(writing), writing).problems
    assert outcome_of(forgetful, writing).problems


def test_a_write_too_many_is_found() -> None:
    def careless(arguments: list[Any]) -> list[Any]:
        result = scaled(*arguments)
        arguments[1].add_(1)
        return [result]

    assert outcome_of(careless).problems


def test_a_callable_that_differs_from_itself_may_differ_as_much() -> None:
    generator = torch.Generator().manual_seed(0)

    def noisy(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * w + 1e-4 * torch.rand(x.shape, generator=generator)

    outcome = outcome_of(boxed(noisy), noisy)
    assert not outcome.problems and not outcome.bit_equal and 0 < outcome.spread < 1e-3
    assert outcome_of(boxed(lambda x, w: noisy(x, w) + 0.01), noisy).problems


def test_the_record_is_stored_after_every_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    path = tmp_path / "families.json"
    record = Record(path)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    record.add({"family": "a", "state": "graphed", "bit_equal": True, "problems": []})
    record.add({"family": "b", "state": "fallback", "bit_equal": False, "problems": ["wrong"]})
    stored = json.loads(path.read_text())
    assert stored["summary"]["states"] == {"graphed": 1, "fallback": 1}
    assert stored["summary"]["graphed_and_bit_equal"] == 1
    assert stored["summary"]["wrong"] == ["b"]
    assert {"torch", "gpu", "driver", "python", "triton"} <= set(stored["env"])

    def broken() -> None:
        raise RuntimeError("an illegal memory access was encountered\nmore")

    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    record.add({"family": "c", "state": "raised"})
    assert record.broken == "c: an illegal memory access was encountered"
