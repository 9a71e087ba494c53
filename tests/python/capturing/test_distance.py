"""How far apart tensors are: one by one, and many at once."""

from __future__ import annotations

import math

import pytest
import torch

from pygraph.capturing import distance
from pygraph.capturing.distance import distances

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
INF, NAN = math.inf, math.nan


def apart(left: list[float], right: list[float]) -> float:
    return distances([torch.tensor(left)], [torch.tensor(right)])[0]


def test_the_largest_absolute_difference() -> None:
    assert apart([1.0, 2.0, 3.0], [1.0, 4.0, 2.0]) == 2.0
    assert apart([], []) == 0.0
    assert distances([torch.tensor(3)], [torch.tensor(-4)]) == [7.0]
    assert distances([torch.tensor(True)], [torch.tensor(False)]) == [1.0]
    assert distances([torch.tensor(3 + 4j)], [torch.tensor(0j)]) == [5.0]
    assert distances([], []) == []


def test_what_is_no_number() -> None:
    assert apart([NAN, 1.0], [NAN, 2.0]) == 1.0
    assert apart([NAN, 1.0], [0.0, 1.0]) == apart([0.0, 1.0], [NAN, 1.0]) == INF
    assert apart([INF, -INF, 1.0], [INF, -INF, 1.5]) == 0.5
    assert apart([INF], [-INF]) == apart([INF], [0.0]) == INF


@pytest.mark.parametrize("place", range(3))
def test_what_is_no_number_in_any_piece(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    monkeypatch.setattr(distance, "_AT_ONCE", 1)
    left, right = [1.0, 1.0, 1.0], [2.0, 2.0, 2.0]
    left[place] = NAN
    assert apart(left, right) == INF
    right[place] = NAN
    assert apart(left, right) == 1.0


def alone(left: torch.Tensor, right: torch.Tensor) -> float:
    """The same in one line, for numbers."""
    return float((left.double() - right.double()).abs().max()) if left.numel() else 0.0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("at_once", [1, 5, 64, 1 << 20])
def test_many_at_once(monkeypatch: pytest.MonkeyPatch, at_once: int, device: str) -> None:
    """However they are cut and put together: of several types, empty, on two devices."""
    monkeypatch.setattr(distance, "_AT_ONCE", at_once)
    gaps, largest = distance._gaps, 0

    def measured(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, left.numel())
        return gaps(left, right)

    monkeypatch.setattr(distance, "_gaps", measured)
    dtypes = (torch.float32, torch.bfloat16, torch.int64)
    shapes = ((3, 4), (), (0, 2), (7,), (2, 30))
    lefts, rights = (
        [
            (8 * torch.randn(shapes[n % len(shapes)])).to(
                "cpu" if n % 7 == 6 else device, dtypes[n % len(dtypes)]
            )
            for n in range(40)
        ]
        for _ in range(2)
    )
    lefts[0], rights[0] = lefts[0].t(), rights[0].t().contiguous()
    expected = [alone(*pair) for pair in zip(lefts, rights, strict=True)]
    assert distances(lefts, rights) == expected and max(expected) > 0
    assert largest <= at_once


def test_large_integers_beside_floats() -> None:
    """Which of them would be rounded to."""
    lefts, rights = ([torch.tensor([1.0]), torch.tensor([2**40 + n])] for n in (0, 1))
    assert distances(lefts, rights) == [0.0, 1.0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float8_e4m3fn, torch.uint8, torch.uint16, torch.uint64]
)
def test_rare_types(dtype: torch.dtype, device: str) -> None:
    left, right = (torch.tensor([1, each]).to(device, dtype) for each in (2, 4))
    assert distances([left, left], [right, left]) == [2.0, 0.0]
    if dtype.is_floating_point:
        none = torch.tensor([NAN, 2]).to(device, dtype)
        assert distances([none, none], [left, none]) == [INF, 0.0]
