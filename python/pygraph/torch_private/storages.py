"""Storages whose memory changes while they stay the same: `UntypedStorage.resize_`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

#: What is called in place of a resize: with the original, the storage, and its new bytes.
Seen = Callable[[Callable[[Any, int], Any], Any, int], Any]

_replacing = threading.RLock()


@contextlib.contextmanager
def resizes_seen(see: Seen) -> Iterator[None]:
    """While on, `see` is called in place of each resize of a storage by this thread, and returns
    what that returns. Another thread that begins the same waits."""
    owner = threading.get_ident()

    def resize(storage: Any, size: int) -> Any:
        if threading.get_ident() != owner:
            return original(storage, size)
        return see(original, storage, size)

    with _replacing:
        original: Callable[[Any, int], Any] = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = resize
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = original
