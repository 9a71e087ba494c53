"""When programs are linked: at once, in time, or from what others have saved."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from places import PLACES, Place
from sizes_support import later, scale, serve
from training_support import fresh, reset

import pygraph
from pygraph.capturing import proof
from pygraph.decide import budget, signatures
from pygraph.decide.signatures import SignatureRules
from pygraph.reporting import Report, text
from pygraph.runtime import bypass, devices, registry


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with fresh(request.param) as here, torch.no_grad():
        yield here


def test_a_few_programs_are_linked_at_once_and_others_in_time(
    place: Place, heard: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "EAGER", 2)
    monkeypatch.setattr(budget, "PATIENCE", 1e6)
    graph = place.graphed(scale)
    for factor in (2, 2, 3, 3, 4, 4, 4):
        serve(graph, place, factor)
    assert graph.refresh_report().programs == 2
    assert heard == [[2], [2], [3]]
    later(graph, 0.0)
    serve(graph, place, 4)
    assert graph.refresh_report().programs == 3


@pytest.mark.parametrize("sizes", [signatures.SOON, signatures.SOON + 1])
def test_sizes_that_come_back_soon_are_linked_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, sizes: int
) -> None:
    """Of others one, and then there is no time for more."""
    monkeypatch.setattr(budget, "PATIENCE", 1e6)
    graph = place.graphed(scale)
    for _ in range(4):
        for factor in range(sizes):
            serve(graph, place, factor)
    assert graph.refresh_report().programs == (sizes if sizes == signatures.SOON else 1)


def test_one_size_among_many_comes_back_soon(
    place: Place, heard: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though all is quiet, and though it has been heard of in vain before."""
    monkeypatch.setattr(budget, "PATIENCE", 1e6)
    monkeypatch.setattr(bypass, "_ASKED_AGAIN", 1e6)
    graph = place.graphed(scale)
    for factor in (0, 0, *range(1, 20)):
        serve(graph, place, factor)
    for factor in range(1, 20):
        serve(graph, place, factor)
    assert graph.refresh_report().programs == 1
    heard.clear()
    gap = signatures.SOON - 1
    for factor in (5, *range(20, 20 + gap), 5):
        serve(graph, place, factor)
    assert heard == [[5]]
    assert graph.refresh_report().programs == 2


def test_it_is_asked_again_soon_whether_linking_must_wait(
    place: Place, heard: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "EAGER", 0)
    monkeypatch.setattr(budget, "PATIENCE", 1e6)
    graph = place.graphed(scale)
    for factor in (2, 2, 3, 3, 3):
        serve(graph, place, factor)
    heard.clear()
    for _ in range(2):
        time.sleep(bypass._ASKED_AGAIN)
        for factor in (3, 3):
            serve(graph, place, factor)
    assert heard == [[3], [3]]
    assert graph.refresh_report().programs == 1


def test_no_more_than_a_few_are_linked_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "PATIENCE", 1e6)
    graph = place.graphed(scale)
    for factor in range(20):
        for _ in range(3):
            serve(graph, place, factor)
    assert graph.refresh_report().programs == signatures.EAGER


def test_what_replays_save_is_spent_on_links(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "EAGER", 1)
    monkeypatch.setattr(bypass, "_ASKED_AGAIN", 0.0)
    graph = place.graphed(scale)
    noted: list[tuple[float, float]] = []
    with monkeypatch.context() as patch:
        patch.setattr(graph._signatures, "note_saving", lambda *given: noted.append(given))
        for _ in range(2):
            serve(graph, place, 2)
    per_run = 1e-3 * graph.report.timings_ms["proof_runs"] / len(proof.RUNS)
    assert per_run > 0
    ((saved, taken),) = noted
    assert taken - per_run < saved < taken < 10.0  # the fastest run counts
    graph._signatures.note_saving(0.25, 10.0)
    budget.BUDGET.clear()
    budget.BUDGET.spend(100.0, on_top=False)
    for _ in range(400):
        serve(graph, place, 2)
    for idle in (False, True):
        monkeypatch.setattr(graph.device, "idle", lambda idle=idle: idle)
        graph.dispatcher.open_bypass_to_all(0.0)
        serve(graph, place, 3)
        serve(graph, place, 3)
        # Of 400 replays while the device was busy nothing has been saved.
        assert graph.refresh_report().programs == 1
    for _ in range(790):  # 98.75 of 100 seconds
        serve(graph, place, 2)
    graph.dispatcher.open_bypass_to_all(0.0)
    serve(graph, place, 3)
    assert graph.refresh_report().programs == 1
    for _ in range(11):
        serve(graph, place, 2)
    graph.dispatcher.open_bypass_to_all(0.0)
    serve(graph, place, 3)
    assert graph.refresh_report().programs == 2


