"""Callables that draw random numbers on the host, beside a graph of a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from places import PLACES, Place, assert_bits

from pygraph.capturing.device import CaptureFailed
from pygraph.capturing.record import generator_kept_on_failure


@pytest.mark.parametrize("draws", [True, False])
def test_captures_that_fail_leave_the_generator_where_it_was(draws: bool) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with pytest.raises(CaptureFailed), generator_kept_on_failure(draws):
        torch.rand(4)
        raise CaptureFailed("for a reason")
    assert torch.equal(torch.get_rng_state(), before) is draws  # else another thread has drawn
    with generator_kept_on_failure(draws):
        torch.rand(4)
    assert not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("place", [PLACES[1]])
def test_the_numbers_of_a_callable_without_a_graph_are_its_own(place: str, reads: bool) -> None:
    """It is captured in vain: for drawing, or for reading a value out of a tensor behind that."""
    here = Place(place)

    def function(arguments: list[Any]) -> list[Any]:
        drawn = float(torch.rand(()))
        (x,) = arguments
        return [x * drawn + (float(x.sum()) if reads else 0.0)]

    graph = here.graphed(function)
    torch.manual_seed(1)
    inputs = [here.randn(8) for _ in range(6)]
    torch.manual_seed(5)
    expected = [function([x]) for x in inputs]
    torch.manual_seed(5)
    for x, value in zip(inputs, expected, strict=True):
        assert_bits(graph.dispatcher([x]), value)
    assert graph.refresh_report().replays == 0
