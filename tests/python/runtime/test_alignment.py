"""Calls whose arguments are less aligned than those that a program was captured with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from places import PLACES, Place, assert_bits

from pygraph.capturing import attempts, pipeline, proof
from pygraph.capturing.outcome import LinkedProgram
from pygraph.decide.signatures import Signatures
from pygraph.runtime import alignment
from pygraph.runtime.compiled_graph import CompiledGraph
from pygraph.twin import faults

pytestmark = pytest.mark.usefixtures("without_gradients")
SIZE = 24


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.param)


def function(arguments: list[Any]) -> list[Any]:
    x, y = arguments
    return [x * 2 + y, x.sum()]


def at(place: Place, offset: int) -> torch.Tensor:
    """A fresh tensor whose first element stands `offset` bytes behind an aligned address."""
    return place.randn(SIZE + 512)[offset // 4 :][:SIZE]


def serve(graph: CompiledGraph, place: Place, *offsets: int, second: int = 0) -> None:
    for offset in offsets:
        given = [at(place, offset), at(place, second)]
        expected = function(list(given))
        assert_bits(graph.dispatcher(given), expected)


def counted(graph: CompiledGraph) -> tuple[int, int, int]:
    report = graph.refresh_report()
    return report.replays, report.copies, report.relinks


def test_a_program_is_linked_anew_and_copies_nothing(place: Place) -> None:
    graph = place.graphed(function)
    serve(graph, place, 0, 0, 0)
    assert counted(graph) == (1, 0, 0)
    serve(graph, place, 32, 32, 0, 32, 32 + 128)
    assert counted(graph) == (5, 0, 1)
    serve(graph, place, 16, 32, 0)
    assert counted(graph) == (7, 0, 2)
    assert graph.report.state == "graphed" and graph.report.programs == 1


def test_kernels_that_demand_what_was_captured_get_it() -> None:
    place = Place("twin")
    graph = place.graphed(function)
    with faults.alignment_demand(16):
        serve(graph, place, 0, 0, 0, 16, 16, 0, 48)
    assert counted(graph) == (4, 0, 1) and graph.report.state == "graphed"


def test_what_no_kernel_could_be_captured_with_is_copied(place: Place) -> None:
    graph = place.graphed(function)
    serve(graph, place, 0, 0, 0, 4, 8, 4)
    assert counted(graph) == (4, 3, 0)


def test_several_arguments_have_alignments_of_their_own(place: Place) -> None:
    graph = place.graphed(function)
    serve(graph, place, 0, 0, 0, 32)
    serve(graph, place, 0, second=32)  # the first one is more aligned again
    serve(graph, place, 32, second=32)
    assert counted(graph)[2] == 2
    before = counted(graph)[1]
    serve(graph, place, 0, 32, 32, 0, second=32)
    serve(graph, place, 32, 0)
    assert counted(graph)[1] == before == 0


def test_linking_anew_ends(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "RELINKS", 1)
    graph = place.graphed(function)
    serve(graph, place, 0, 0, 32, 16, 16)
    assert counted(graph) == (2, 2, 1)


def test_where_the_time_is_not_there_the_program_copies(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignment, "PATIENCE", 3)
    graph = place.graphed(function)
    serve(graph, place, 0, 0)
    with monkeypatch.context() as busy:
        busy.setattr(Signatures, "seconds_to_wait", lambda *_, **__: 1.0)
        serve(graph, place, 32)  # it is asked, and the callable runs
        assert counted(graph) == (0, 0, 0)
        serve(graph, place, 32, 0, 32)
        assert counted(graph) == (3, 2, 0)
    serve(graph, place, 32)
    assert counted(graph) == (4, 3, 0)
    serve(graph, place, 32, 32)  # it is asked again
    assert counted(graph) == (5, 3, 1)


@pytest.mark.parametrize("what", ["shortage", "busy"])
def test_where_there_is_no_room_for_a_link_the_program_copies(
    place: Place, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    graph = place.graphed(function)
    serve(graph, place, 0, 0)
    with monkeypatch.context() as full:
        if what == "shortage":
            full.setattr(graph, "_shortage", lambda _: "no memory")
        else:
            full.setattr(graph.device, "busy", lambda: True)
        serve(graph, place, 32, 32, 0)
    assert counted(graph) == (2, 1, 0) and graph.report.programs == 1


def test_memory_that_runs_out_in_between_leaves_the_program(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prove(*_: Any, **__: Any) -> str:
        raise torch.OutOfMemoryError("none left")

    graph = place.graphed(function)
    serve(graph, place, 0, 0)
    with monkeypatch.context() as full:
        full.setattr(proof, "prove", prove)
        serve(graph, place, 32)
    (kept,) = graph._signatures.with_program
    assert kept.settled  # nobody links it once more
    serve(graph, place, 32, 0)
    assert counted(graph) == (2, 1, 0)


def test_a_link_that_fails_leaves_the_program(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = place.graphed(function)
    serve(graph, place, 0, 0)
    with monkeypatch.context() as broken:
        broken.setattr(proof, "prove", lambda *_, **__: proof.failed("as it happens"))
        serve(graph, place, 32)
    serve(graph, place, 32, 0, 32)
    assert counted(graph) == (3, 2, 0) and graph.report.state == "graphed"


def sized(arguments: list[Any]) -> list[Any]:
    size, x = arguments
    return [x[:size] * 2]


def test_what_was_learned_of_one_size_holds_for_the_next(place: Place) -> None:
    graph = place.graphed(sized)

    def serve_sized(size: int, *offsets: int) -> None:
        for offset in offsets:
            given = [size, at(place, offset)]
            expected = sized(list(given))
            assert_bits(graph.dispatcher(given), expected)

    serve_sized(8, 0, 0, 32, 32)
    assert counted(graph) == (1, 0, 1)
    serve_sized(9, 0, 0, 32, 48 + 16, 0)
    assert counted(graph) == (4, 0, 1)
    serve_sized(9, 16, 16)
    assert counted(graph) == (5, 0, 2)
    serve_sized(10, 512, 512, 16)
    serve_sized(8, 32)
    assert counted(graph) == (7, 0, 2) and graph.report.programs == 3


def test_what_cannot_be_linked_with_that_is_linked_without(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = place.graphed(sized)
    link, prove = pipeline.link, proof.prove
    seen: list[int] = []

    def noting(request: Any, attempt: attempts.Attempt) -> LinkedProgram:
        seen.append(len(request.alignments) if attempt.least_aligned else 0)
        return link(request, attempt)

    def refuse_learned(*args: Any, **_: Any) -> proof.Verdict:
        return proof.failed("rounding") if seen[-1] else prove(*args)

    def serve_sized(size: int, offset: int, count: int) -> None:
        for _ in range(count):
            given = [size, at(place, offset)]
            expected = sized(list(given))
            assert_bits(graph.dispatcher(given), expected)

    serve_sized(8, 0, 2)
    serve_sized(8, 32, 2)
    with monkeypatch.context() as strict:
        strict.setattr(pipeline, "link", noting)
        strict.setattr(proof, "prove", refuse_learned)
        serve_sized(9, 0, 3)
    assert seen == [1, 0] and counted(graph) == (2, 0, 1)
    serve_sized(9, 32, 2)
    assert counted(graph) == (3, 0, 2) and graph.report.programs == 2


def test_paranoid_proofs_are_not_refused() -> None:
    place = Place("twin")
    graph = place.graphed(function, paranoid=2)
    call = graph.as_callable()
    for offset in (0, 0, 0, 32, 32, 0, 32, 32, 0, 32):
        given = [at(place, offset), at(place, 0)]
        expected = function(list(given))
        assert_bits(call(given), expected)
    report = graph.refresh_report()
    assert report.state == "graphed" and report.proofs >= 4 and report.relinks == 1
    assert report.copies == 0
