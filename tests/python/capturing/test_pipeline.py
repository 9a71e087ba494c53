"""The pipeline from the callable to the verdict, and what is told of all attempts."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from places import PLACES, Place, assert_bits
from training_support import fresh

from pygraph.capturing import proof
from pygraph.capturing.attempts import Attempt, Policy, Setback
from pygraph.capturing.outcome import Failure, Outcome, Tried
from pygraph.capturing.record import Capture
from pygraph.reporting import FALLBACK


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with fresh(request.param) as here, torch.no_grad():
        yield here


def serve(place: Place, calls: int = 3) -> Any:
    graph = place.graphed(lambda arguments: [torch.relu(arguments[0]) + 1])
    for _ in range(calls):
        x = place.randn(8)
        assert_bits(graph.dispatcher([x]), [torch.relu(x) + 1])
    return graph.refresh_report()


def test_no_capture_is_left_when_the_proof_begins(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proof runs the callable for real, and its memory must not meet phantom memory."""
    left: list[int] = []
    prove = proof.prove

    def noting(*args: Any, **_: Any) -> proof.Verdict:
        left.append(sum(type(each) is Capture for each in gc.get_objects()))
        return prove(*args)

    monkeypatch.setattr(proof, "prove", noting)
    report = serve(place)
    assert (report.state, left) == ("graphed", [0])


def test_every_step_is_timed(place: Place) -> None:
    took = serve(place).timings_ms
    assert list(took) == ["link", "capture", "compare", "proof_runs", "proof"]
    assert took["capture"] + took["compare"] <= took["link"]
    assert took["proof_runs"] <= took["proof"]


def test_memory_that_runs_out_without_a_word(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*args: Any, **_: Any) -> proof.Verdict:
        raise MemoryError

    monkeypatch.setattr(proof, "prove", short)
    report = serve(place)
    assert (report.state, report.reason) == (FALLBACK, "memory ran out: ")


def differing(places: int) -> Tried:
    return Tried(
        Attempt(Policy()),
        {},
        failure=Failure(f"they differ in {places} places"),
        places=places,
        setback=Setback.CAPTURES_DIFFER,
    )


@pytest.mark.parametrize(
    ("places", "told"), [([3, 2], 2), ([2, 3], 2), ([0, 3], 3), ([1, 2, 3], 2), ([4], 4)]
)
def test_of_captures_that_differ_the_lesser_difference_is_told(
    places: list[int], told: int
) -> None:
    outcome = Outcome([differing(each) for each in places])
    assert outcome.reasons == f"they differ in {told} places"
    assert outcome.linked is None and outcome.verdict is None


def test_a_rung_that_has_failed_is_told_by_the_failure_without_kept_offsets() -> None:
    first, again, below = (proof.failed(text) for text in ("first", "again", "below"))
    rung, next_rung = Policy(), Policy(scratch_apart=True)
    outcome = Outcome(
        [
            Tried(Attempt(rung), {}, verdict=first, setback=Setback.OFFSETS_DOUBTFUL),
            Tried(
                Attempt(rung, keep_offsets=True), {}, verdict=again, setback=Setback.PROOF_FAILED
            ),
            Tried(Attempt(next_rung, least_aligned=True), {}, verdict=below),
        ]
    )
    assert outcome.faults == (f"{rung}: failed: first", f"{next_rung}: failed: below")
    assert outcome.verdict == below and outcome.alignment_doubted
