"""The memory of a capture, searched by address."""

from __future__ import annotations

import bisect

from pygraph.capture.device import Segment


class SegmentIndex:
    """Finds the segment of a capture that an address lies in."""

    def __init__(self, segments: list[Segment]) -> None:
        self._order = sorted(range(len(segments)), key=lambda i: segments[i].address)
        self._starts = [segments[i].address for i in self._order]
        self._segments = segments

    def find(self, address: int) -> int | None:
        """The segment's place in the list, or None."""
        position = bisect.bisect_right(self._starts, address) - 1
        if position < 0:
            return None
        index = self._order[position]
        segment = self._segments[index]
        return index if address < segment.address + segment.bytes else None
