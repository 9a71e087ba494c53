"""The life of compiled graphs on the twin and on the GPU: programs come and go, proofs, forks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from places import PLACES, Place, assert_bits, only_graph
from sizes_support import scale
from training_support import fresh

import pygraph
from pygraph import _engine
from pygraph.decide import budget, signatures
from pygraph.decide.signatures import SignatureRules


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with fresh(request.param) as here, torch.no_grad():
        yield here


# ------------------------------------------------------------------------- programs and their bound


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may be evicted at any time."""
    monkeypatch.setattr(budget, "PATIENCE", 0.0)


@pytest.mark.usefixtures("impatient")
def test_programs_are_bounded_and_the_oldest_makes_room(place: Place) -> None:
    graph = place.graphed(scale, sizes=SignatureRules(programs=2))
    for factor, times in ((2, 3), (3, 3), (2, 3), (4, 5)):
        for _ in range(times):
            x = place.randn(8)
            assert_bits(graph.dispatcher([x, factor]), [x * factor])
    report = graph.refresh_report()
    assert (report.programs, report.evictions, report.limit) == (2, 1, "max_programs is 2")
    replays = report.replays
    x = place.randn(8)
    graph.dispatcher([x, 2])  # used after 3 was: kept
    assert graph.refresh_report().replays == replays + 1
    graph.dispatcher([x, 3])  # evicted
    assert graph.refresh_report().replays == replays + 1
    for _ in range(8):  # and comes back once it is seen more often
        assert_bits(graph.dispatcher([x, 3]), [x * 3])
    assert graph.refresh_report().replays > replays + 1
    assert graph.refresh_report().programs == 2


def test_no_program_is_evicted_while_linking_has_taken_much_of_the_time(place: Place) -> None:
    graph = place.graphed(scale, sizes=SignatureRules(programs=2))
    for factor in (2, 3, 4, 5) * 3:
        x = place.randn(8)
        assert_bits(graph.dispatcher([x, factor]), [x * factor])
    report = graph.refresh_report()
    assert (report.programs, report.evictions, report.proofs) == (2, 0, 2)


def test_listed_sizes_are_captured_at_their_first_sight_and_no_others(place: Place) -> None:
    graph = place.graphed(scale, sizes=SignatureRules(sizes=signatures.sizes_of([3, (4,)])))
    for factor in (2, 3, 3, 4):  # the first call that may be captured is watched
        graph.dispatcher([place.randn(8), factor])
    assert graph.refresh_report().programs == 2
    for factor in (2, 2, 2, 3, 4):
        x = place.randn(8)
        assert_bits(graph.dispatcher([x, factor]), [x * factor])
    report = graph.refresh_report()
    assert (report.programs, report.replays) == (2, 2)


@pytest.mark.parametrize("capture_at", [1, 2, 4])
def test_a_size_is_captured_at_the_sight_that_was_asked_for(place: Place, capture_at: int) -> None:
    graph = place.graphed(scale, sizes=SignatureRules(capture_at=capture_at))
    graph.dispatcher([place.randn(8), 7])
    for sight in range(1, 6):
        graph.dispatcher([place.randn(8), 2])
        assert graph.refresh_report().programs == (sight >= capture_at), sight


@pytest.mark.usefixtures("impatient")
def test_a_stream_of_many_sizes_does_not_thrash(place: Place) -> None:
    graph = place.graphed(scale, sizes=SignatureRules(programs=2))
    for turn in range(30):
        for factor in range(5):
            x = place.randn(8)
            assert_bits(graph.dispatcher([x, factor]), [x * factor]), turn
    report = graph.refresh_report()
    assert report.programs == 2
    assert report.proofs == 2  # all come equally often: none deserves another one's place


def test_programs_of_all_sizes_ask_for_the_arena_of_the_largest(place: Place) -> None:
    def chained(arguments: list[Any]) -> list[Any]:
        x, _ = arguments
        return [torch.relu(torch.relu(torch.relu(x + 1) * 2) + x).sum(0)]

    graph = place.graphed(chained)
    for length in (64, 512, 128):
        for _ in range(3):
            x = place.randn(length, 64)
            assert_bits(graph.dispatcher([x, length]), chained([x, length]))
    calls = [signature.program for signature in graph._signatures.with_program]
    sizes = {call.arena_in_one_piece for call in calls}
    assert len(sizes) == 3
    assert {call.least_arena for call in calls} == {max(sizes)}


