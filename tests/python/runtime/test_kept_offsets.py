"""Programs that serve only calls with the storage offsets of the call that they were linked for.

A word that looks like a phantom address but may stand in a struct's padding is noise to the linker.
If it was an address after all, counted from the start of a storage, the proof fails, and the call
is linked once more for its own offsets. The twin's kernels take no structs with addresses, so the
addresses that the linker refuses are passed off as such words here (`padding`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from places import Place, assert_bits
from training_support import Compile, agree, fresh, role_of, serves

from pygraph import _engine
from pygraph.capturing import pipeline
from pygraph.capturing.attempts import Attempt, Policy
from pygraph.capturing.outcome import LinkedProgram
from pygraph.capturing.request import Request
from pygraph.decide.signatures import MAXIMUM_FAILURES
from pygraph.reporting import PARTLY, Report
from pygraph.runtime.compiled_graph import CompiledGraph
from pygraph.runtime.training_pair import Role
from pygraph.twin import faults

pytestmark = pytest.mark.usefixtures("without_gradients")
PLACE = Place("twin")
LINKED, OTHER = 16, 8  #: storage offsets
WHY = "with other ones a proof failed"

Function = Callable[[list[Any]], list[Any]]


@dataclasses.dataclass
class Links:
    """What was linked under `padding`: per link its policy and whether offsets were kept."""

    made: list[tuple[Policy, bool]] = dataclasses.field(default_factory=list)
    strays: int = 0  #: of the link under way


@pytest.fixture
def padding(monkeypatch: pytest.MonkeyPatch) -> Links:
    """Words for which the linker would refuse two captures are noise: they stay what they were in
    the first one, in a graph that is made all the same."""
    links = Links()
    compare, link = _engine.link, pipeline.link

    def lenient(**options: Any) -> Any:
        linked = compare(**options)
        links.strays = len(linked.problems)
        if not linked.problems:
            return linked
        return compare(**{**options, "phantom_end": options["phantom_begin"]})

    def noting(request: Request, attempt: Attempt) -> LinkedProgram:
        links.made.append((attempt.policy, attempt.keep_offsets))
        linked = link(request, attempt)
        assert not linked.doubtful, "the twin's own kernels have no such words"
        return dataclasses.replace(linked, doubtful=links.strays > 0)

    monkeypatch.setattr(_engine, "link", lenient)
    monkeypatch.setattr(pipeline, "link", noting)
    return links


def from_the_start(arguments: list[Any]) -> list[Any]:
    """Reads its argument's storage from element 24 on, wherever the argument begins."""
    (x,) = arguments
    arguments.clear()
    return [x.as_strided((16,), (1,), 24) * 2, x + 1]


def sample(offset: int) -> torch.Tensor:
    return torch.randn(160)[offset : offset + 64]


def call(graph: CompiledGraph, function: Function, offset: int) -> None:
    x = sample(offset)
    assert_bits(graph.dispatcher([x]), function([x]))


def replays(graph: CompiledGraph) -> int:
    return graph.refresh_report().replays


# ------------------------------------------------------------------------- linked a second time


def test_a_call_whose_proof_fails_is_linked_for_its_own_offsets(padding: Links) -> None:
    graph = PLACE.graphed(from_the_start)
    for _ in range(2):
        call(graph, from_the_start, LINKED)
    report = graph.refresh_report()
    assert (report.state, report.proof) == ("graphed", "bit-equal"), report.reason
    assert report.offsets_kept == WHY
    assert padding.made == [(Policy(), False), (Policy(), True)]


def test_calls_with_other_offsets_run_uncaptured(padding: Links) -> None:
    graph = PLACE.graphed(from_the_start)
    for number in range(12):
        call(graph, from_the_start, LINKED)
        served = replays(graph)
        assert served == max(0, number - 1)
        for offset in (0, OTHER, LINKED + 4):
            if number > 1:
                call(graph, from_the_start, offset)
        assert replays(graph) == served
    report = graph.refresh_report()
    assert (report.relinks, report.programs, report.proofs) == (0, 1, 1)
    assert report.offsets_kept == WHY


def test_the_report_says_so(padding: Links) -> None:
    graph = PLACE.graphed(from_the_start)
    for _ in range(2):
        call(graph, from_the_start, LINKED)
    report = Report([graph.refresh_report()])
    assert f"storage offsets must stay as they are: {WHY}" in str(report)


def test_offsets_are_free_where_a_proof_holds(padding: Links) -> None:
    """Such words alone are no reason: as a rule they are padding."""

    def function(arguments: list[Any]) -> list[Any]:
        (x,) = arguments
        arguments.clear()
        x.as_strided((16,), (1,), 24) * 2  # nobody looks at the result
        return [x + 1]

    graph = PLACE.graphed(function)
    for offset in (LINKED, LINKED, 2 * LINKED, 0, LINKED):  # none is less aligned
        x = sample(offset)
        assert_bits(graph.dispatcher([x]), [x + 1])
    assert padding.strays > 0
    assert padding.made == [(Policy(), False)]
    assert (graph.refresh_report().replays, graph.report.offsets_kept) == (3, None)


# ------------------------------------------------------------------------- in vain


