"""The verdict on results that have not the bits of the uncaptured callable."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from pygraph.capturing import proof
from pygraph.capturing.reference import Reference

PLUS, MINUS = torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])
NAN = torch.tensor([float("nan"), 1.0])
OTHER_NAN = NAN.view(torch.int32).add(torch.tensor([1, 0], dtype=torch.int32)).view(torch.float32)


class Runs:
    """What the callable makes, run by run."""

    def __init__(self, *runs: torch.Tensor) -> None:
        self.runs, self.expected, self.after = runs, [runs[0]], dict[int, Any]()
        self.number = 0
        self.device = Still()

    def again(self) -> list[Any]:
        self.number += 1
        return [self.runs[self.number % len(self.runs)]]


class Still:
    def delay(self) -> None:
        pass


def repeats(runs: Runs) -> proof.Repeats:
    return proof.Repeats(cast(Reference, runs))


def verdict(found: torch.Tensor, *runs: torch.Tensor) -> proof.Verdict:
    return proof._compare([found], repeats(Runs(*runs)))


def far(by: float) -> torch.Tensor:
    return torch.tensor([0.0, 1.0 + by])


def test_the_same_bits_need_no_runs() -> None:
    runs = Runs(PLUS, far(9.0))
    assert proof._compare([PLUS.clone()], repeats(runs)) == proof.BIT_EQUAL
    assert runs.number == 0


def test_runs_of_the_callable_serve_every_run_of_the_graph() -> None:
    runs = Runs(far(0.0), far(1.0))
    again = repeats(runs)
    for by in (1.0, 4.0, -4.0):
        assert proof._compare([far(by)], again) == proof.WITHIN_SPREAD
    assert runs.number == 4
    for _ in range(2):
        assert not proof._compare([far(4.1)], again).passed
    assert runs.number == 16


def test_the_run_that_is_farthest_off_counts() -> None:
    assert verdict(far(4.0), far(0.0), far(1.0), far(0.5), far(0.5)) == proof.WITHIN_SPREAD


def test_nothing_is_asked_of_results_that_nobody_writes() -> None:
    class Both(Runs):
        def again(self) -> list[Any]:
            return super().again() * 2

    runs = Both(far(0.0), far(1.0))
    runs.expected *= 2
    first, neither = (
        proof.Repeats(cast(Reference, runs), unwritten) for unwritten in ((1,), (0, 1))
    )
    assert proof._compare([far(1.0), far(9.0)], first) == proof.WITHIN_SPREAD
    assert proof._compare([far(9.0), far(9.0)], neither) == proof.BIT_EQUAL


@pytest.mark.parametrize(("one", "other"), [(PLUS, MINUS), (MINUS, PLUS), (NAN, OTHER_NAN)])
def test_what_has_no_distance_may_differ_only_where_the_callable_does(
    one: torch.Tensor, other: torch.Tensor
) -> None:
    assert verdict(other, one, other) == proof.WITHIN_SPREAD
    assert str(verdict(other, one, one)) == (
        "failed: result 0 differs in signs of zeros or bits of NaNs from the uncaptured callable, "
        "whose own run-to-run spread is 0"
    )


def test_a_distance_needs_one_of_the_callable() -> None:
    assert verdict(far(4.0), far(0.0), far(1.0)) == proof.WITHIN_SPREAD
    assert str(verdict(far(4.1), far(0.0), far(1.0))).startswith("failed: result 0 differs by 4.1 ")
    assert str(verdict(far(1.0), PLUS, MINUS)).startswith("failed: result 0 differs by 1 ")
    assert str(verdict(far(1.0), PLUS, PLUS)).startswith("failed")
    assert verdict(MINUS, PLUS, far(1.0)) == proof.WITHIN_SPREAD


@pytest.mark.parametrize("found", [far(1.0).double(), far(1.0)[None], far(1.0).to("meta"), 1.0])
def test_what_is_no_such_tensor_has_no_distance(found: Any) -> None:
    said = "failed: result 0 is not what the uncaptured callable returns"
    assert str(verdict(found, far(0.0), far(1.0))) == said


def test_a_nan_is_as_far_as_can_be() -> None:
    assert str(verdict(NAN, PLUS, far(1.0))).startswith("failed: result 0 differs by inf ")


def test_a_difference_that_shows_late_is_waited_for() -> None:
    rare = [PLUS] * 9 + [MINUS]
    assert verdict(MINUS, *rare) == proof.WITHIN_SPREAD


# --------------------------------------------------------------------- a rounding that is rarely so

#: Of a callable whose runs are 1e-6 apart.
RARE = 2.0**-13


def scripted(*verdicts: proof.Verdict) -> tuple[proof.Verdict, int]:
    """What these say in turn, and how many were asked for."""
    asked = 0

    def judge(run: proof.Run) -> proof.Verdict:
        nonlocal asked
        asked += 1
        return verdicts[asked - 1]

    return proof.in_turn(judge), asked


DOUBT = proof.failed("a rounding, perhaps", perhaps_rounding=True)
WRONG = proof.failed("no rounding")
SAME, NEAR = proof.BIT_EQUAL, proof.WITHIN_SPREAD


def test_a_rare_rounding_may_be_one_only_where_the_callable_rounds_otherwise_too() -> None:
    assert verdict(far(RARE), far(0.0), far(1e-6)).perhaps_rounding
    assert not verdict(far(RARE), far(0.0), far(0.0)).perhaps_rounding
    assert not verdict(far(0.1), far(0.0), far(1e-6)).perhaps_rounding
    assert not verdict(NAN, far(0.0), far(1e-6)).perhaps_rounding
    assert not verdict(far(1e-6), far(0.0), far(1e-6)).perhaps_rounding  # it passed


def test_all_results_that_differ_must_be_roundings() -> None:
    class Both(Runs):
        def again(self) -> list[Any]:
            return super().again() * 2

    runs = Both(far(0.0), far(1e-6))
    runs.expected *= 2
    assert proof._compare([far(RARE), far(RARE)], repeats(runs)).perhaps_rounding
    assert not proof._compare([far(RARE), far(9.0)], repeats(runs)).perhaps_rounding


def test_a_run_in_doubt_is_made_again() -> None:
    assert scripted(SAME, NEAR, SAME) == (NEAR, 3)
    assert scripted(SAME, DOUBT, NEAR, NEAR, SAME) == (NEAR, 5)


def test_a_graph_that_is_wrong_is_wrong_again() -> None:
    assert scripted(SAME, DOUBT, DOUBT) == (DOUBT, 3)
    assert scripted(SAME, DOUBT, NEAR, DOUBT) == (DOUBT, 4)
    assert scripted(WRONG) == (WRONG, 1)


def test_one_run_of_a_proof_may_be_in_doubt() -> None:
    assert scripted(DOUBT, NEAR, NEAR, SAME, DOUBT) == (DOUBT, 5)


def test_a_doubt_does_not_excuse_what_is_wrong_later() -> None:
    assert scripted(SAME, DOUBT, NEAR, NEAR, WRONG) == (WRONG, 5)
