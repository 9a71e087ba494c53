"""In how many lanes the nodes of a graph run: what clocks say of it.

Lanes cost something: each edge between two of them is a wait, and a graph that is wider takes the
device longer to launch. So a number of lanes is chosen only if it is faster than the order of the
capture from an idle device, and no slower where calls follow one another. Of those that are, the
one that gains most in both together.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

from pygraph.capturing.lanes import NO_LANES, LaneOptions, LaneTimes
from pygraph.decide import selection
from pygraph.decide.selection import Select

Parallel = Literal["off", "auto"] | int

#: Numbers of lanes that are tried: a GPU gains little by more, and looks after more waits.
_NUMBERS = (2, 4, 8)
#: The share of its time that a call must gain: less, and clocks of another day say otherwise.
LEAST_GAIN = 0.02


def wanted(parallel: Parallel, select: Select, memory: float) -> LaneOptions:
    """What is tried. A number that is asked for is taken as it is. Who does not decide by clocks
    keeps the order of the capture, if not told otherwise. `memory`: LaneOptions.memory."""
    if parallel == "auto":
        return NO_LANES if select == "model" else LaneOptions(_NUMBERS, choose, memory)
    return (
        LaneOptions((parallel,), memory=memory) if parallel != "off" and parallel > 1 else NO_LANES
    )


def choose(clocked: Sequence[LaneTimes]) -> int:
    """The place of the one that is to serve. The first has the order of the capture."""
    serial = clocked[0]
    gains = {
        place: _ratio(each.latency, serial.latency) * _ratio(each.pipelined, serial.pipelined)
        for place, each in enumerate(clocked)
        if place and _gains(each, serial)
    }
    return min(gains, key=lambda place: gains[place], default=0)


def _gains(each: LaneTimes, serial: LaneTimes) -> bool:
    return (
        _ratio(each.latency, serial.latency) <= 1 - LEAST_GAIN
        and selection.ahead(each.latency, serial.latency) > 0
        and _ratio(each.pipelined, serial.pipelined) <= 1
        and selection.ahead(each.pipelined, serial.pipelined) >= 0
    )


def _ratio(times: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(times) / statistics.median(others)
