"""The time that linking may take: a 200th of all, and half of what replays have saved.

That is the most that a stream of many sizes spends on links in the long run. Alone it would take a
server with 300 lengths half an hour to come to its programs: a tenth of a second is long beside
what a replay saves, and short beside the minutes in which it saves that again and again. So where
replays save much, links are lent LENT seconds, which are theirs again as soon as that has paid for
them, and take no more than a part of the time while these last (PACE).

So a stream of sizes is never slower for links by more than LENT seconds in all and a 200th of the
time; at no time by more than a third; and where replays do not save much, by a 200th alone.
"""

from __future__ import annotations

import time

#: Times what links took that must pass before the next.
PATIENCE = 200.0
#: The share of what replays save that links may take besides.
REINVESTED = 0.5
#: Seconds that links may take before anything has paid for them, where replays save much.
LENT = 10.0
#: Times what a link took that must pass before the next, even so.
PACE = 3.0


class Budget:
    """The time that linking may take: a small part of all, and of what was saved."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._until = 0.0  #: all links are paid for then
        self._paced = 0.0  #: what is lent may be used then
        self.link = 0.0  #: seconds that the last one took

    def spend(self, seconds: float, on_top: bool) -> None:
        """A link that took so long has just ended. Those who wait for it wait PATIENCE times as
        long; `on_top`: behind what they wait for already."""
        now, self.link = time.monotonic(), seconds
        if on_top:
            self._until = max(self._until, now) + PATIENCE * seconds
        else:
            self._until = max(self._until, now + PATIENCE * seconds)
        self._paced = max(self._paced, now) + PACE * seconds

    def earn(self, seconds: float) -> None:
        """Replays have taken so much less than the callables would have."""
        self._until -= PATIENCE * REINVESTED * seconds
        self._paced -= PACE * REINVESTED * seconds

    def seconds_to_wait(self, lent: bool = False) -> float:
        """`lent`: for a graph whose replays save much."""
        until = max(self._until - PATIENCE * LENT, self._paced) if lent else self._until
        return max(min(until, self._until) - time.monotonic(), 0.0)


#: Of all graphs: each may have many sizes, and a forward has a backward.
BUDGET = Budget()
