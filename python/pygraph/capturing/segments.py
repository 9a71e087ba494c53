"""The memory of a capture, searched by address."""

from __future__ import annotations

import bisect
from collections.abc import Iterable


class SegmentIndex:
    """Finds the segment that an address lies in. Segments are (address, bytes), and do not
    overlap; one of 0 bytes is never found."""

    def __init__(self, segments: Iterable[tuple[int, int]]) -> None:
        self._segments = sorted(
            (address, address + nbytes, index)
            for index, (address, nbytes) in enumerate(segments)
            if nbytes
        )
        self._starts = [start for start, _, _ in self._segments]

    def find(self, address: int) -> int | None:
        """The segment's place in the list, or None."""
        position = bisect.bisect_right(self._starts, address) - 1
        if position < 0:
            return None
        _, end, index = self._segments[position]
        return index if address < end else None
