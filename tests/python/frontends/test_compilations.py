"""What is known of a graph that Inductor compiles, here for a CPU: nothing of it has a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pygraph.frontends.compile import compilations, hook
from pygraph.frontends.compile.compilations import Compilation
from pygraph.torch_private import aot, inductor

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def compiled_by_inductor(function: Callable[..., Any], *args: Any) -> list[Compilation]:
    """As if the CPU were the device."""
    found: list[Compilation] = []

    def around(compile_it: Callable[[], Any], graph_module: Any, is_backward: bool) -> Any:
        found.append(compilations.look(graph_module, is_backward, lambda tensor: False))
        made = compile_it()
        compilations.conclude(found[-1], [], made)
        return made

    def wrap(*_: Any, **__: Any) -> Any:
        raise AssertionError("code for a CPU is handed over")

    def backend(gm: Any, example_inputs: Any) -> Any:
        with hook.installed(wrap, around) as extra, aot.without_cache():
            patches = extra.pop("config_patches")
            return inductor.compile_fx()(gm, example_inputs, config_patches=patches, **extra)

    result = torch.compile(function, backend=backend)(*args)
    if result.requires_grad:
        result.backward()
    return found


def test_each_graph_is_looked_at_before_and_after_it_is_compiled() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x).sum() + x.sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        (forward, backward) = compiled_by_inductor(function, torch.randn(5, requires_grad=True))
    assert (forward.backward, backward.backward) == (False, True)
    (finding,) = forward.findings
    assert (finding.kind, finding.operator) == ("data-dependent shape", "aten.nonzero.default")
    assert finding.source == f"test_compilations.py:{function.__code__.co_firstlineno + 1}"
    assert forward.reasons and not any(each.startswith("skipping") for each in forward.reasons)
    problem = forward.problem()
    assert problem is not None and problem.source == finding.source
    assert problem.reason.startswith(compilations.LEFT_OUT)


def test_operators_that_leave_no_code_are_no_work() -> None:
    (views,) = compiled_by_inductor(lambda x: x.t()[1:], torch.randn(4, 6))
    assert views.problem() is None
    (nothing,) = compiled_by_inductor(
        lambda x: torch.ops.aten._unsafe_view(x, [24]), torch.ones(4, 6)
    )
    assert nothing.problem() is None
    (work,) = compiled_by_inductor(lambda x: x + 1, torch.randn(4, 6))
    assert work.problem() is not None


def test_what_generated_code_does_counts_for_more_than_operators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for read, works in ((False, False), (True, True), (None, True)):
        monkeypatch.setattr(compilations, "works", lambda function, read=read: read)
        made = Compilation(works=True)
        compilations.conclude(made, [], None)
        assert made.works is works and (made.problem() is not None) is works


def test_what_cannot_be_looked_at_is_compiled() -> None:
    made = compilations.look(None, False, lambda tensor: False)
    assert not made.works and not made.findings and compilations.last() is made
