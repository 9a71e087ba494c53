"""Foreign words: addresses of device memory in a graph that are nobody's region.

A constant that the callable holds, a table that a library made once. They are the same in every
capture and are left as they are. Two things follow. What they point to must live as long as the
graph: tensors of the callable are found and kept. And memory that nobody can explain may hold
pointers of its own, say to weights: while such words are there, constants must stay where they were
linked, since nothing would tell that memory of a move.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pygraph.capture.holdings import Holdings


def explain(holdings: Holdings, words: Sequence[int]) -> tuple[list[torch.Tensor], list[int]]:
    """The constants that some of `words` point into, and the words that point into none."""
    if not words:
        return [], []
    owned: list[torch.Tensor] = []
    unknown = set(words)
    for tensor in holdings.constants():
        storage = tensor.untyped_storage()
        start, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        inside = {word for word in unknown if start <= word <= end and start}
        if inside:
            owned.append(tensor)
            unknown -= inside
    return owned, sorted(unknown)