def test_what_a_program_in_the_middle_saves_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(budget.time, "monotonic", lambda: now)
    monkeypatch.setattr(budget, "BUDGET", budget.Budget())
    found = signatures.Signatures(SignatureRules(), devices.PLATFORMS["twin"].device(0))

    def earned(replays: int) -> float:
        budget.BUDGET.clear()
        budget.BUDGET.spend(10.0, on_top=False)
        before = budget.BUDGET.seconds_to_wait()
        found.count_savings(replays, True)
        return (before - budget.BUDGET.seconds_to_wait()) / budget.PATIENCE

    assert earned(5) == 0.0  # nothing is known
    found.note_saving(0.3, 2.0)
    assert earned(7) == pytest.approx(2 * 0.3 * budget.REINVESTED)
    found.note_saving(-5.0, 2.0)  # a clock that stood still
    found.note_saving(0.2, 2.0)
    assert earned(10) == pytest.approx(3 * 0.2 * budget.REINVESTED)
    for _ in range(3):
        found.note_saving(-0.5, 2.0)  # the graphs are slower
    assert earned(20) == 0.0


def test_graphs_share_the_time_that_linking_may_take(
    place: Place, heard: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "EAGER", 0)
    one, other = place.graphed(scale), place.graphed(scale)
    for graph in (one, other):
        serve(graph, place, 2)
    budget.BUDGET.clear()
    serve(one, place, 2)
    assert one.refresh_report().programs == 1
    budget.BUDGET.spend(1e3, on_top=False)
    heard.clear()
    for _ in range(5):
        serve(other, place, 2)
    assert other.refresh_report().programs == 0
    assert heard == [[2]]  # it is told then that all is quiet
    assert other.report.state == "warming"
    assert "1 of 1 sizes have no graph yet: making one takes 1000000 ms" in str(other.report.reason)
    later(other, 0.0)
    serve(other, place, 2)
    assert other.refresh_report().programs == 1
    assert (other.report.state, other.report.reason) == ("graphed", None)


def test_a_backward_gets_as_many_programs_as_its_forward_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a forward's graph saves may be such as only a graph takes without waiting for it."""
    monkeypatch.setattr(signatures, "EAGER", 1)
    monkeypatch.setattr(budget, "PATIENCE", 1e6)
    module = torch.nn.Linear(4, 4).to(place.torch)
    fast = place.compile(lambda x: torch.tanh(module(x)).sum(0), dynamic=True)

    def programs_after(*lengths: int) -> list[int]:
        for length in lengths:
            with torch.enable_grad():
                fast(place.randn(length, 4)).sum().backward()
        return [graph.programs for graph in pygraph.report().graphs]

    assert programs_after(5, 5, 5, 6, 6, 6) == [1, 1]
    budget.BUDGET.clear()
    for graph in registry._graphs:
        graph.dispatcher.open_bypass_to_all(0.0)
    assert programs_after(6) == [2, 2]
    assert programs_after(7, 7, 7) == [2, 2]


