"""Whether a graph is used that was proven: what the caller's own calls say of it.

Both ways to serve calls, the graph and the callable as it is, have been clocked on pairs of calls
(src/selection/contest.h), with three clocks. What the caller pays is the longer of two of them. The
*period*, from one call to the next, is all there is to pay for who waits for each result, and for
who is always behind the device; the *device's* time is, for who is always ahead of it: then it is
from the end of one call to the end of the next, and so has what the device needs between launches.
Which it is need not be known: the host's periods are short while the device is behind, and the
other way round.

What the caller does between two calls is in the period, too, and may drown the difference. Then the
*host's* time of the call alone and the device's say which is better, if neither is against it; and
in the end the device's.

A clock speaks if the sign test says so: were both ways equal, each would be the faster one in half
of the pairs. So nothing has to be known of how times are distributed, and single slow calls do not
count more than others. No clock that speaks: the graph stays, which leaves the host more time.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

Select = Literal["measure", "model", "always", "never"]
Question = Literal["callable", "copies", "past", "early", "lanes"]
"""Whether the graph serves or the callable; whether arguments are patched or copied; whether calls
go past the guards or launch the graph before them; whether that is done before or behind them;
whether nodes run side by side (decide/lanes.py)."""
ClockName = Literal["caller", "host", "device"]

#: How seldom both ways are taken for different that are not, at one look. There are six, and what
#: is decided stays: so wrongly in one of a hundred contests, where little depends on it.
SIGNIFICANCE = 0.002
#: A graph that was this many times as fast when it was proven, by this much at least, needs no
#: trial. Below, the callable's one run may have been a slow one; and trying it costs little.
WON_BY = 2.0
WON_BY_S = 1e-3


class Clocked(NamedTuple):
    """One call, in us; NaN where a clock has not run."""

    host: float
    device: float
    period: float
    idle: bool  #: the stream had nothing to do when it came

    @property
    def caller(self) -> float:
        """What the caller pays for it."""
        return self.period if math.isnan(self.device) else max(self.period, self.device)


ClockedPair = tuple[Clocked, Clocked]
"""With the graph, and without."""
CLOCKS: tuple[ClockName, ...] = ("caller", "device", "host")
"""In the order in which they are asked."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """Who serves the calls of one program."""

    graph: bool
    clock: ClockName | None  #: the one that was asked; None: none spoke
    pairs: int
    with_us: dict[str, float]  #: medians by clock, of those that ran
    without_us: dict[str, float]
    idle: bool | None  #: whether the device must go on to be idle when calls come; None: either way


def judge(
    pairs: Sequence[ClockedPair], over: bool, question: Question = "callable"
) -> Decision | None:
    """What these pairs say; None: not enough yet. `over`: there will be no more. Of what happens in
    front of a launch the caller's clock alone is asked: of an idle device its own begins with the
    launch, behind what that has cost the host."""
    asked_of = CLOCKS[:1] if question in ("past", "early") else CLOCKS
    speaks = {clock: _better(pairs, clock) if clock in asked_of else 0 for clock in CLOCKS}
    asked = next((clock for clock in CLOCKS if speaks[clock]), None)
    agreed = len({voice for voice in speaks.values() if voice}) == 1
    if speaks["caller"] or (agreed and speaks["host"] == speaks["device"]) or over:
        idle = sum(each.idle for pair in pairs for each in pair) > len(pairs)
        return _decision(pairs, asked, speaks, None if agreed else idle)
    return None


def _decision(
    pairs: Sequence[ClockedPair],
    clock: ClockName | None,
    speaks: dict[ClockName, int],
    idle: bool | None,
) -> Decision:
    return Decision(
        graph=clock is None or speaks[clock] > 0,
        clock=clock,
        pairs=len(pairs),
        with_us=_medians(pairs, 0),
        without_us=_medians(pairs, 1),
        idle=idle,
    )


def _medians(pairs: Sequence[ClockedPair], which: int) -> dict[str, float]:
    values = {
        clock: [getattr(pair[which], clock) for pair in pairs if _ran(pair, clock)]
        for clock in CLOCKS
    }
    return {clock: statistics.median(seen) for clock, seen in values.items() if seen}


def _ran(pair: ClockedPair, clock: ClockName) -> bool:
    return not any(math.isnan(getattr(each, clock)) for each in pair)


def _better(pairs: Sequence[ClockedPair], clock: ClockName) -> int:
    """1: the graph by this clock; -1: the callable; 0: it cannot be told."""
    seen = [(getattr(a, clock), getattr(b, clock)) for a, b in pairs if _ran((a, b), clock)]
    return ahead([one for one, _ in seen], [other for _, other in seen])


def ahead(times: Sequence[float], others: Sequence[float]) -> int:
    """1: the first of two ways, that took so long in pairs; -1: the second; 0: it cannot be
    told."""
    seen = list(zip(times, others, strict=True))
    first = sum(one < other for one, other in seen)
    second = sum(one > other for one, other in seen)
    if _chance(min(first, second), first + second) >= SIGNIFICANCE:
        return 0
    return 1 if first > second else -1


def _chance(least: int, of: int) -> float:
    """That one of two equal ways is ahead in `least` or fewer of so many pairs."""
    if not of:
        return 1.0
    return float(min(2 * sum(math.comb(of, k) for k in range(least + 1)) / 2**of, 1.0))


def won_when_proven(callable_s: float, graph_s: float) -> bool:
    """Whether the proof's own runs, until the device was idle, say enough for the graph."""
    return callable_s > WON_BY * graph_s and callable_s - graph_s > WON_BY_S
