"""Into how many lanes the nodes of a graph may be spread, and who says which number is best."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True)
class LaneTimes:
    """What a program with so many lanes has taken, in us, in each of some rounds."""

    lanes: int  #: 1: the order of the capture
    latency: Sequence[float]  #: from an idle device until it is idle again
    pipelined: Sequence[float]  #: of each run of some that followed one another


Choose = Callable[[Sequence[LaneTimes]], int]
"""Which program is to serve, by its place; the first has the order of the capture."""


@dataclasses.dataclass(frozen=True)
class LaneOptions:
    """What is tried."""

    numbers: Sequence[int] = ()  #: ascending; none: nothing
    choose: Choose | None = None  #: None: nothing is clocked, and the most lanes serve
    memory: float = 1.05  #: how many times the arena of the order of the capture they may take


NO_LANES = LaneOptions()
