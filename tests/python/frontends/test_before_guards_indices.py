"""Indices are looked at before a graph is launched in front of guards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from places import Place, assert_bits
from speculation_support import BUSY, check, counts, inputs, network, warm
from training_support import fresh

import pygraph
from pygraph.twin import faults

pytestmark = pytest.mark.usefixtures("one_thread")


def test_nothing_that_indexes_by_what_it_computes(place: Place) -> None:
    table = inputs(place, 6, 4)

    def lookup(ids: Any) -> Any:
        return (torch.nn.functional.embedding(5 - ids, table),)

    compiled = place.compile(lookup)
    for _ in range(6):
        check(compiled, lookup, torch.randint(6, (3,), device=place.torch))
    (graph,) = pygraph.report().graphs
    assert graph.replays and not graph.before_guards and counts(compiled) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("index", [6, 599, -1])
def test_indices_are_looked_at_first(place: Place, dtype: torch.dtype, index: int) -> None:
    few, many = inputs(place, 6, 4), inputs(place, 600, 4)
    tables = [few]

    def lookup(ids: Any) -> Any:
        return (torch.nn.functional.embedding(ids, tables[0]) if tables else ids * 2,)

    def ids(*values: int) -> torch.Tensor:
        return torch.tensor(values, device=place.torch, dtype=dtype)

    compiled = place.compile(lookup, dynamic=False)
    for _ in range(5):
        check(compiled, lookup, ids(0, 5, 3))
    assert counts(compiled) == (2, 2)
    tables[:] = [many] if index >= 0 else []
    check(compiled, lookup, ids(0, index, 3))  # launched, it would end the process on a GPU
    assert counts(compiled) == (2, 2)
    tables[:] = [few]
    for _ in range(6):
        check(compiled, lookup, ids(2, 4, 1))
    launched, landed = counts(compiled)
    assert launched == landed > 2
    first, looks = pygraph.report().graphs[0], launched + 1
    assert first.before_guards and first.bytes_looked_at == looks * 3 * ids(0).element_size()
    assert first.bytes_copied == 0


@pytest.mark.parametrize("index", [6, -1])
def test_a_table_that_is_asked_for_what_it_has_not(place: Place, index: int) -> None:
    if place.name != "twin":
        pytest.skip("ends the process")
    model = torch.nn.Embedding(6, 4)
    compiled = place.compile(model)
    for _ in range(5):
        check(compiled, model, torch.tensor([1, 5, 0]))
    before = counts(compiled)
    assert before == (2, 2)
    with pytest.raises(IndexError), torch.no_grad():
        compiled(torch.tensor([1, index, 0]))
    assert counts(compiled) == before


@pytest.mark.parametrize(
    ("symbol", "code", "early_calls"),
    [
        ("cuStreamQuery", BUSY, (0, 1, 2)),  # the next guess does not wait
        ("cuStreamQuery", 1, (0, 1, 2)),
        ("cuMemAllocHost", 2, (0, 0, 1)),
        ("cuMemcpyDtoHAsync", 1, (0, 0, 1)),
        ("cuStreamSynchronize", 1, (0, 0, 1)),
        ("cuThreadExchangeStreamCaptureMode", 1, (1, 2, 3)),
    ],
)
def test_a_look_that_fails(symbol: str, code: int, early_calls: tuple[int, ...]) -> None:
    model = torch.nn.Embedding(6, 4)
    with fresh("twin") as twin:
        compiled = twin.compile(model)
        for _ in range(3):
            check(compiled, model, torch.tensor([1, 5, 0]))
        launched = []
        with faults.failing_call(symbol, code):
            for _ in early_calls:
                check(compiled, model, torch.tensor([2, 0, 4]))
                launched.append(counts(compiled)[0])
        assert tuple(launched) == early_calls
        (graph,) = pygraph.report().graphs
        assert graph.state == "graphed" and graph.replays == 4


def test_a_graph_without_indices_does_not_ask_the_stream() -> None:
    with fresh("twin") as twin:
        model = network(twin)
        compiled = twin.compile(model)
        warm(compiled, model, twin)
        with faults.failing_call("cuStreamQuery", BUSY):
            warm(compiled, model, twin, 1)
        assert counts(compiled) == (1, 1)


def test_indices_that_cannot_be_looked_at(place: Place) -> None:
    table = inputs(place, 6, 4)

    def lookup(ids: Any) -> Any:
        return (torch.nn.functional.embedding(ids, table).sum(1),)

    many = 256 * 1024 // 8 + 2
    for shape, stride, early_calls in (
        ((4, 2), (2, 1), 2),
        ((4, 2), (1, 4), 0),  # not side by side
        ((many // 2, 2), (2, 1), 0),  # too many
    ):
        pygraph.reset()
        torch._dynamo.reset()
        compiled = place.compile(lookup)
        for _ in range(5):
            given = torch.randint(6, (8 * many,), device=place.torch).as_strided(shape, stride)
            check(compiled, lookup, given)
        assert counts(compiled) == (early_calls, early_calls), shape


def looked_up(x: Any, table: Any, ids: Any) -> Any:
    return torch.nn.functional.embedding(5 - ids, table) + x


def written(x: Any, table: Any, ids: Any) -> Any:
    table.add_(1)
    return x * table.sum()


@pytest.mark.parametrize("other", [looked_up, written])
def test_each_graph_of_a_callable_for_itself(place: Place, other: Callable[..., Any]) -> None:
    def either(x: Any, table: Any, ids: Any, mode: str) -> Any:
        return (x * 2 if mode == "plain" else other(x, table, ids),)

    compiled = place.compile(either)
    table, ids = inputs(place, 6, 4), torch.randint(6, (3,), device=place.torch)
    for mode in ("plain", "other", "plain", "other"):
        before = counts(compiled)
        for _ in range(6):
            x, same = inputs(place, 3, 4), table.clone()
            with torch.no_grad():
                found, expected = compiled(x, table, ids, mode), either(x, same, ids, mode)
            assert_bits(list(found), list(expected))
            assert_bits([table], [same])
        launched, landed = counts(compiled)
        assert launched == landed
        assert (landed > before[1]) == (mode == "plain")
    assert [graph.before_guards for graph in pygraph.report().graphs] == [True, False]
