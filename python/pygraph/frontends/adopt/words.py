"""What each word of two captures is that no relocation explains, and each relocation that may be
something else.

A word that nobody changes keeps the value that the first capture has: it says what a replay of the
first graph would. That is right for its private pool, and for what both captures share. It is wrong
for a tensor that was to be named and was not, so each word that differs must have a reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from pygraph import _engine
from pygraph.capturing.segments import SegmentIndex
from pygraph.frontends.adopt.not_movable import NotMovable
from pygraph.frontends.adopt.pairs import Pair
from pygraph.frontends.adopt.ranges import AddressRanges
from pygraph.operators import collectives

#: (address, bytes)
Memory = Sequence[tuple[int, int]]


class Allocations:
    """Where torch's allocator has put the tensors of both captures."""

    def __init__(self, first: Memory, second: Memory) -> None:
        self._first, self._second = first, second
        self._in_first, self._in_second = SegmentIndex(first), SegmentIndex(second)

    def counterparts(self, in_first: int, in_second: int) -> bool:
        """Whether two addresses are the same place of different tensors that are alike."""
        left, right = self._in_first.find(in_first), self._in_second.find(in_second)
        if left is None or right is None:
            return False
        (start, nbytes), (there, other) = self._first[left], self._second[right]
        return start != there and nbytes == other and in_first - start == in_second - there


def require_alone(linked: _engine.Linked) -> None:
    """Raises NotMovable where the graphs have collectives: a proof runs them more often than other
    ranks do."""
    kernel = collectives.kernel_among(map(linked.node_name, range(linked.nodes)))
    if kernel is not None:
        raise NotMovable("the graphs", f"{kernel}, a collective", "work of this process alone")


def require_same_work(linked: _engine.Linked) -> None:
    """Raises NotMovable where the two graphs differ in more than words."""
    problems = linked.problems
    if problems:
        node = linked.problem_node
        kernel = "" if node is None else f" ({linked.node_name(node)})"
        raise NotMovable(
            "the second graph",
            f"other work than in the first one ('capture A'), in {len(problems)} places; the "
            f"first: {problems[0]}{kernel}",
            "two captures of the same work, by the same code, with tensors of the same sizes",
        )


def require_told_apart(linked: _engine.Linked, pairs: Sequence[Pair], alignment: int) -> None:
    """Raises NotMovable for a pair that no node mentions, and for a word behind the end of one,
    where memory of others may begin. `pairs` are the regions, in their order."""
    mentioned = set()
    for node, offset, region, addend in linked.relocated_words:
        if region >= len(pairs):
            continue
        mentioned.add(region)
        pair = pairs[region]
        if addend >= pair.bytes and not _ends_alone(pair, alignment):
            raise NotMovable(
                f"node {node} ({linked.node_name(node)}), byte {offset} of its parameters",
                f"the address right behind {pair.name}, where another tensor may begin",
                "tensors that fill their allocations, or that nothing stands behind",
            )
    for region, pair in enumerate(pairs):
        if region not in mentioned:
            raise NotMovable(
                pair.name,
                f"no node that has its address ({pair.first.data_ptr():#x} in the first graph)",
                "the very tensor that the graph reads or writes, and none that it does not use",
            )


def _ends_alone(pair: Pair, alignment: int) -> bool:
    """Whether nothing else can begin at its end: its storage ends there, and the allocator begins
    others at multiples of `alignment`."""
    return all(
        tensor.data_ptr() + pair.bytes == storage.data_ptr() + storage.nbytes()
        and (tensor.data_ptr() + pair.bytes) % alignment != 0
        for tensor in (pair.first, pair.second)
        for storage in (tensor.untyped_storage(),)
    )


def require_explained(
    linked: _engine.Linked,
    pools: tuple[AddressRanges, AddressRanges],
    staying: Sequence[Pair],
    allocations: Allocations,
) -> int:
    """How many words keep an address of the first graph's own memory: of its pool, or of the
    outputs `staying`. Raises NotMovable for a word that differs and that is neither that nor
    padding."""
    kept = 0
    for node, offset, in_first, in_second, certain in linked.noise_words:
        if (in_first in pools[0] and in_second in pools[1]) or any(
            pair.holds(in_first, in_second) for pair in staying
        ):
            kept += 1
        elif certain or allocations.counterparts(in_first, in_second):
            raise NotMovable(
                f"node {node} ({linked.node_name(node)}), byte {offset} of its parameters",
                f"{in_first:#x} in the first graph and {in_second:#x} in the second, which no "
                "input, no output and no private pool explains",
                "all static tensors that the captures do not share named as inputs or outputs, "
                "numbers that are the same in both, and both captures made on one stream",
            )
    return kept
