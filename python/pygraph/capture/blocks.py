"""Results that die together share memory: fewer allocations in front of a launch.

A block costs a call about 1 us, and a large model's forward saves hundreds of tensors. What a
backward gives up behind the same part of its graph (include/pygraph/link.h) may as well be one
block, and so may the gradients that it takes in front of the same part.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from pygraph import _engine

#: A block of several results is no larger: in memory that is nearly full, more in one piece may be
#: hard to find, and somebody who keeps one of the results keeps the block.
_MOST_BYTES = 128 << 20


def merge(call: _engine.GraphCall, parts: Mapping[int, Hashable]) -> None:
    """Gives results of one part common blocks. `parts`: the part of each result that may share its
    block; a block that holds other results too stays what it is."""
    bytes_of = [nbytes for nbytes, _ in call.blocks]
    part_of: dict[int, set[Hashable]] = {}
    for result, block in enumerate(call.block_of_result):
        if block >= 0:
            part_of.setdefault(block, set()).add(parts.get(result))
    groups: list[list[int]] = []
    filling: dict[Hashable, tuple[list[int], int]] = {}
    for block in sorted(part_of):
        members = part_of[block]
        part = next(iter(members)) if len(members) == 1 else None
        if part is None:
            continue
        group, filled = filling.get(part, ([], _MOST_BYTES))
        if filled + bytes_of[block] > _MOST_BYTES:
            group, filled = [], 0
            groups.append(group)
        group.append(block)
        filling[part] = group, filled + bytes_of[block]
    call.merge_blocks([group for group in groups if len(group) > 1])


def merge_by_first_use(call: _engine.GraphCall, together: frozenset[int]) -> None:
    """The results of `together` whose memory is taken in front of the same part share it."""
    first = [part for _, part in call.blocks]
    merge(
        call,
        {
            result: first[block]
            for result, block in enumerate(call.block_of_result)
            if block >= 0 and result in together
        },
    )
