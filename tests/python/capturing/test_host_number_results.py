"""Numbers on the host among the results of compiled callables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from host_numbers_support import HALF, Apart, Function, compiled, host_apart, number, replays
from places import Place, assert_bits
from training_support import fresh, generator_state

from pygraph import _engine
from pygraph.capturing import numbers
from pygraph.reporting import FALLBACK
from pygraph.runtime.compiled_graph import CompiledGraph


@pytest.fixture
def apart() -> Iterator[Apart]:
    with fresh("twin"), host_apart() as device:
        yield device


def with_number(make: Callable[[list[Any]], Any]) -> Function:
    return lambda arguments: [torch.relu(arguments[0]), make(arguments)]


def serve(graph: CompiledGraph, calls: int = 4) -> list[list[Any]]:
    return [list(graph.dispatcher([torch.randn(6), HALF])) for _ in range(calls)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bool, torch.bfloat16, torch.complex64])
def test_a_result_is_new_in_each_call(apart: Apart, dtype: torch.dtype) -> None:
    apart.dtypes = (torch.float64, dtype)
    graph = compiled(apart, with_number(lambda arguments: (arguments[1] * 3).to(dtype)))
    expected = (HALF * 3).to(dtype)
    for result in serve(graph, 5):
        assert_bits(result[1:], [expected])
        assert result[1].is_contiguous() and not result[1].requires_grad
        result[1].fill_(0)
    assert replays(graph) == 3


def test_a_number_made_of_nothing_is_returned(apart: Apart) -> None:
    graph = compiled(apart, with_number(lambda _: torch.full((), 2.5, dtype=torch.float64)))
    for result in serve(graph):
        assert result[1] == 2.5
    assert replays(graph) == 2


def test_a_number_that_is_returned_twice_is_one(apart: Apart) -> None:
    def function(arguments: list[Any]) -> list[Any]:
        x, value = arguments
        made = value * 3
        return [x + 1, made, made]

    graph = compiled(apart, function)
    for _, first, second in serve(graph):
        assert first is second
    assert replays(graph) == 2


def test_an_argument_that_is_returned_is_that_argument(apart: Apart) -> None:
    graph = compiled(apart, with_number(lambda arguments: arguments[1]))
    for _ in range(4):
        value = HALF.clone()
        assert graph.dispatcher([torch.randn(6), value])[1] is value
    assert replays(graph) == 2


def test_a_number_of_the_callables_own_is_that_one(apart: Apart) -> None:
    own = number(3.0)
    graph = compiled(apart, with_number(lambda _: own))
    assert all(result[1] is own for result in serve(graph))
    assert replays(graph) == 2


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda given: given[1].view(()), "shares memory with argument 1"),
        (lambda given: given[1].detach(), "shares memory with argument 1"),
        (lambda given: torch.rand((), dtype=torch.float64), "random numbers were drawn"),
        (lambda given: torch.rand((), dtype=torch.float64) * 0, "random numbers were drawn"),
        (lambda given: given[1].new_tensor(2.0, dtype=torch.complex128), "a cpu tensor"),
    ],
    ids=["view", "detached", "random", "random times 0", "wide"],
)
def test_what_is_not_given_back_faithfully_falls_back(
    apart: Apart, make: Callable[[list[Any]], Any], why: str
) -> None:
    apart.dtypes = (torch.float64, torch.complex128)
    function = with_number(make)
    graph = compiled(apart, function)
    arguments = [torch.randn(6), HALF]
    torch.manual_seed(1)
    found = [graph.dispatcher(list(arguments)) for _ in range(4)]
    state = generator_state(Place("twin"))
    torch.manual_seed(1)
    for result in found:
        assert_bits(result, function(list(arguments)))
    assert torch.equal(generator_state(Place("twin")), state)
    assert graph.report.state == FALLBACK
    assert why in str(graph.report.reason)
    assert "output 1 is a cpu tensor" in str(graph.report.reason)


def test_results_that_share_memory_fall_back(apart: Apart) -> None:
    def function(arguments: list[Any]) -> list[Any]:
        x, value = arguments
        made = value * 3
        return [x + 1, made, made.view(())]

    graph = compiled(apart, function)
    serve(graph)
    assert "output 2 is a cpu tensor that shares memory with output 1" in str(graph.report.reason)


@pytest.mark.parametrize("counted", [2, 3, 4], ids=["real run", "capture", "probe"])
def test_a_number_that_differs_from_run_to_run_falls_back(apart: Apart, counted: int) -> None:
    calls: list[Any] = []

    def function(arguments: list[Any]) -> list[Any]:
        calls.append(arguments)
        return [arguments[0] + 1, number(float(len(calls) == counted))]

    graph = compiled(apart, function)
    serve(graph)
    assert "output 1 is a cpu tensor that differs from run to run" in str(graph.report.reason)


def test_the_proof_compares_numbers(apart: Apart, monkeypatch: pytest.MonkeyPatch) -> None:
    original = numbers.result_spec

    def result_spec(position: int, a: Any, *args: Any) -> Any:
        made = original(position, a, *args)
        return _engine.ResultSpec(
            kind=made.kind, value=made.value ^ 1, bytes=made.bytes, dtype_of=a.outputs[position]
        )

    monkeypatch.setattr(numbers, "result_spec", result_spec)
    graph = compiled(apart, with_number(lambda arguments: arguments[1] * 3))
    serve(graph)
    assert graph.report.state == FALLBACK
    assert "result 1 differs" in str(graph.report.reason)
