"""pygraph.capture: captured callables that code of torch.compile's calls. Dynamo breaks its graph
there, and looks at no frame of what they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from callable_support import UNGRAPHED
from places import Place
from torch import nn

import pygraph
from pygraph.reporting import GRAPHED

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Seen:
    """A backend that notes the operators of each graph it is given."""

    def __init__(self) -> None:
        self.graphs: list[list[str]] = []

    def __call__(self, graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        called = [node for node in graph.graph.nodes if node.op.startswith("call_")]
        self.graphs.append([getattr(node.target, "__name__", node.target) for node in called])
        return graph.forward


def test_a_captured_callable_is_replayed_within_compiled_code(place: Place) -> None:
    seen = Seen()

    @pygraph.capture(device=place.name)
    def captured(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def around(x: torch.Tensor) -> torch.Tensor:
        return captured(x - 1) + 3

    compiled = torch.compile(around, backend=seen)
    for _ in range(8):
        x = place.randn(4)
        assert torch.equal(compiled(x), (x - 1) * 2 + 3)
    assert seen.graphs == [["sub"], ["add"]], "what is around it is compiled, and nothing else"
    (graph,) = pygraph.report().graphs
    assert (graph.state, graph.replays) == (GRAPHED, 8 - UNGRAPHED)


def test_one_that_is_replayed_already(place: Place) -> None:
    captured = pygraph.capture(lambda x: x * 2, device=place.name)
    x = place.randn(4)
    for _ in range(UNGRAPHED + 1):
        captured(x)
    seen = Seen()
    compiled = torch.compile(lambda x: captured(x) + 3, backend=seen)
    assert torch.equal(compiled(x), x * 2 + 3)
    (graph,) = pygraph.report().graphs
    assert (graph.state, graph.replays) == (GRAPHED, 2)
    assert seen.graphs == [["add"]]


def test_a_module_that_waits_for_a_backward(place: Place) -> None:
    def losses(wrap: Callable[[nn.Module], Any], around: Callable[[Any], Any]) -> Iterator[Any]:
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8)).to(place.torch)
        head = nn.Linear(8, 2).to(place.torch)
        called = wrap(body)
        step = around(lambda x: head(called(x) * 2).square().mean())
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
        for _ in range(9):
            optimizer.zero_grad()
            loss = step(place.randn(8, 4))
            loss.backward()
            optimizer.step()
            yield loss.detach()

    def capture(module: nn.Module) -> Any:
        return pygraph.capture(module, device=place.name)

    def compile_(function: Any) -> Any:
        return torch.compile(function, backend="aot_eager")

    expected = list(losses(lambda module: module, lambda function: function))
    for found, wanted in zip(losses(capture, compile_), expected, strict=True):
        assert torch.equal(found, wanted)
    forward, backward = pygraph.report().graphs
    assert forward.state == backward.state == GRAPHED
    # The first backward of a graph runs as it is, and the second is linked.
    assert (forward.replays, backward.replays) == (9 - UNGRAPHED, 9 - UNGRAPHED - 2)


def test_one_that_has_no_graph_is_compiled_with_what_is_around_it(place: Place) -> None:
    """As if it had not been captured."""
    seen = Seen()

    @pygraph.capture(device=place.name)
    def captured(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum().item() > 0 else x * 3

    compiled = torch.compile(lambda x: captured(x) + 3, backend=seen)
    for number in range(8):
        x = place.randn(4)
        x[0] = 10 if number % 2 else -10
        assert torch.equal(compiled(x), x * (2 if number % 2 else 3) + 3)
    assert pygraph.report().graphs[-1].reason is not None
    assert ["sum"] in [graph[:1] for graph in seen.graphs], seen.graphs


def test_an_error_is_the_callers(place: Place) -> None:
    seen = Seen()
    broken: list[int] = []

    @pygraph.capture(device=place.name)
    def captured(x: torch.Tensor) -> torch.Tensor:
        if broken:
            raise KeyError("the callable's")
        return x * 2

    compiled = torch.compile(lambda x: captured(x) + 3, backend=seen)
    x = place.randn(4)
    broken.append(1)
    with pytest.raises(KeyError, match="callable's"):
        compiled(x)
    broken.clear()
    assert torch.equal(compiled(x), x * 2 + 3)
    assert seen.graphs == [["add"]], "Dynamo is asked again behind the call that has failed"