@pytest.mark.usefixtures("impatient")
def test_sizes_are_forgotten_some_day(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "_REMEMBERED", 64)
    graph = place.graphed(scale, sizes=SignatureRules(programs=1, capture_at=1))
    x = place.randn(2)
    for factor in range(300):
        graph.dispatcher([x, factor])
    assert 60 <= len(graph._signatures._known) <= 66


def test_dynamic_shapes_get_a_program_each(place: Place) -> None:
    linear = torch.nn.Linear(8, 8).to(place.torch)
    fast = place.compile(lambda x: torch.relu(linear(x)).sum(0), dynamic=True, max_programs=3)
    for call in range(40):
        x = place.randn(2 + call % 4, 8)
        torch.testing.assert_close(fast(x), torch.relu(linear(x)).sum(0))
    report = only_graph()
    assert report.programs <= 3
    assert report.replays > 10


# --------------------------------------------------------------------- arguments that are written


def test_arguments_that_share_written_memory(place: Place) -> None:
    def function(arguments: list[Any]) -> list[Any]:
        x, y = arguments
        x.mul_(2)
        return [y + 1]

    graph = place.graphed(function)
    for call in range(12):
        base = place.randn(65)
        if call % 3 == 0:  # apart
            x, y = base[:32], place.randn(32)
        elif call % 3 == 1:  # the same memory
            x, y = base[:32], base[:32]
        else:  # overlapping, and misaligned: copies would show
            x, y = base[1:33], base[3:35]
        memory = base.clone()
        start_x, start_y = x.storage_offset(), y.storage_offset()
        there = memory if y.untyped_storage().data_ptr() == base.data_ptr() else y.clone()
        expected = function([memory[start_x : start_x + 32], there[start_y : start_y + 32]])
        assert_bits(graph.dispatcher([x, y]), expected)
        assert_bits([base], [memory])
    report = graph.refresh_report()
    assert report.state == "graphed", report.reason
    assert 0 < report.replays < 10  # calls whose copies would show went to the callable


def test_a_misaligned_argument_that_is_written(place: Place) -> None:
    def function(arguments: list[Any]) -> list[Any]:
        arguments[0].add_(1)
        return [arguments[0] * 2]

    graph = place.graphed(function)
    for call in range(8):
        x = place.randn(33)[1:] if call % 2 else place.randn(32)
        expected = x + 1
        assert_bits(graph.dispatcher([x]), [expected * 2])
        assert_bits([x], [expected])
    report = graph.refresh_report()
    assert report.replays == 6
    assert report.copies == 3


# --------------------------------------------------------------------- repeated proofs


def test_paranoia_finds_a_callable_that_changed(place: Place) -> None:
    factor = [2.0]

    def function(arguments: list[Any]) -> list[Any]:
        return [arguments[0] * factor[0]]

    graph = place.graphed(function, paranoid=4)
    run = graph.as_callable()
    for _ in range(11):
        x = place.randn(8)
        assert_bits(run([x]), [x * 2])
    assert graph.refresh_report().proofs == 3  # the first, and after 4 and 8 calls
    factor[0] = 3.0  # nothing that a graph could see
    x = place.randn(8)
    assert_bits(run([x]), [x * 3])  # call 12: proven again, and found out
    assert graph.report.state == "fallback"
    assert "repeated proof failed" in (graph.report.reason or "")
    for _ in range(6):
        assert_bits(run([x]), [x * 3])


def test_paranoia_through_the_backend(place: Place) -> None:
    fast = place.compile(lambda x: torch.sin(x) + 1, debug="paranoid", debug_interval=3)
    for _ in range(12):
        x = place.randn(8)
        assert torch.equal(fast(x), torch.sin(x) + 1)
    report = only_graph()
    assert report.proofs == 1 + 4  # calls 2, 3, 6, 9 and 12
    assert not report.past_wrappers
    with pytest.raises(Exception, match=r"debug_interval.*0.*1 or more"):
        place.compile(lambda x: x + 1, debug_interval=0)(place.randn(2))


