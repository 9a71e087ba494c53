"""Signatures that rest: calls that the compiled callable serves and nobody hears of."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from places import PLACES, Place, assert_bits
from sizes_support import later, scale, serve
from training_support import fresh

from pygraph import _engine
from pygraph.decide.signatures import SignatureRules
from pygraph.runtime.compiled_graph import CompiledGraph


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with fresh(request.param) as here, torch.no_grad():
        yield here


def test_a_size_that_is_not_wanted_rests_for_good(place: Place, heard: list[Any]) -> None:
    graph = place.graphed(scale, sizes=SignatureRules(sizes=(frozenset({3}),)))
    for factor in (2, 2, 2, 5, 2, 5, 3, 3, 3):
        serve(graph, place, factor)
    assert heard == [[2], [5], [3], [3]]
    assert (graph.refresh_report().calls, graph.report.replays) == (9, 1)


def test_a_size_rests_up_to_the_sight_at_which_it_is_captured(
    place: Place, heard: list[Any]
) -> None:
    graph = place.graphed(scale, sizes=SignatureRules(capture_at=4))
    serve(graph, place, 9)  # the graph's first call
    for sight in range(1, 7):
        serve(graph, place, 2)
        assert graph.refresh_report().programs == (sight >= 4), sight
    assert heard == [[9], [2]]  # the fourth


def test_a_size_that_is_captured_at_once_is_heard_of_at_once(
    place: Place, heard: list[Any]
) -> None:
    graph = place.graphed(scale, sizes=SignatureRules(capture_at=1))
    for factor in (9, 2, 2):
        serve(graph, place, factor)
    assert heard == [[9], [2]]
    assert (graph.refresh_report().programs, graph.report.replays) == (1, 1)


def with_one_place(place: Place, *factors: int) -> CompiledGraph:
    """A graph whose only program is 2's, and that was called with `factors` then."""
    graph = place.graphed(scale, sizes=SignatureRules(programs=1))
    for factor in (2, 2, *factors):
        serve(graph, place, factor)
    return graph


def test_a_size_gets_no_place_that_is_used_as_often(place: Place, heard: list[Any]) -> None:
    graph = with_one_place(place, 3)
    later(graph, 0.0)
    heard.clear()
    for _ in range(24):
        serve(graph, place, 2)
        serve(graph, place, 3)
    assert graph.refresh_report().evictions == 0
    assert heard == [[3]] * 3  # with its 2nd sight, 3 later, 7 later; 15 later would be next
    for _ in range(30):  # now 2 comes no more
        serve(graph, place, 3)
    assert graph.refresh_report().evictions == 1


def test_a_size_that_comes_alone_gets_the_place_of_another(place: Place, heard: list[Any]) -> None:
    graph = with_one_place(place, 3)
    later(graph, 0.0)
    heard.clear()
    for sight in range(2, 7):
        serve(graph, place, 3)
        assert graph.refresh_report().evictions == (sight >= 5), sight
    assert heard == [[3], [3]]  # it begins to wait, and gets the place


def test_no_size_is_heard_of_while_linking_must_wait(place: Place, heard: list[Any]) -> None:
    graph = with_one_place(place)
    later(graph, 0.05)
    heard.clear()
    for _ in range(20):
        serve(graph, place, 3)
    assert heard == []
    time.sleep(0.06)
    for _ in range(4):  # it waits for a place from now on
        serve(graph, place, 3)
    assert heard == [[3], [3]]
    assert graph.refresh_report().evictions == 1


