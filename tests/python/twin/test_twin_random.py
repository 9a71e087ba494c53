"""Random numbers on the CPU twin: a capture draws none, and a replay those of the function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import twin_support
from torch.nn import functional as F


@pytest.fixture(autouse=True)
def on_the_twin() -> Iterator[None]:
    torch.manual_seed(0)
    with twin_support.twin_memory(), torch.no_grad():
        yield


DRAWN: dict[str, Callable[[torch.Tensor], Any]] = {
    "random": lambda x: [x + torch.rand(40), torch.rand_like(x), torch.randn(3), x],
    "dropout": lambda x: F.dropout(x, 0.5),
    "no_chance": lambda x: x.bernoulli_(0.0),
    "normal": lambda x: [x.normal_(), torch.normal(x, 2.0)],
    "integers": lambda x: [torch.randint(0, 9, (20,)), torch.randperm(20)],
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 5, 8)] * 3, dropout_p=0.4),
}


@pytest.mark.parametrize("name", DRAWN)
def test_draws_are_recorded_and_made_by_each_replay(name: str) -> None:
    """A capture draws nothing. A replay draws what the function would have drawn in its place."""
    function = DRAWN[name]
    x = torch.randn(40)
    state = torch.get_rng_state()
    moved = twin_support.Moved(lambda given: function(given[0]), [x])
    assert torch.equal(torch.get_rng_state(), state)
    runs: list[list[torch.Tensor]] = []
    for call in (lambda given: moved([given]), function):
        torch.manual_seed(3)
        runs.append([])
        for _ in range(3):
            given = x.clone()
            results = call(given)
            runs[-1] += [*(results if isinstance(results, list) else [results]), given]
    assert all(map(torch.equal, *runs))
