"""The backend on a machine without a GPU: clear reasons, right results."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import pygraph
from pygraph import _engine
from pygraph.capturing import hold
from pygraph.frontends.compile import generated, sources
from pygraph.torch_private import support


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    pygraph.reset()
    support.support.cache_clear()
    yield
    support.support.cache_clear()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) + 1


@pytest.mark.parametrize("compiler", ["inductor", "aot"])
@pytest.mark.parametrize("grad", [False, True])
def test_cpu_models_run_right_and_say_why_no_graph(compiler: str, grad: bool) -> None:
    model = Model()
    fast = torch.compile(model, backend="pygraph", options={"compiler": compiler})
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            x = torch.randn(4, 8)
            torch.testing.assert_close(fast(x), model(x))
    if grad:
        fast(x).sum().backward()
        assert model.linear.weight.grad is not None
    graphs = pygraph.report().graphs
    assert graphs and all(graph.state == "fallback" and graph.reason for graph in graphs)


def test_the_backend_is_registered_and_callable() -> None:
    assert "pygraph" in torch.compiler.list_backends(exclude_tags=())
    model = Model()
    fast = torch.compile(model, backend=pygraph.backend)
    x = torch.randn(4, 8)
    torch.testing.assert_close(fast(x), model(x))


def test_an_unsupported_torch_runs_eagerly_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support.torch, "__version__", "2.9.1")
    model = Model()
    fast = torch.compile(model, backend="pygraph", options={"compiler": "aot"})
    x = torch.randn(4, 8)
    torch.testing.assert_close(fast(x), model(x))
    assert "torch 2.9.1 found" in (pygraph.report().graphs[0].reason or "")


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    absent = _engine.capabilities_of("libcuda-is-not-here.so")
    assert not absent.usable
    assert "libcuda-is-not-here.so" in absent.problem and "needed" in absent.problem
    monkeypatch.setattr(support._engine, "capabilities", lambda: absent)
    assert support.support().problem == absent.problem


def test_a_failed_calibration_keeps_graphs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "tensor_access", lambda: "this torch lacks everything")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    usable = types.SimpleNamespace(usable=True, problem="")
    monkeypatch.setattr(support._engine, "capabilities", lambda: usable)
    problem = support.support().problem
    assert problem is not None and "lacks everything" in problem


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_require_full_raises_instead_of_falling_back() -> None:
    fast = torch.compile(Model(), backend="pygraph", options={"require": "full"})
    with pytest.raises(Exception, match=r"no CUDA driver|finds no CUDA device"):
        fast(torch.randn(4, 8))


# ------------------------------------------------------------------------------- the hook


# ------------------------------------------------------------------------------- small parts


def test_generated_code_is_found_through_wrappers() -> None:
    import functools

    module: dict[str, Any] = {"empty_strided_cuda": lambda *a: torch.zeros(a[0])}
    exec("def call(args):\n    return (empty_strided_cuda((2,), (1,)),)", module)

    class Runner:
        def __init__(self, function: Any) -> None:
            self.function = function

        def __call__(self, arguments: Any) -> Any:
            return self.function(arguments)

    def closure(function: Any) -> Any:
        return lambda arguments: function(arguments)

    wrapped = functools.partial(closure(module["call"]))
    kept: list[Any] = []
    original = module["empty_strided_cuda"]
    with hold.hold_buffers(generated.holdings_of(wrapped).allocators(), kept):
        (made,) = wrapped([])
        torch.ones(2)
    assert made.data_ptr() in {memory.data_ptr() for memory in kept}
    assert module["empty_strided_cuda"] is original


def test_sources_find_the_users_line() -> None:
    found: list[Any] = []

    def catch(gm: Any, inputs: Any) -> Any:
        found.append(sources.finder(gm))
        return gm.forward

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) + 1

    torch.compile(function, backend=catch)(torch.randn(3))
    line = found[0]("aten.sigmoid.default")
    assert line is not None and "test_backend.py" in line
    assert found[0]("aten.mm.default") is None
