"""Results that die together share memory: fewer allocations in front of a launch.

A block costs a call about 1 us, and a large model's forward saves hundreds of tensors. What is
taken in front of the same part of a graph (include/pygraph/link.h), and given up behind the same
part of the backward, may as well be one block; so may gradients.

A result that shares a block has another storage offset than the uncaptured callable's. What a
forward saves is put together only once it is known that its backward does not mind
(training_pair.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pygraph import _engine

#: A block of several results is no larger: in memory that is nearly full, more in one piece may be
#: hard to find, and somebody who keeps one of the results keeps the block.
_MOST_BYTES = 128 << 20
#: Of results that are given up at the end only, those below 1 MiB share blocks of up to so many
#: bytes: torch's allocator keeps them in segments of that size anyway.
_SMALL_BYTES = 1 << 20
_MOST_SMALL_BYTES = 2 << 20


class GivenUp(NamedTuple):
    """When a result is: behind `part` of the callable with this number; below 0: at the end."""

    number: int
    part: int


def merge(program: _engine.TensorProgram, given_up: Mapping[int, GivenUp]) -> None:
    """Gives the results of `given_up` common blocks; a block that holds other results too stays
    what it is."""
    blocks = program.blocks  # (bytes, the part that it is first needed in)
    when: dict[int, set[GivenUp | None]] = {}
    for result, block in enumerate(program.block_of_result):
        if block >= 0:
            when.setdefault(block, set()).add(given_up.get(result))
    groups: list[list[int]] = []
    filling: dict[tuple[GivenUp, int], tuple[list[int], int]] = {}
    for block in sorted(when):
        nbytes, first = blocks[block]
        end = next(iter(when[block])) if len(when[block]) == 1 else None
        if end is None or (end.part < 0 and nbytes >= _SMALL_BYTES):
            continue
        most = _MOST_BYTES if end.part >= 0 else _MOST_SMALL_BYTES
        group, filled = filling.get((end, first), ([], most))
        if filled + nbytes > most:
            group, filled = [], 0
            groups.append(group)
        group.append(block)
        filling[end, first] = group, filled + nbytes
    program.merge_blocks([group for group in groups if len(group) > 1])
