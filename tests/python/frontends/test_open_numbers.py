"""Python floats that differ from call to call, compiled for as often as it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from pygraph.frontends.compile import hook


def compiled(function: Callable[..., Any]) -> tuple[Any, list[Any]]:
    """The function, and the graphs that are compiled of it."""
    graphs: list[Any] = []

    def note(module: Any, _: Sequence[Any]) -> Any:
        graphs.append(module.graph)
        return make_boxed_func(module.forward)

    def backend(module: Any, inputs: list[Any]) -> Any:
        with hook.installed(lambda model, *_, **__: model):
            return aot_autograd(fw_compiler=note, bw_compiler=note)(module, inputs)

    return torch.compile(function, backend=backend), graphs


@pytest.mark.parametrize(
    "function",
    [
        lambda x, s: x.sin() * (1 - s**2),
        lambda x, s: x + (s + 1) / (s + 2),
        lambda x, s: x * s,
        lambda x, s: x * (1 - s) + s,
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_one_graph_serves_all_values(function: Any, training: bool) -> None:
    fast, graphs = compiled(function)
    for n in range(7):
        x, s = torch.randn(4, requires_grad=training), 0.3 + 0.1 * n
        with torch.set_grad_enabled(training):
            torch.testing.assert_close(fast(x, s), function(x, s))
    assert 1 <= len(graphs) <= 2, "for a first value, and for all"


def test_what_cannot_be_rewritten_is_compiled_in() -> None:
    function = lambda x, s: torch.nn.functional.leaky_relu(x, s) * (1 - s**2)  # noqa: E731
    fast, graphs = compiled(function)
    with torch.no_grad():
        for n in range(4):
            x, s = torch.randn(4), 0.3 + 0.1 * n
            torch.testing.assert_close(fast(x, s), function(x, s))
    assert len(graphs) == 4