def test_arguments_can_be_copied_instead_of_patched(place: Place) -> None:
    """The switch that says what patching is worth: the same results, and the bytes of a call."""
    weight = place.randn(64, 64)
    fast = place.compile(lambda x, y: (x @ weight + y).relu(), arguments="copied")
    for _ in range(8):
        x, y = place.randn(32, 64), place.randn(32, 64)
        assert_bits([fast(x, y)], [(x @ weight + y).relu()])
    report = only_graph()
    assert report.state == "graphed, partly copied" and report.outputs_copied == 0
    assert report.replays == 6 and report.bytes_copied == 6 * (weight.numel() + 2 * x.numel()) * 4
    with pytest.raises(Exception, match=r"arguments.*'moved'.*patched.*copied"):
        place.compile(lambda x: x + 1, arguments="moved")(place.randn(2))


# ------------------------------------------------------------------------- processes

CHILD = """
import os, sys, torch, pygraph
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
fast = torch.compile(model, backend="pygraph", options={"device": "twin"})
with torch.no_grad():
    for _ in range(5):
        x = torch.randn(4, 8)
        assert torch.equal(fast(x), model(x))
    assert pygraph.report().replays == 3
    if "fork" in sys.argv:
        child = os.fork()
        for _ in range(5):
            x = torch.randn(4, 8)
            assert torch.equal(fast(x), model(x))
        if child:
            assert os.waitpid(child, 0)[1] == 0, "the child failed"
            assert pygraph.report().replays == 8
        else:
            (graph,) = pygraph.report().graphs
            assert graph.replays == 3, "a forked child must not use the driver"
            assert graph.state == "fallback" and "forked" in graph.reason, graph
            later = torch.compile(lambda x: x * 2, backend="pygraph", options={"device": "twin"})
            assert torch.equal(later(x), x * 2)
            assert pygraph.report().graphs[1].reason == graph.reason == pygraph.info()["problem"]
            pygraph.reset()
            torch._dynamo.reset()
"""


@pytest.mark.parametrize("mode", ["exit", "fork"])
def test_processes_fork_and_end_cleanly(mode: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", CHILD, mode],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "rror" not in done.stderr and "leak" not in done.stderr, done.stderr
    assert done.stderr.count("forked") == done.stderr.count("'spawn'") == (mode == "fork")


def test_a_failing_replay_that_wrote_its_arguments_is_not_repeated() -> None:
    """What the graph has written must not be written again by the callable."""
    place = Place("twin")
    with torch.no_grad():

        def function(arguments: list[Any]) -> list[Any]:
            arguments[0].add_(1)
            return [arguments[0] * 2, arguments[0].view(torch.int32)]

        graph = place.graphed(function)
        x = torch.zeros(8)
        for _ in range(4):
            graph.dispatcher([x])
        assert x.tolist() == [4.0] * 8
        calls = graph.refresh_report().replays
        _engine.twin_fail("cuStreamSynchronize", 1, 1)
        graph.dispatcher([x])  # the refused wait is made again: the call is served
        assert x.tolist() == [5.0] * 8
        assert graph.refresh_report().replays == calls + 1
        _engine.twin_reset_faults()
    pygraph.reset()


def test_an_operator_that_breaks_its_library_is_never_captured(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pygraph.capturing import pipeline

    def fail(*_: Any) -> None:
        raise AssertionError("it must not be captured")

    monkeypatch.setattr(pipeline, "link", fail)
    graph = place.graphed(lambda arguments: list(torch.linalg.eigh(arguments[0])))
    for _ in range(5):
        x = place.randn(6, 6)
        x = x @ x.t()
        assert_bits(graph.dispatcher([x]), list(torch.linalg.eigh(x)))
    report = graph.refresh_report()
    assert (report.state, report.operator) == ("fallback", "aten._linalg_eigh.default")
    assert "unusable" in (report.reason or "")
