"""An operator that breaks a capture costs only itself: graphs run on both sides of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers import assert_same, randn

import pygraph
from pygraph.reporting import GraphReport

Compile = Callable[..., Any]

#: Calls until the graphs around one culprit replay: warm, failed, compiled again, warm, linked.
CALLS = 8


@pytest.fixture(scope="module")
def operators() -> Iterator[Any]:
    """Custom operators that a capture cannot take; `pinned` gives a graph a node that it must not
    have, and `quiet` invalidates the capture without saying so."""
    with torch.library._scoped_library("pygraph_gpu_culprit", "DEF") as library:
        host = torch.full((1,), 2.0).pin_memory()

        def synchronize(x: torch.Tensor) -> torch.Tensor:
            torch.cuda.synchronize()
            return x * 2

        def quiet(x: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(RuntimeError):
                torch.cuda.current_stream().synchronize()
            return torch.empty_like(x) if torch.cuda.is_current_stream_capturing() else x * 2

        def pinned(x: torch.Tensor) -> torch.Tensor:
            return x * host.to(x.device, non_blocking=True)

        def pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            torch.cuda.synchronize()
            return x * 2, x + 1

        for operator in (synchronize, quiet, pinned):
            name = operator.__name__
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, operator, "CUDA")
            qualified = f"pygraph_gpu_culprit::{name}"
            torch.library.register_fake(qualified, torch.empty_like, lib=library)
            torch.library.register_autograd(qualified, lambda context, grad: grad * 2, lib=library)
        library.define("pair(Tensor x) -> (Tensor, Tensor)")
        library.impl("pair", pair, "CUDA")
        torch.library.register_fake(
            "pygraph_gpu_culprit::pair",
            lambda x: (torch.empty_like(x), torch.empty_like(x)),
            lib=library,
        )
        yield torch.ops.pygraph_gpu_culprit


def graphs(state: str) -> list[GraphReport]:
    return [each for each in pygraph.report().graphs if each.state == state]


def states() -> list[tuple[str, str, Any, Any]]:
    return [(e.name, e.state, e.operator, e.reason) for e in pygraph.report().graphs]


def assert_graphs_around(culprit: str, count: int) -> None:
    new = graphs("graphed")
    assert len(new) == count, (states(), pygraph.report().events)
    assert not graphs("fallback"), states()
    for graph in new:
        assert graph.culprits == [culprit] and graph.compiled_again_s > 0
        assert graph.replays > 0, states()


@pytest.mark.parametrize("name", ["synchronize", "quiet", "pinned"])
def test_a_custom_operator(compiled: Compile, operators: Any, name: str) -> None:
    operator = getattr(operators, name)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(operator(x @ x + 1) * 3)

    fast = compiled(function)
    for _ in range(CALLS):
        x = randn(32, 32)
        assert_same(fast(x), function(x))
    assert_graphs_around(f"pygraph_gpu_culprit::{name}", 2)
    (old,) = graphs("replaced")
    assert old.operator == f"pygraph_gpu_culprit.{name}.default"
    assert f"with pygraph_gpu_culprit::{name} outside, in" in str(pygraph.report())


def test_an_operator_with_several_results(compiled: Compile, operators: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        left, right = operators.pair(torch.sin(x))
        return torch.tanh(left * right + x)

    fast = compiled(function)
    for _ in range(CALLS):
        x = randn(32, 32)
        assert_same(fast(x), function(x))
    assert_graphs_around("pygraph_gpu_culprit::pair", 2)


def test_dynamic_sizes(compiled: Compile, operators: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(operators.synchronize(torch.sin(x)) * x.shape[0])

    fast = compiled(function, dynamic=True)
    for call in range(3 * CALLS):
        x = randn(16 + 8 * (call % 2), 32)
        assert_same(fast(x), function(x))
    assert_graphs_around("pygraph_gpu_culprit::synchronize", 2)


def test_training(compiled: Compile, operators: Any) -> None:
    torch.manual_seed(3)
    model = torch.nn.Linear(32, 32, device="cuda")

    def function(x: torch.Tensor) -> torch.Tensor:
        return operators.synchronize(model(x)).tanh()

    def step(call: Any, x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        with torch.enable_grad():
            call(x).sum().backward()
        assert model.weight.grad is not None
        return model.weight.grad.clone()

    fast = compiled(function)
    for _ in range(CALLS):
        x = randn(8, 32)
        assert_same(step(fast, x), step(function, x))
    # The backward, which has no culprit, is as it was.
    new = graphs("graphed")
    around = [graph for graph in new if "forward" in graph.name]
    assert len(around) == 2 and all(each.culprits for each in around), states()
    assert [graph.culprits for graph in new if "backward" in graph.name] == [[]], states()


def test_a_library_that_a_capture_would_break(compiled: Compile) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigh(x @ x.T + 1)[0] * 2 + x.sum()

    fast = compiled(function)
    for _ in range(CALLS):
        x = randn(16, 16)
        torch.testing.assert_close(fast(x), function(x), rtol=1e-2, atol=1e-2)
    assert_graphs_around("aten::_linalg_eigh", 2)


def test_a_second_model_knows_the_culprit_of_the_first(compiled: Compile, operators: Any) -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        return operators.synchronize(x + 1) * 3

    def second(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(operators.synchronize(torch.sin(x)))

    for function in (first, second):
        fast = compiled(function)
        for _ in range(CALLS):
            x = randn(32, 32)
            assert_same(fast(x), function(x))
    assert len(graphs("replaced")) == 1, states()
    known = [graph for graph in graphs("graphed") if graph.compiled_again_s == 0]
    assert len(known) == 2 and all(each.culprits for each in known), states()


def test_a_compiled_cache_does_not_hide_the_graph(operators: Any) -> None:
    """AOTAutograd's cache would give the code of an earlier compilation, and nothing to compile
    again."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cos(operators.synchronize(torch.sin(x) + 1))

    for _ in range(2):
        torch._dynamo.reset()
        pygraph.reset()
        fast = torch.compile(function, backend="pygraph")
        for _ in range(CALLS):
            x = randn(32, 32)
            assert_same(fast(x), function(x))
        assert_graphs_around("pygraph_gpu_culprit::synchronize", 2)


def test_a_mixture_of_experts(compiled: Compile) -> None:
    """A tiny model of transformers: its experts run by grouped products, or by whichever operator
    stands in for them, and everything around them in graphs."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen2MoeConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        use_cache=False,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).cuda().eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("grouped_mm")

    def function(tokens: torch.Tensor) -> torch.Tensor:
        return model(tokens, use_cache=False).logits

    fast = compiled(function)
    for _ in range(2 * CALLS):
        tokens = torch.randint(0, 64, (2, 16), device="cuda")
        assert_same(fast(tokens), function(tokens))
    new = graphs("graphed")
    assert new and all(each.replays for each in new), states()
    assert not graphs("fallback"), states()
    for graph in graphs("replaced"):
        assert any(each.culprits for each in new), (graph.reason, states())
