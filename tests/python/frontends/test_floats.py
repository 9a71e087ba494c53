"""Python floats that a program only computes with are not compiled in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from pygraph.frontends.compile.floats import kept_open
from pygraph.torch_private import versions


def programs(function: Callable[..., Any], context: Callable[[], Any]) -> int:
    """How many seven values of a float have, and those that were given up."""
    torch._dynamo.reset()
    count = CompileCounterWithBackend("inductor")

    def backend(*args: Any, **kwargs: Any) -> Any:
        with context():
            return count(*args, **kwargs)

    compiled = torch.compile(function, backend=backend)
    without_cache = torch._functorch.config.patch(enable_autograd_cache=False)
    with torch.no_grad(), without_cache:
        for n in range(7):
            x, value = torch.randn(4), 0.31 + 0.05 * n
            torch.testing.assert_close(compiled(x, value), function(x, value))
    return count.frame_count


COMPUTED = [
    lambda x, s: torch.tanh(x * (1 - s**2)),
    lambda x, s: x / (s + 1) - 2 * s,
    lambda x, s: torch.tanh(x) * (-(((s - 0.1) / 4) ** 3)) * s,
]


@pytest.mark.parametrize("function", COMPUTED)
def test_a_float_that_is_only_computed_with_has_one_program(function: Any) -> None:
    assert programs(function, kept_open) == 2  # the first value is taken for one of all calls


@pytest.mark.skipif(versions.notes_floats(), reason="torch keeps them open by itself")
def test_others_compile_as_before() -> None:
    assert programs(COMPUTED[0], kept_open) == 2
    assert programs(COMPUTED[0], contextlib.nullcontext) >= 7


@pytest.mark.skipif(versions.notes_floats(), reason="torch keeps them open by itself")
@pytest.mark.parametrize(
    "function",
    [
        lambda x, s: x * (s // 0.1),
        lambda x, s: x * (1 / (s - 0.5)),
        lambda x, s: x * (1 - s) ** 0.5,
        lambda x, s: x * (2 - (1 - s) ** -1),
    ],
)
def test_what_tensors_compute_otherwise_than_python_is_compiled_in(function: Any) -> None:
    assert programs(function, kept_open) >= 7


def test_a_float_that_shapes_the_program_is_compiled_in() -> None:
    sized = lambda x, s: x[: int(s * 10)].sum() * (1 - s)  # noqa: E731
    assert programs(sized, kept_open) >= 7
    assert programs(lambda x, s: x.add(x, alpha=1 - s), kept_open) >= 7