def test_links_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those that need not wait: they are few."""
    now = 100.0
    monkeypatch.setattr(budget.time, "monotonic", lambda: now)
    time_left = budget.Budget()
    time_left.spend(0.2, on_top=False)
    time_left.spend(0.1, on_top=False)
    assert time_left.seconds_to_wait() == 0.2 * budget.PATIENCE
    time_left.spend(0.1, on_top=True)
    assert time_left.seconds_to_wait() == pytest.approx(0.3 * budget.PATIENCE)
    now = 1000.0
    time_left.spend(0.1, on_top=True)
    assert time_left.seconds_to_wait() == pytest.approx(0.1 * budget.PATIENCE)


@pytest.mark.parametrize("eager", [0, 1, 8])
def test_the_first_few_links_do_not_add_up(
    place: Place, monkeypatch: pytest.MonkeyPatch, eager: int
) -> None:
    monkeypatch.setattr(signatures, "EAGER", eager)
    monkeypatch.setattr(budget, "PATIENCE", 0.0)
    added: list[bool] = []
    monkeypatch.setattr(budget.Budget, "spend", lambda self, seconds, on_top: added.append(on_top))
    graph = place.graphed(scale)
    for factor in (2, 3):
        for _ in range(3):
            serve(graph, place, factor)
    assert added == [eager < 1, eager < 2]


def test_listed_sizes_are_linked_at_once_however_many(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "EAGER", 1)
    monkeypatch.setattr(budget, "PATIENCE", 1e6)
    graph = place.graphed(scale, sizes=SignatureRules(sizes=signatures.sizes_of([2, 3, 4])))
    for factor in (2, 2, 3, 4):
        serve(graph, place, factor)
    assert graph.refresh_report().programs == 3


@pytest.mark.parametrize("at_once", [1, 7, 20])
def test_so_many_are_linked_at_once_as_is_asked_for(
    place: Place, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(budget, "PATIENCE", 1e6)
    graph = place.graphed(scale, sizes=SignatureRules(at_once=at_once))
    for _ in range(3):
        for factor in range(12):
            serve(graph, place, factor)
    assert graph.refresh_report().programs == min(at_once, 12)


def test_the_option_reaches_the_graph(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "PATIENCE", 1e6)

    def programs(**options: int) -> int:
        reset()
        fast = place.compile(lambda x: torch.relu(x).sum(0), dynamic=True, **options)
        for _ in range(3):
            for length in range(3, 15):
                fast(place.randn(length, 4))
        return pygraph.report().graphs[0].programs

    assert [programs(), programs(programs_at_once=0), programs(programs_at_once=5)] == [1, 1, 5]
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"programs_at_once.*0 or"):
        place.compile(torch.relu, programs_at_once=-1)(place.randn(2))


def test_programs_are_bounded_by_their_nodes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "NODES", 2)  # each has one
    monkeypatch.setattr(budget, "PATIENCE", 0.0)
    graph = place.graphed(scale)
    for factor in (2, 3, 4):
        for _ in range(3):
            serve(graph, place, factor)
    assert (graph.refresh_report().programs, graph.report.evictions) == (2, 0)
    for _ in range(4):
        serve(graph, place, 4)
    assert (graph.refresh_report().programs, graph.report.evictions) == (2, 1)


def test_programs_at_once_may_have_any_number_of_nodes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "NODES", 2)  # each has one
    graph = place.graphed(scale, sizes=SignatureRules(programs=4, at_once=3))
    for factor in (2, 3, 4, 5):
        assert graph.refresh_report().limit is None or factor == 5
        for _ in range(3):
            serve(graph, place, factor)
    graph.refresh_report()
    assert (graph.report.programs, graph.report.evictions) == (3, 0)
    assert graph.report.limit == "they have 3 nodes, 2 are for any but programs_at_once"
    assert f"no room for more: {graph.report.limit}" in text.as_text(Report([graph.report]))


def test_a_report_counts_the_sizes_that_have_no_graph_yet(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "PATIENCE", 1e6)
    monkeypatch.setattr(bypass, "_ASKED_AGAIN", 0.0)
    graph = place.graphed(scale)
    for _ in range(3):
        for factor in range(20):
            serve(graph, place, factor)
    report = graph.refresh_report()
    assert (report.state, report.reason, report.programs) == ("graphed", None, 1)
    assert str(report.waiting).startswith("19 of 20 sizes have no graph yet: making one takes ")
    assert f"  {report.waiting}\n" in text.as_text(Report([report])) + "\n"


def test_a_failure_makes_all_sizes_wait(
    place: Place, heard: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one could not be captured, the next one hardly can."""
    monkeypatch.setattr(budget, "PATIENCE", 1e6)
    tried = []

    def function(arguments: list[Any]) -> list[Any]:
        x, factor = arguments
        tried.append(factor)
        y = x * factor
        return [y + 1] if len(tried) % 2 else [y]  # no two captures are alike

    graph = place.graphed(function)
    for factor in (2, 2):
        graph.dispatcher([place.randn(8), factor])
    assert graph.refresh_report().state == "fallback"
    tried.clear()
    heard.clear()
    for _ in range(3):
        for factor in (3, 4, 5):
            graph.dispatcher([place.randn(8), factor])
    assert tried == [3, 4, 5] * 3  # once per call: no capture
    assert heard == []
    later(graph, 0.0)
    graph.dispatcher([place.randn(8), 3])
    assert len(tried) > 9 + 1
