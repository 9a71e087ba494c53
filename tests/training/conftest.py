"""Tests that need a GPU are skipped with the reason where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import pygraph
from pygraph.torch_private import support


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    problem = support.support().problem
    for item in items:
        here = "tests/training" in str(item.path).replace("\\", "/")
        if here and problem is not None and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=problem))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """One thread: what runs beside the tests then disturbs them less."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch._dynamo.reset()
    pygraph.reset()
