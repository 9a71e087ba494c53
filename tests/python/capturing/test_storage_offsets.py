"""Callables that count from the start of a storage, on the twin and on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from places import PLACES, Place, assert_bits
from training_support import fresh


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with fresh(request.param) as here, torch.no_grad():
        yield here


def test_views_counted_from_an_argument_are_relocated(place: Place) -> None:
    def function(arguments: list[Any]) -> list[Any]:
        (x,) = arguments
        return [x.as_strided((2, 2), (1, 1)) + 1, x.as_strided((2,), (3,))]

    graph = place.graphed(function)
    for offset in (3, 3, 3, 1, 0):
        x = place.randn(offset + 4)[offset:]
        assert_bits(graph.dispatcher([x]), function([x]))
    assert graph.refresh_report().state == "graphed", graph.report.reason


@pytest.mark.parametrize("result", ["computed", "view", "empty view"])
def test_views_counted_from_the_storage_bind_a_graph_to_its_offsets(
    place: Place, result: str
) -> None:
    """The same words of a graph would be other elements where an argument begins elsewhere in its
    storage."""

    def function(arguments: list[Any]) -> list[Any]:
        (x,) = arguments
        if result == "empty view":
            return [x * 2, x.as_strided((0, 2), (1, 1), 4)]
        seen = x.as_strided((2,), (1,), 4)
        return [seen + 1] if result == "computed" else [x * 2, seen]

    graph = place.graphed(function)
    for offset in (4, 4, 4, 3, 2, 4):
        memory = place.randn(9)
        found, expected = graph.dispatcher([memory[offset:]]), function([memory[offset:]])
        assert_bits(found, expected)
        assert found[-1].storage_offset() == expected[-1].storage_offset()
    report = graph.refresh_report()
    if result != "computed":
        assert (report.state, report.replays) == ("fallback", 0)
        assert "not counted from" in (report.reason or "")
    else:
        assert report.state == "graphed", report.reason
        assert report.replays == 2  # calls 3 and 6: the linked offset


@pytest.mark.parametrize("count", [0, 4])
def test_views_beyond_an_argument_are_not_linked(place: Place, count: int) -> None:
    """Another call's storage may end where its argument ends."""

    def function(arguments: list[Any]) -> list[Any]:
        return [arguments[0].as_strided((4, 2), (1, 1)) + 1]

    graph = place.graphed(function)
    for _ in range(5):
        x = place.randn(8)[1 : 1 + count]
        assert_bits(graph.dispatcher([x]), function([x]))
    report = graph.refresh_report()
    assert report.state == "fallback"
    assert "outside of its arguments" in (report.reason or "")


def test_a_callable_that_counts_from_the_start_of_a_storage(place: Place) -> None:
    """as_strided with an offset: linked for calls with the offsets of the linked one, and right for
    all others."""

    def function(arguments: list[Any]) -> list[Any]:
        return [arguments[0].as_strided((4,), (2,), 8) * 2, arguments[0] + 1]

    graph = place.graphed(function)
    for call in range(12):
        x = place.randn(96)[:32] if call % 3 else place.randn(96)[16:48]
        assert_bits(graph.dispatcher([x]), function([x]))
        if call == 6:
            assert graph.refresh_report().state == "graphed", graph.report.reason
    report = graph.refresh_report()
    assert (report.relinks, report.programs) == (0, 1)
    assert 5 <= report.replays <= 8  # the calls with the linked offset


def test_a_write_counted_from_the_start_of_a_storage(place: Place) -> None:
    """On arguments with an offset. The callable's own runs differ from copies of them, which have
    none: taken for noise, that would hide any mistake of the graph."""

    def function(arguments: list[Any]) -> list[Any]:
        (x,) = arguments
        start = 4
        x.copy_(x.as_strided_scatter(x.as_strided((2,), (1,), start) + 1, (2,), (1,), start))
        return [x * start]

    graph = place.graphed(function)
    for _ in range(6):
        x = place.randn(20)[3:]
        other = x._base.clone()[3:]
        assert_bits(graph.dispatcher([x]), function([other]))
        assert_bits([x._base], [other._base])
    report = graph.refresh_report()
    assert (report.state, report.proof) == ("graphed", "bit-equal"), report.reason
    assert report.replays == 4


@pytest.mark.parametrize("offset", [3, 8])  # less aligned than kernels ask for, and aligned
def test_memory_in_front_of_an_argument_goes_with_it(place: Place, offset: int) -> None:
    """What a callable that counts from the start of a storage reads there, and writes."""

    def function(arguments: list[Any]) -> list[Any]:
        (x,) = arguments
        return [x.as_strided((offset,), (1,), 0) * 2, x + 1]

    graph = place.graphed(function)
    for _ in range(6):
        x = place.randn(20)[offset:]
        assert_bits(graph.dispatcher([x]), [x._base[:offset] * 2, x + 1])
    report = graph.refresh_report()
    assert (report.state, report.proof) == ("graphed", "bit-equal"), report.reason
    assert report.replays == 4
    assert report.bytes_copied == (4 * 20 * 4 if offset == 3 else 0)


def test_a_result_that_keeps_the_storage_offset_of_an_argument(place: Place) -> None:
    """ATen's scatters clone their argument with the memory in front of it."""

    def function(arguments: list[Any]) -> list[Any]:
        x, y = arguments
        scattered = x.slice_scatter(y, 0, 1, 3)
        return [scattered, scattered.as_strided((2,), (3,), x.storage_offset() + 2) * 2]

    graph = place.graphed(function)
    for _ in range(6):
        x, y = place.randn(9, 4)[2:7], place.randn(2, 4)
        found, expected = graph.dispatcher([x, y]), function([x, y])
        assert_bits(found, expected)
        assert found[0].storage_offset() == expected[0].storage_offset() == 8
    assert graph.refresh_report().replays == 4, graph.report.reason
