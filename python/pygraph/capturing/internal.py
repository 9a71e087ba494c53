"""What operators allocate inside themselves and free again, such as a convolution's workspace.

Torch's allocator would hand a workspace on to the next operator that asks for one, and the cell
(regions.py) that several of them share lives from the first to the last: nothing else could stand
there in between, which a layout of the uncaptured callable's buffers would allow. So what an
operator has left behind free is taken from the capture's pool at once, and held like the buffers
that the callable itself makes (hold.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pygraph import _engine

#: torch's allocator (c10/core/AllocatorConfig.h): allocations of up to 1 MiB come from segments of
#: 2 MiB.
_SMALL_SEGMENT = 2 << 20
_SMALL = 1 << 20


class Internal:
    """Of one capture, with pools over `phantom` in which every allocation has a segment of its own;
    what comes from another pool is left alone. `streams`: the one that is captured on each device,
    by torch's index. Used by the capturing thread alone."""

    def __init__(self, phantom: _engine.PhantomSpace, streams: Mapping[int, int]) -> None:
        self._phantom = phantom
        self._streams = streams
        self._before = 0
        self.places: list[int] = []  #: where what is held stands

    def enter(self) -> None:
        """An operator begins."""
        self._before = self._phantom.allocated

    def leave(self, results: list[torch.Tensor]) -> None:
        """It has ended, with these results."""
        segments = self._phantom.allocations_from(self._before)
        if not segments:
            return
        returned = {tensor.untyped_storage().data_ptr() for tensor in results}
        for address, size, device in segments:
            if address not in returned:
                self._take(address, size, device)

    def _take(self, address: int, size: int, device: int) -> None:
        """Past torch.empty, which fills what it makes where algorithms must be deterministic."""
        asked = _SMALL if size <= _SMALL_SEGMENT else size
        found = torch.cuda.caching_allocator_alloc(asked, device, self._streams[device])
        if found == address:
            self.places.append(found)
        else:  # the operator still holds it
            torch.cuda.caching_allocator_delete(found)

    def release(self) -> None:
        """Lets go of all of it, at the end of the capture."""
        while self.places:
            torch.cuda.caching_allocator_delete(self.places.pop())
