"""The time that linking may take: a 200th of all, and half of what replays have saved.

That is the most that a stream of many sizes spends on links, so it is never slower for them by more
than that, and comes to its programs ever faster.
"""

from __future__ import annotations

import time

#: Times what links took that must pass before the next.
PATIENCE = 200.0
#: The share of what replays save that links may take besides.
REINVESTED = 0.5


class Budget:
    """The time that linking may take: a small part of all, and of what was saved."""

    def __init__(self) -> None:
        self._until = 0.0

    def spend(self, seconds: float, on_top: bool) -> None:
        """A link that took so long has just ended. Those who wait for it wait PATIENCE times as
        long; `on_top`: behind what they wait for already."""
        now = time.monotonic()
        if on_top:
            self._until = max(self._until, now) + PATIENCE * seconds
        else:
            self._until = max(self._until, now + PATIENCE * seconds)

    def earn(self, seconds: float) -> None:
        """Replays have taken so much less than the callables would have."""
        self._until -= PATIENCE * REINVESTED * seconds

    def clear(self) -> None:
        self._until = 0.0

    def seconds_to_wait(self) -> float:
        return max(self._until - time.monotonic(), 0.0)


#: Of all graphs: each may have many sizes, and a forward has a backward.
BUDGET = Budget()