def test_a_program_that_does_not_fit_is_heard_of_though_all_is_quiet(
    place: Place, heard: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A constant that has moved, say: it is linked anew."""
    weight = place.randn(8)

    def function(arguments: list[Any]) -> list[Any]:
        constant, x, _ = arguments
        return [x * constant]

    graph = place.graphed(function, constants=(0,))
    monkeypatch.setattr(graph._member, "has_moved", lambda call, arguments: True)
    for _ in range(3):
        graph.dispatcher([weight, place.randn(8), 2])
    graph.dispatcher.remove(graph._signatures.with_program[0].program)  # as if it accepted nothing
    graph.dispatcher.open_bypass_to_all(1e6)
    heard.clear()
    graph.dispatcher([weight, place.randn(8), 2])
    assert heard == [[2]]
    assert graph.refresh_report().relinks == 1


def test_who_was_evicted_waits_like_a_new_one_but_longer(place: Place) -> None:
    graph = with_one_place(place)
    later(graph, 0.0)

    def sights_until_it_has_the_place(factor: int) -> int:
        before = graph.refresh_report().evictions
        for sight in range(1, 40):
            serve(graph, place, factor)
            if graph.refresh_report().evictions > before:
                later(graph, 0.0)
                return sight
        return 0

    assert sights_until_it_has_the_place(3) == 1 + 4
    assert sights_until_it_has_the_place(2) == 4 + 4
    assert sights_until_it_has_the_place(3) == 4 + 4
    assert sights_until_it_has_the_place(2) == 16 + 4


def test_a_graph_that_was_given_up_rests(place: Place, heard: list[Any]) -> None:
    graph = place.graphed(scale)
    serve(graph, place, 2)
    graph.release()
    for factor in (2, 3, 2, 3, 2, 3, 3):
        serve(graph, place, factor)
    assert heard == [[2], [2], [3]]  # 3 with its second sight


def test_held_calls_are_heard_of(place: Place, heard: list[Any]) -> None:
    graph = place.graphed(scale, sizes=SignatureRules(sizes=(frozenset({3}),)))
    for _ in range(3):
        serve(graph, place, 2)
    graph.hold(True)
    serve(graph, place, 2)
    graph.hold(False)
    serve(graph, place, 2)
    assert heard == [[2], [2]]


def test_arguments_that_are_less_aligned_are_cloned(place: Place, heard: list[Any]) -> None:
    if place.name == "twin":
        pytest.skip("the host's memory needs no alignment")
    seen = []

    def function(arguments: list[Any]) -> list[Any]:
        seen.append(arguments[0].data_ptr() % 16)
        return [arguments[0] + 1]

    graph = place.graphed(function, aligned=True)
    graph.dispatcher([place.randn(8)])
    graph.release()
    memory = place.randn(64)
    for offset in (0, 1, 0, 2, 0):
        x = memory[offset : offset + 8]
        assert_bits(graph.dispatcher([x]), [x + 1])
    assert seen == [0] * len(seen)
    assert len(heard) == 1 + 1 + 2  # the first two calls, and the two that are less aligned


def test_what_the_callable_raises_is_raised(place: Place) -> None:
    fail = False

    def function(arguments: list[Any]) -> list[Any]:
        if fail:
            raise ValueError("as it is")
        return scale(arguments)

    graph = place.graphed(function, sizes=SignatureRules(sizes=(frozenset({3}),)))
    for _ in range(2):
        serve(graph, place, 2)
    fail = True
    with pytest.raises(ValueError, match="as it is"):
        graph.dispatcher([place.randn(8), 2])
    fail = False
    assert not graph.dispatcher.busy
    serve(graph, place, 2)


def test_linking_waits_for_calls_under_way(place: Place) -> None:
    inside, go_on = threading.Event(), threading.Event()
    blocking = False

    def function(arguments: list[Any]) -> list[Any]:
        if blocking and arguments[1] == 2:
            inside.set()
            assert go_on.wait(60)
        return scale(arguments)

    graph = place.graphed(function, sizes=SignatureRules(sizes=(frozenset({3}),)))
    for factor in (3, 2, 2):
        serve(graph, place, factor)
    blocking = True
    one = threading.Thread(target=serve, args=(graph, place, 2))
    one.start()
    assert inside.wait(60)
    assert graph.dispatcher.busy
    other = threading.Thread(target=serve, args=(graph, place, 3))
    other.start()
    time.sleep(0.05)
    assert graph.report.proofs == 0, "linked beside a call"
    go_on.set()
    one.join()
    other.join()
    assert graph.refresh_report().proofs == 1
    assert not graph.dispatcher.busy


def test_a_callable_that_calls_its_own_graph_does_not_wait_for_itself(place: Place) -> None:
    def function(arguments: list[Any]) -> list[Any]:
        if arguments[1] == 2:
            return graph.dispatcher([arguments[0], 3])
        return scale(arguments)

    graph = place.graphed(function, sizes=SignatureRules(sizes=(frozenset({3}),)))
    for _ in range(4):
        x = place.randn(8)
        assert_bits(graph.dispatcher([x, 2]), [x * 3])
    assert graph.refresh_report().replays > 0


def test_no_more_signatures_are_kept_than_fit(place: Place, heard: list[Any]) -> None:
    graph = place.graphed(scale, sizes=SignatureRules(sizes=(frozenset({-1}),)))
    x = place.randn(8)
    for factor in range(4097):
        graph.dispatcher([x, factor])
    assert len(heard) == 4097
    graph.dispatcher([x, 4096])  # came when the others were forgotten
    assert len(heard) == 4097
    graph.dispatcher([x, 0])
    assert len(heard) == 4098


def test_a_graph_that_rests_is_collected() -> None:
    class Callable:
        graph: CompiledGraph  # which makes a circle

        def __call__(self, arguments: list[Any]) -> list[Any]:
            return scale(arguments)

    function = Callable()
    function.graph = Place("twin").graphed(function)
    with torch.no_grad():
        for _ in range(2):
            serve(function.graph, Place("twin"), 2)
            function.graph.release()
    gone = weakref.ref(function)
    del function
    gc.collect()
    assert gone() is None


def test_the_bypass_needs_a_callable() -> None:
    dispatcher = _engine.Dispatcher(print, print)
    for ask in (dispatcher.open_bypass, dispatcher.close_bypass, dispatcher.bypassed):
        with pytest.raises(Exception, match="set_bypass"):
            ask([1])
    with pytest.raises(Exception, match="set_bypass"):
        dispatcher.open_bypass_to_all(1.0)