def test_a_second_failure_goes_down_the_ladder(padding: Links) -> None:
    """Its argument is also read through a table, which only a copy of the argument helps."""

    def function(arguments: list[Any]) -> list[Any]:
        (x,) = arguments
        arguments.clear()
        return [x[:16] * x.as_strided((16,), (1,), 24)]

    graph = PLACE.graphed(function)
    with faults.hidden_pointers(0):
        for _ in range(5):
            call(graph, function, 0)
    apart = Policy(scratch_apart=True)
    copied = Policy(scratch_apart=True, copy_inputs=True)
    twice = [(Policy(), False), (Policy(), True), (apart, False), (apart, True)]
    assert padding.made[:5] == [*twice, (copied, False)]
    report = graph.refresh_report()
    assert (report.state, report.replays) == ("graphed, partly copied", 3)
    assert (report.reason or "").count("failed") == 2


def test_a_failure_on_every_rung_falls_back(padding: Links) -> None:
    graph = PLACE.graphed(from_the_start)
    with faults.hidden_pointers(-1):
        for offset in (LINKED, LINKED, LINKED, OTHER, LINKED):
            call(graph, from_the_start, offset)
    assert [kept for _, kept in padding.made[:5]] == [False, True, False, True, False]
    report = graph.refresh_report()
    assert (report.state, report.replays, report.offsets_kept) == ("fallback", 0, None)
    assert (report.reason or "").count("failed") == 3


def test_without_such_words_nothing_is_linked_twice(padding: Links) -> None:
    def function(arguments: list[Any]) -> list[Any]:
        return [arguments[0] + 1]

    graph = PLACE.graphed(function)
    with faults.hidden_pointers(-1):
        for _ in range(3):
            call(graph, function, LINKED)
    assert not any(kept for _, kept in padding.made)
    assert graph.refresh_report().state == "fallback"


# ------------------------------------------------------------------------- offsets that change


def test_a_backward_is_linked_anew_for_offsets_that_changed_for_good() -> None:
    graph = PLACE.graphed(from_the_start, role=Role.BACKWARD)
    for _ in range(4):
        call(graph, from_the_start, LINKED)
    report = graph.refresh_report()
    assert (report.replays, report.relinks) == (2, 0), report.reason
    assert report.offsets_kept
    for _ in range(10):
        call(graph, from_the_start, OTHER)
    report = graph.refresh_report()
    assert (report.state, report.relinks, report.programs) == ("graphed", 1, 1), report.reason
    assert report.offsets_kept
    served = report.replays
    assert served >= 2 + 5
    for _ in range(3):
        call(graph, from_the_start, OTHER)
    assert replays(graph) == served + 3


def test_an_inference_graph_stays_with_the_offsets_that_it_has() -> None:
    """Its arguments are the caller's, who may well come back with the old ones."""
    graph = PLACE.graphed(from_the_start)
    for offset in (*[LINKED] * 4, *[OTHER] * 10, *[LINKED] * 3):
        call(graph, from_the_start, offset)
    report = graph.refresh_report()
    assert (report.replays, report.relinks) == (2 + 3, 0), report.reason


def test_a_backward_whose_offsets_never_settle_is_not_linked_for_ever() -> None:
    graph = PLACE.graphed(from_the_start, role=Role.BACKWARD)
    for number in range(600):
        call(graph, from_the_start, (0, OTHER, LINKED)[number % 3])
    report = graph.refresh_report()
    assert report.relinks == report.proofs == MAXIMUM_FAILURES
    assert report.programs == 0


# ------------------------------------------------------------------ what a forward saves for it


class Reads(torch.autograd.Function):
    """Its backward reads what was saved from the start of its storage."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x)
        ctx.save_for_backward(y)
        return y * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> torch.Tensor:
        (y,) = ctx.saved_tensors
        result: torch.Tensor = gradients[0] * y.as_strided((8, 8), (1, 8), 0)
        return result


def test_what_is_saved_for_a_backward_that_counts_from_the_start_begins_there() -> None:
    """Captured or not, it would be wrong for what stands behind something else in a storage."""

    def program(compiled: Compile) -> list[Any]:
        weights = [torch.randn(8, 8, requires_grad=True) for _ in range(3)]

        def function(x: torch.Tensor) -> torch.Tensor:
            for weight in weights:
                x = Reads.apply(x @ weight)  # type: ignore[no-untyped-call]
            return x

        fast = compiled(function)
        kept: list[Any] = []
        for _ in range(8):
            x = torch.randn(8, 8, requires_grad=True)
            kept += torch.autograd.grad(fast(x).square().sum(), [x, *weights])
        return kept

    with fresh("twin") as place, torch.enable_grad():
        report = agree(place, program)
    serves(report, "forward", "backward", replays=5)
    (backward,) = (graph for graph in report.graphs if role_of(graph) == "backward")
    assert backward.offsets_kept and not backward.relinks


def test_inputs_that_are_copied_keep_their_offsets() -> None:
    """Their copies stand at the start of a storage, so the linker cannot see who counts from it."""

    def function(arguments: list[Any]) -> list[Any]:
        (x,) = arguments
        arguments.clear()
        return [x.as_strided((32,), (1,), OTHER) * 2]

    with faults.hidden_pointers(0):
        graph = PLACE.graphed(function)
        for _ in range(4):
            call(graph, function, 0)
        report = graph.refresh_report()
        assert (report.state, report.replays) == (PARTLY, 2), report.reason
        call(graph, function, LINKED)
        call(graph, function, 0)
    assert replays(graph) == 3
