"""Ranges of addresses."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

#: Where it starts, and where it ends.
Range = tuple[int, int]


class AddressRanges:
    """Ranges, in any order and overlapping or not, asked for what lies in them."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(ranges):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            elif start < end:
                self._starts.append(start)
                self._ends.append(end)

    @property
    def ranges(self) -> list[Range]:
        """What they cover, in order."""
        return list(zip(self._starts, self._ends, strict=True))

    def overlap(self, start: int, end: int) -> bool:
        """Whether any byte from `start` to `end` is in one of them."""
        before = bisect.bisect_left(self._starts, end) - 1
        return start < end and before >= 0 and self._ends[before] > start

    def __contains__(self, address: int) -> bool:
        return self.overlap(address, address + 1)

    def without(self, start: int, end: int) -> list[Range]:
        """What of the range from `start` to `end` is in none of them."""
        left: list[Range] = []
        for low, high in self.ranges:
            if low >= end:
                break
            if high > start:
                if low > start:
                    left.append((start, low))
                start = high
        return [*left, (start, end)] if start < end else left
