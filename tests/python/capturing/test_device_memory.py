"""Where scratch is, in outputs that are not written yet and in arenas of several pieces; and what
becomes of a graph when memory runs out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from places import PLACES, Place, assert_bits
from training_support import fresh

from pygraph.capturing import proof
from pygraph.reporting import Report
from pygraph.reporting.text import as_text
from pygraph.runtime.compiled_graph import CompiledGraph

ROWS = 1024
MIB = 1 << 20


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with fresh(request.param) as here, torch.no_grad():
        yield here


def stretch(arguments: list[Any]) -> list[Any]:
    """Scratch of 4 MiB that grows to two of 12 MiB and shrinks again, three times; and an output of
    24 MiB."""
    (x,) = arguments
    for step in range(3):
        wide = torch.relu(torch.cat((x, -x, x + step)))
        x = wide[: len(x)] - wide[len(x) : 2 * len(x)]
    return [torch.cat([x] * 6)]


def deploy(graph: CompiledGraph, place: Place, calls: int) -> list[tuple[list[Any], list[Any]]]:
    """So many calls, with what each returned and what it should have; all outputs are kept."""
    made = []
    for _ in range(calls):
        x = place.randn(ROWS, ROWS)
        made.append((graph.dispatcher([x]), stretch([x])))
    return made


def test_scratch_stands_in_an_output_that_is_not_written_yet(place: Place) -> None:
    graph = place.graphed(stretch)
    for found, expected in deploy(graph, place, 6):
        assert_bits(found, expected)
    report = graph.refresh_report()
    assert (report.state, report.replays) == ("graphed", 4), report.reason
    assert report.scratch_in_outputs > 0
    assert report.output_bytes == 24 * MIB
    assert report.arena_bytes <= 12.5 * MIB  # without: 20 (cat's arguments and its result)
    assert report.arena_pieces == 1


def test_small_scratch_is_not_worth_the_patching(place: Place) -> None:
    """Where outputs move, every node whose scratch stands in them is patched."""

    def function(arguments: list[Any]) -> list[Any]:
        return stretch([arguments[0][:64]])

    graph = place.graphed(function)
    for _ in range(4):
        x = place.randn(ROWS, ROWS)
        assert_bits(graph.dispatcher([x]), function([x]))
    report = graph.refresh_report()
    assert report.replays == 2
    assert (report.scratch_in_outputs > 0) == (place.name == "twin"), "the twin lends anything"


def test_an_arena_that_does_not_fit_comes_in_pieces(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = place.graphed(keep_all)
    prove, tries = proof.prove, []

    def short_of_memory_once(*arguments: Any, **_: Any) -> str:
        tries.append(arguments)
        if len(tries) == 1:
            raise torch.OutOfMemoryError("no piece of so many bytes")
        return prove(*arguments)

    monkeypatch.setattr(proof, "prove", short_of_memory_once)
    for _ in range(6):
        x = place.randn(ROWS, ROWS)
        assert_bits(graph.dispatcher([x]), keep_all([x]))
    report = graph.refresh_report()
    assert (report.state, report.replays) == ("graphed", 4), report.reason
    assert len(tries) == 2
    assert report.arena_pieces > 1
    assert f"in {report.arena_pieces} pieces" in as_text(Report([report]))


def keep_all(arguments: list[Any]) -> list[Any]:
    """Five tensors that live at once and end in a number."""
    (x,) = arguments
    parts = [torch.relu(x) + step for step in range(5)]
    return [torch.stack([part.sum() for part in parts])]


# ------------------------------------------------------------------------- without memory


def test_linking_waits_for_memory(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = place.graphed(lambda arguments: [arguments[0] + 1])
    monkeypatch.setattr(type(graph.device), "free_bytes", lambda self: 100)
    x = place.randn(64)
    for _ in range(3):
        assert_bits(graph.dispatcher([x]), [x + 1])
    assert graph.report.state == "warming"
    assert "tried again later" in (graph.report.reason or "")
    monkeypatch.undo()
    for _ in range(8):
        assert_bits(graph.dispatcher([x]), [x + 1])
    report = graph.refresh_report()
    assert (report.state, report.reason) == ("graphed", None)
    assert report.replays > 0


def test_memory_that_runs_out_while_linking(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = place.graphed(lambda arguments: [arguments[0] + 1])

    def fail(*_: Any, **__: Any) -> str:
        raise torch.OutOfMemoryError("no memory for the proof")

    monkeypatch.setattr(proof, "prove", fail)
    x = place.randn(64)
    for _ in range(3):
        assert_bits(graph.dispatcher([x]), [x + 1])
    assert "memory ran out: no memory for the proof" in (graph.report.reason or "")
    monkeypatch.undo()
    for _ in range(8):
        assert_bits(graph.dispatcher([x]), [x + 1])
    assert graph.refresh_report().state == "graphed"


def test_paranoia_needs_memory(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = place.graphed(lambda arguments: [arguments[0] + 1], paranoid=3)
    run = graph.as_callable()

    def calls(count: int) -> tuple[int, int, str]:
        for _ in range(count):
            x = place.randn(64)
            assert_bits(run([x]), [x + 1])
        report = graph.refresh_report()
        return report.proofs, report.replays, report.state

    def fail(*_: Any, **__: Any) -> str:
        raise torch.OutOfMemoryError("no memory for the proof")

    proofs, replays, _ = calls(3)  # the first proof, and another at call 3
    assert proofs == 2
    monkeypatch.setattr(type(graph.device), "free_bytes", lambda self: 100)
    assert calls(3) == (
        2,
        replays + 3,
        "graphed",
    )  # the graph serves the call that was to be proven
    monkeypatch.undo()
    monkeypatch.setattr(proof, "prove", fail)
    assert calls(3) == (2, replays + 5, "graphed")  # the callable does
    monkeypatch.undo()
    made, _, state = calls(3)
    assert (made, state) == (3, "graphed")
