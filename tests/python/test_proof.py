"""The verdict on results that have not the bits of the uncaptured callable."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from pygraph.capture import proof
from pygraph.capture.device import Device
from pygraph.capture.reference import Reference

PLUS, MINUS = torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])
NAN = torch.tensor([float("nan"), 1.0])
OTHER_NAN = NAN.view(torch.int32).add(torch.tensor([1, 0], dtype=torch.int32)).view(torch.float32)


class Runs:
    """What the callable makes, run by run."""

    def __init__(self, *runs: torch.Tensor) -> None:
        self.runs, self.expected, self.after = runs, [runs[0]], dict[int, Any]()
        self.number = 0

    def again(self, _: Any) -> list[Any]:
        self.number += 1
        return [self.runs[self.number % len(self.runs)]]


class Still:
    def delay(self) -> None:
        pass


def verdict(found: torch.Tensor, *runs: torch.Tensor) -> str:
    reference, device = cast(Reference, Runs(*runs)), cast(Device, Still())
    return proof._compare([found], lambda _: [], reference, device, ())


def far(by: float) -> torch.Tensor:
    return torch.tensor([0.0, 1.0 + by])


def test_the_same_bits_need_no_runs() -> None:
    runs = Runs(PLUS, far(9.0))
    found = proof._compare(
        [PLUS.clone()], lambda _: [], cast(Reference, runs), cast(Device, Still()), ()
    )
    assert found == proof.BIT_EQUAL and runs.number == 0


@pytest.mark.parametrize(("one", "other"), [(PLUS, MINUS), (MINUS, PLUS), (NAN, OTHER_NAN)])
def test_what_has_no_distance_may_differ_only_where_the_callable_does(
    one: torch.Tensor, other: torch.Tensor
) -> None:
    assert verdict(other, one, other) == proof.WITHIN_SPREAD
    assert verdict(other, one, one) == (
        "failed: result 0 differs in signs of zeros or bits of NaNs from the uncaptured callable, "
        "whose own run-to-run spread is 0"
    )


def test_a_distance_needs_one_of_the_callable() -> None:
    assert verdict(far(4.0), far(0.0), far(1.0)) == proof.WITHIN_SPREAD
    assert verdict(far(4.1), far(0.0), far(1.0)).startswith("failed: result 0 differs by 4.1 ")
    assert verdict(far(1.0), PLUS, MINUS).startswith("failed: result 0 differs by 1 ")
    assert verdict(far(1.0), PLUS, PLUS).startswith("failed")
    assert verdict(MINUS, PLUS, far(1.0)) == proof.WITHIN_SPREAD


@pytest.mark.parametrize("found", [far(1.0).double(), far(1.0)[None], 1.0])
def test_what_is_no_such_tensor_has_no_distance(found: Any) -> None:
    said = "failed: result 0 is not what the uncaptured callable returns"
    assert verdict(found, far(0.0), far(1.0)) == said


def test_a_nan_is_as_far_as_can_be() -> None:
    assert verdict(NAN, PLUS, far(1.0)).startswith("failed: result 0 differs by inf ")


def test_a_difference_that_shows_late_is_waited_for() -> None:
    rare = [PLUS] * 9 + [MINUS]
    assert verdict(MINUS, *rare) == proof.WITHIN_SPREAD
