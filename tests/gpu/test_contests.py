"""Graphs and callables take turns by a GPU's clocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pygraph
from pygraph import _engine
from pygraph.decide import selection
from pygraph.decide.selection import Clocked
from pygraph.reporting import GraphReport

pytestmark = pytest.mark.measured

CALLS = 600


def mlp(layers: int) -> torch.nn.Module:
    each = (m for _ in range(layers) for m in (torch.nn.Linear(64, 64), torch.nn.ReLU()))
    return torch.nn.Sequential(*each).cuda()


def serve(function: Any, make: Callable[[], Any], *, waits: bool) -> tuple[Any, GraphReport]:
    _engine.grant_exploration(60.0)
    compiled = torch.compile(function, backend="pygraph")
    inputs = [make() for _ in range(8)]
    wanted = [function(each) for each in inputs]
    for i in range(CALLS):
        result = compiled(inputs[i % 8])
        if waits:
            torch.cuda.synchronize()
        if i % 50 == 0:
            torch.testing.assert_close(result, wanted[i % 8], rtol=1e-3, atol=1e-3)
    torch.cuda.synchronize()
    (graph,) = pygraph.report().graphs
    return compiled, graph


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Clocked, Clocked]]:
    """All pairs that were judged."""
    seen: list[tuple[Clocked, Clocked]] = []
    original = selection.judge

    def judge(pairs: Any, over: bool, question: Any) -> Any:
        if question == "callable":
            seen[:] = pairs
        return original(pairs, over, question)

    monkeypatch.setattr(selection, "judge", judge)
    return seen


@pytest.mark.parametrize("waits", [True, False])
def test_sixteen_kernels_are_worth_a_graph(
    waits: bool, clocked: list[tuple[Clocked, Clocked]]
) -> None:
    _, graph = serve(mlp(8), lambda: torch.randn(16, 64, device="cuda"), waits=waits)
    found = next(each for each in graph.selection if each.what == "callable")
    assert found.graph
    clock = "device" if found.by == "proof" else found.by
    assert found.with_us[clock] < found.without_us[clock]
    assert graph.replays > CALLS / 2
    for with_graph, without in clocked:  # none, where the proof had decided
        assert not math.isnan(with_graph.device)
        assert not math.isnan(without.device)


def test_a_caller_that_waits_finds_the_stream_idle(
    clocked: list[tuple[Clocked, Clocked]],
) -> None:
    serve(mlp(2), lambda: torch.randn(16, 64, device="cuda"), waits=True)
    assert all(each.idle for pair in clocked for each in pair)
    # Until the device is done is no less than until the host is, and within the period.
    late = sum(each.period < each.device for pair in clocked for each in pair)
    assert late <= len(clocked) / 4


def test_a_caller_ahead_of_the_device_does_not(clocked: list[tuple[Clocked, Clocked]]) -> None:
    big = lambda x: x @ x  # noqa: E731
    serve(big, lambda: torch.randn(4096, 4096, device="cuda"), waits=False)
    assert sum(each.idle for pair in clocked for each in pair) < len(clocked)


def test_a_capture_of_somebody_elses_is_left_alone() -> None:
    """Neither turns nor clocks become part of it."""
    _engine.grant_exploration(60.0)
    model = mlp(2)
    compiled = torch.compile(model, backend="pygraph")
    x = torch.randn(16, 64, device="cuda")
    for _ in range(5):  # in the middle of a contest
        compiled(x)
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = compiled(x)
    x.normal_()
    graph.replay()
    torch.testing.assert_close(y, model(x), rtol=1e-3, atol=1e-3)
