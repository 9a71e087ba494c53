"""Compiled callables without their graphs, for comparing the two."""

from __future__ import annotations

from typing import Any

import torch
from places import Place, assert_bits

import pygraph
from pygraph.capturing.twin import twin_device
from pygraph.runtime import registry
from pygraph.runtime.fallback import Fallback


def replays() -> int:
    return sum(graph.replays for graph in pygraph.report().graphs)


def test_no_graph_serves_a_call_meanwhile(place: Place) -> None:
    linear = torch.nn.Linear(8, 8).to(place.torch)
    fast = place.compile(lambda x: torch.relu(linear(x)).sum())
    x = place.randn(4, 8, requires_grad=True)
    for _ in range(4):
        fast(x).backward()
    before = replays()
    assert before > 0
    x.grad = None
    with registry.without_graphs():
        found = fast(x)
        found.backward()
    assert replays() == before
    own = x.grad
    x.grad = None
    again = fast(x)
    again.backward()
    assert replays() == before + 2
    assert_bits([again, x.grad], [found, own])


def test_nothing_is_linked_meanwhile(place: Place) -> None:
    fast = place.compile(lambda x: torch.relu(x + 1))
    with torch.no_grad():
        fast(place.randn(4))
        with registry.without_graphs():
            for _ in range(4):
                fast(place.randn(4))
        assert all(graph.proofs == 0 for graph in pygraph.report().graphs)
        for _ in range(4):
            fast(place.randn(4))
    assert replays() > 0


def test_it_may_be_nested(place: Place) -> None:
    fast = place.compile(lambda x: torch.relu(x + 1))
    with torch.no_grad():
        for _ in range(4):
            fast(place.randn(4))
        before = replays()
        with registry.without_graphs():
            with registry.without_graphs():
                fast(place.randn(4))
            fast(place.randn(4))
        assert replays() == before
        fast(place.randn(4))
    assert replays() == before + 1


def test_runs_of_a_repeated_proof_are_no_replays(place: Place) -> None:
    """With every third call proven again, nine calls are: warming, linking, three proofs, and four
    that the program serves."""
    graph = place.graphed(lambda arguments: [torch.relu(arguments[0] + 1)], paranoid=3)
    serve = graph.as_callable()
    with torch.no_grad():
        for _ in range(9):
            x = place.randn(8)
            assert_bits(serve([x]), [torch.relu(x + 1)])
    report = graph.refresh_report()
    assert (report.replays, report.proofs) == (4, 4)


def test_uncaptured_leaves_aligned_cpu_arguments_alone() -> None:
    seen: list[Any] = []
    run = Fallback(
        lambda arguments: seen.extend(arguments) or ("r",), frozenset(), True, twin_device()
    )
    x = torch.randn(9)[1:]
    assert run([x, 3]) == ("r",)
    assert seen[0] is x and seen[1] == 3
