"""Storages that get memory while a graph is recorded, and lose it again: FSDP2 gives its gathered
weights memory for as long as a block needs it.

The storage really is resized, so that it and its tensors say the same as ever; the graph has a
buffer in its own memory for each time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pygraph.torch_private.storages import resizes_seen
from pygraph.torch_private.tensors import object_of


class _Buffers(threading.local):
    """Of the graph that this thread records."""

    def __init__(self) -> None:
        #: By storage, as object_of(): where it stands, and where the graph has it.
        self.places: dict[int, tuple[int, int]] = {}


_buffers = _Buffers()


def address_of(tensor: torch.Tensor) -> int:
    """Where the graph that this thread records has a tensor."""
    address: int = tensor.data_ptr()
    if _buffers.places and (found := _buffers.places.get(object_of(tensor.untyped_storage()))):
        start, place = found
        return address - start + place
    return address


@contextlib.contextmanager
def followed(allocate: Callable[[int], int]) -> Iterator[None]:
    """While on, storages that this thread gives memory have a buffer of the graph. `allocate` makes
    one of so many bytes, and returns its address."""

    def see(original: Callable[[Any, int], Any], storage: Any, size: int) -> Any:
        result = original(storage, size)
        _buffers.places.pop(object_of(storage), None)
        if size:
            _buffers.places[object_of(storage)] = storage.data_ptr(), allocate(size)
        return result

    try:
        with resizes_seen(see):
            yield
    finally:
        _buffers.places.clear()
