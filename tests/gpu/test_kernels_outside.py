"""pygraph.explain() and require="full" with Inductor: kernels are counted, and what runs outside of
graphs is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import Mlp, randn

import pygraph

Compile = Callable[..., Any]
REQUIRED = {"require": "full"}


def test_all_kernels_of_a_whole_graph_are_inside() -> None:
    found = pygraph.explain(Mlp().cuda(), randn(4, 64))
    assert found.counted == "kernels" and found.coverage == 1.0, str(found)
    assert found.inside > 0 and not found.kernels_outside and not found.blockers


def test_kernels_between_graphs_are_outside_and_the_break_is_named() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() @ x
        torch._dynamo.disable(lambda: y.mul_(2))()
        return y.cos()

    found = pygraph.explain(function, randn(64, 64))
    assert found.outside >= 1 and 0 < found.coverage < 1, str(found)
    assert found.kernels_outside and found.kernels_outside[0].us > 0
    assert any(
        (each.source or "").startswith("test_kernels_outside.py:") for each in found.blockers
    )


def between(x: torch.Tensor) -> torch.Tensor:
    y = (x @ x).relu()
    z = y.cpu() + 1
    return (z.cuda() @ x).relu()


@pytest.mark.parametrize("cached", [False, True])
def test_work_between_partitions_is_a_blocker(cached: bool) -> None:
    if cached:
        torch.compile(between, backend="pygraph")(randn(32, 32))
        torch._dynamo.reset()
    found = pygraph.explain(between, randn(32, 32))
    whats = [each.what for each in found.blockers]
    assert any("from the GPU to the CPU" in each for each in whats), str(found)
    lines = {each.source for each in found.blockers}
    assert f"test_kernels_outside.py:{between.__code__.co_firstlineno + 2}" in lines, str(found)


@pytest.mark.parametrize("cached", [False, True])
def test_work_between_partitions_does_not_meet_the_requirement(cached: bool) -> None:
    if cached:
        torch.compile(between, backend="pygraph")(randn(32, 32))
        torch._dynamo.reset()
    fast = torch.compile(between, backend="pygraph", options=REQUIRED)
    for _ in range(2):
        with pytest.raises(pygraph.RequirementNotMet) as caught:
            fast(randn(32, 32))
    assert caught.value.operator and caught.value.remedy, caught.value
    assert (caught.value.source or "").startswith("test_kernels_outside.py:"), caught.value


def test_code_that_inductor_keeps_out_of_graphs_does_not_meet_the_requirement() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x).sum() + x.sum()

    options = {**REQUIRED, "graph_partition": False}
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        fast = torch.compile(function, backend="pygraph", options=options)
        with pytest.raises(pygraph.RequirementNotMet) as caught:
            fast(randn(32))
            fast(randn(32))
    assert (caught.value.source or "").rpartition("/")[2].startswith("test_kernels_outside.py:")


@pytest.mark.parametrize("cached", [False, True])
def test_what_has_a_graph_meets_the_requirement(compiled: Compile, cached: bool) -> None:
    model = Mlp().cuda()
    if cached:
        compiled(model)(randn(4, 64))
        torch._dynamo.reset()
    fast = compiled(model, options=REQUIRED)
    for _ in range(5):
        fast(randn(4, 64))
    assert pygraph.report().replays == 3


def test_training_meets_the_requirement(compiled: Compile) -> None:
    model = Mlp().cuda()
    fast = compiled(model, options=REQUIRED)
    with torch.enable_grad():
        for _ in range(5):
            fast(randn(4, 64)).square().mean().backward()
    assert pygraph.report().replays >= 4


def test_views_alone_are_no_work() -> None:
    fast = torch.compile(lambda x: x.t()[1:], backend="pygraph", options=REQUIRED)
    for _ in range(3):
        x = randn(4, 6)
        assert torch.equal(fast(x), x.t()[1:])


def test_a_backward_with_work_outside_raises_in_forward_or_backward() -> None:
    class OnHost(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return ((gradient * 3).cpu() + 1).cuda() * 2

    fast = torch.compile(OnHost.apply, backend="pygraph", options=REQUIRED)
    with torch.enable_grad(), pytest.raises(pygraph.RequirementNotMet, match="backward"):
        x = randn(8, 8, requires_grad=True)
        for _ in range(3):
            fast(x).sum().backward()
