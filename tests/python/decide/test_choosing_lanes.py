"""In how many lanes nodes run, by what clocks said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pygraph.capturing.lanes import NO_LANES, LaneOptions, LaneTimes
from pygraph.decide import lanes

ROUNDS = 12


def clocked(count: int, latency: float, pipelined: float, noise: Sequence[float] = ()) -> LaneTimes:
    wobble = [*noise, *[0.0] * (ROUNDS - len(noise))]
    return LaneTimes(count, [latency + each for each in wobble], [pipelined] * ROUNDS)


SERIAL = clocked(1, 100, 90)


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ([], 0),
        ([clocked(2, 80, 80)], 1),
        ([clocked(2, 80, 80), clocked(4, 60, 70)], 2),
        # 8 lanes gain most from an idle device, and lose in a row; 4 gain more in both together.
        ([clocked(2, 80, 80), clocked(4, 60, 70), clocked(8, 50, 95)], 2),
        ([clocked(2, 70, 90), clocked(4, 71, 60)], 2),
        # Slower from an idle device, in a row, or in both.
        ([clocked(2, 101, 80)], 0),
        ([clocked(2, 80, 91)], 0),
        ([clocked(2, 300, 300)], 0),
        # Too little.
        ([clocked(2, 99, 89)], 0),
        # Faster by the median alone: 5 of 12 rounds say otherwise.
        ([clocked(2, 90, 80, noise=[40] * 5)], 0),
    ],
)
def test_what_is_faster_and_nowhere_slower_is_chosen(others: list[LaneTimes], chosen: int) -> None:
    assert lanes.choose([SERIAL, *others]) == chosen


def test_rounds_that_contradict_each_other_choose_nothing() -> None:
    """In a row it is ahead by the median, and in too many rounds behind."""
    row = [80.0] * 7 + [200.0] * 5
    assert lanes.choose([SERIAL, LaneTimes(2, [80.0] * ROUNDS, row)]) == 1
    slower = [89.0] + [91.0] * 11
    assert lanes.choose([SERIAL, LaneTimes(2, [80.0] * ROUNDS, slower)]) == 0


def test_what_is_behind_in_nearly_all_rounds_is_not_chosen_for_its_median() -> None:
    """A rhythm of the machine is in both; two of 24 rounds alone make its median the smaller."""
    rhythm = [100.0 + turn for turn in range(24)]
    row = [us + 0.1 for us in rhythm[:-2]] + [1.0, 1.0]
    serial = LaneTimes(1, [100.0] * 24, rhythm)
    assert lanes.choose([serial, LaneTimes(2, [80.0] * 24, row)]) == 0
    assert lanes.choose([serial, LaneTimes(2, [80.0] * 24, [us - 0.1 for us in rhythm])]) == 1


def test_what_is_tried_follows_from_the_option() -> None:
    assert lanes.wanted("off", "measure", 1.05) == NO_LANES
    assert lanes.wanted(1, "measure", 1.05) == NO_LANES
    assert lanes.wanted(3, "measure", 1.5) == LaneOptions((3,), memory=1.5)
    auto = lanes.wanted("auto", "measure", 1.5)
    assert auto == LaneOptions((2, 4, 8), lanes.choose, 1.5)
    assert lanes.wanted("auto", "always", 1.5) == auto
    assert lanes.wanted("auto", "model", 1.5) == NO_LANES  # it decides without clocks
