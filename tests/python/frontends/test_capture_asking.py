"""Programs that ask torch whether they are captured: a call and its replay compute the same."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from callable_support import UNGRAPHED
from places import Place

import pygraph
from pygraph.capturing.asking import answered

CALLS = 8


def is_captured() -> bool:
    try:
        return torch.cuda.is_current_stream_capturing()
    except RuntimeError:  # torch for CPUs has no answer
        return False


def agree(function: Any, place: Place) -> Any:
    """The graph of a function whose captured calls are compared with others."""
    captured = pygraph.capture(function, device=place.name)
    for _ in range(CALLS):
        x = place.randn(4).abs()
        assert torch.equal(captured(x), function(x))
    (graph,) = pygraph.report().graphs
    return graph


def test_what_it_does_only_while_captured_is_not_replayed(place: Place) -> None:
    graph = agree(lambda x: x * 2 + 1 if is_captured() else x * 2, place)
    assert graph.replays == CALLS - UNGRAPHED, str(pygraph.report())


def test_what_it_leaves_out_while_captured(place: Place) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if not is_captured():
            assert x.sum().item() >= 0
        return x * 2

    assert agree(function, place).replays == CALLS - UNGRAPHED, str(pygraph.report())


def test_what_differs_and_cannot_be_captured_otherwise_runs_as_it_is(place: Place) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1 if is_captured() else x * (2 if x.sum().item() >= 0 else 3)

    graph = agree(function, place)
    assert graph.replays == 0
    assert "told that it is not captured: " in str(graph.reason)


def test_a_program_that_asks_in_its_backward(place: Place) -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(context: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return grad * 3 if is_captured() else grad * 2

    def function(x: torch.Tensor) -> torch.Tensor:
        weight = torch.ones_like(x, requires_grad=True)
        (grad,) = torch.autograd.grad(Doubled.apply(weight * x).sum(), weight)
        return grad

    assert agree(function, place).replays == CALLS - UNGRAPHED, str(pygraph.report())


@pytest.mark.parametrize("told", [False, True])
def test_only_the_thread_that_captures_is_told(told: bool) -> None:
    answers: list[bool] = []
    with answered(told) as question:
        other = threading.Thread(target=lambda: answers.append(is_captured()))
        other.start()
        other.join()
        assert answers == [False] and not question.asked
        assert is_captured() is told and question.asked
    assert not is_captured()
