"""Compiled graphs that several threads call, on the twin and on the GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from places import PLACES, Place, assert_bits
from sizes_support import scale
from training_support import fresh

from pygraph.decide.signatures import SignatureRules


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with fresh(request.param) as here, torch.no_grad():
        yield here


@pytest.fixture
def in_order(place: Place) -> Place:
    """A place where work of several threads is done one after the other: a stream of a GPU. CPU
    operators run side by side, and two that add to one counter lose a count without our help."""
    if place.name == "twin":
        pytest.skip("CPU operators of several threads run side by side")
    return place


def test_a_signature_that_two_threads_bring_at_once_is_linked_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one's proof would rewind what replays of the first one's program write."""
    graph = place.graphed(scale)
    x = place.randn(4)
    graph.dispatcher([x, 3])
    both_are_through = threading.Barrier(2, timeout=60)
    fits = graph._fits

    def meet(*arguments: Any) -> bool:
        both_are_through.wait()
        return fits(*arguments)

    monkeypatch.setattr(graph, "_fits", meet)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(graph.dispatcher([x, 3]))) for _ in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    for results in found:
        assert_bits(results, scale([x, 3]))
    assert (graph.refresh_report().proofs, graph.report.programs) == (1, 1)


def test_threads_that_count_lose_nothing(in_order: Place) -> None:
    """Every call writes a shared counter, also while another thread's proof rewinds it."""
    counter = torch.zeros(16, dtype=torch.int64, device=in_order.torch)

    def function(arguments: list[Any]) -> list[Any]:
        arguments[0].add_(1)
        return [arguments[1] * 2]

    graph = in_order.graphed(function, mutated=(0,), constants=(0,))
    wrong: list[Any] = []
    # Drawn beforehand: a draw during another thread's first call looks like that call's own.
    values = [[in_order.randn(16) for _ in range(50)] for _ in range(4)]

    def work(own: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for x in own:
                right = torch.equal(graph.dispatcher([counter, x])[0], x * 2)
                wrong.extend([] if right else [x])

    threads = [threading.Thread(target=work, args=(own,)) for own in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert counter.tolist() == [200] * 16
    assert graph.refresh_report().replays > 0


def test_no_program_is_called_while_another_is_proven(in_order: Place) -> None:
    """Two sets of sizes that write the same memory: while one is linked, the other must wait."""
    counter = torch.zeros(16, dtype=torch.int64, device=in_order.torch)

    def function(arguments: list[Any]) -> list[Any]:
        arguments[0].add_(1)
        return [arguments[1] * arguments[2]]

    sizes = SignatureRules(at_once=6)  # the other thread's calls keep sizes from coming back soon
    graph = in_order.graphed(function, mutated=(0,), constants=(0,), sizes=sizes)
    x = in_order.randn(16)
    for _ in range(3):
        graph.dispatcher([counter, x, 0])
    done = threading.Event()
    calls = [3, 0]

    def replay() -> None:
        with torch.no_grad():
            while not done.is_set():
                graph.dispatcher([counter, x, 0])
                calls[1] += 1

    thread = threading.Thread(target=replay)
    thread.start()
    for factor in range(1, 6):
        for _ in range(3):
            graph.dispatcher([counter, x, factor])
            calls[0] += 1
    done.set()
    thread.join()
    assert counter.tolist() == [sum(calls)] * 16
    assert graph.refresh_report().programs == 6
