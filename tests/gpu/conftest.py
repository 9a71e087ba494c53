"""Tests that need a GPU; each is skipped with the reason where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pygraph
from pygraph.torch_private import support


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    problem = support.support().problem
    for item in items:
        if "tests/gpu" in str(item.path).replace("\\", "/"):
            item.add_marker(pytest.mark.gpu)
            if problem is not None:
                item.add_marker(pytest.mark.skip(reason=problem))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Every test compiles anew and sees only its own report."""
    torch._dynamo.reset()
    pygraph.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch._dynamo.reset()
    pygraph.reset()


@pytest.fixture(params=["inductor", "aot"])
def compiled(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Compiles with the backend under test, once per way of compiling."""

    def compile_with(function: Any, **kwargs: Any) -> Any:
        options = {"compiler": request.param, **kwargs.pop("options", {})}
        return torch.compile(function, backend="pygraph", options=options, **kwargs)

    return compile_with
