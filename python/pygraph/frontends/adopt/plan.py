"""What becomes of the tensors and of the memory of two captures of the same work."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pygraph.capturing.device import CaptureFailed, Device
from pygraph.capturing.segments import SegmentIndex
from pygraph.frontends.adopt.not_movable import NotMovable
from pygraph.frontends.adopt.pairs import Pair, require_alone
from pygraph.frontends.adopt.ranges import AddressRanges, Range
from pygraph.frontends.adopt.words import Memory


@dataclasses.dataclass(frozen=True)
class AdoptionPlan:
    """What becomes of the tensors and of the memory of two captures."""

    device: Device
    first: Any
    inputs: list[Pair]
    outputs: list[Pair]
    relocated: list[Pair]  #: outputs that a call has in new memory
    staying: list[Pair]  #: outputs that are in memory of the first graph
    static_outputs: bool
    pools: tuple[AddressRanges, AddressRanges]
    allocations: tuple[Memory, Memory]

    @classmethod
    def of(
        cls,
        device: Device,
        first: Any,
        second: Any,
        inputs: list[Pair],
        outputs: list[Pair],
        static_outputs: bool,
    ) -> AdoptionPlan:
        """Raises NotMovable for tensors that cannot be told apart."""
        pools = _pool(device, first), _pool(device, second)
        for pair in inputs:
            _require_outside(pair, pools)
        relocated: list[Pair] = []
        staying: list[Pair] = []
        for pair in outputs:
            if pair.bytes and not any(map(pair.same_as, inputs)):
                alone = pair.moves and pair.whole and not _in_a_pool(pair, pools)
                (relocated if alone and not static_outputs else staying).append(pair)
        # An output that stays is no region, but must not be an input's memory either.
        require_alone([*inputs, *relocated])
        known = AddressRanges(place for pair in (*inputs, *relocated) for place in pair.ranges)
        for pair in staying:
            if any(known.overlap(*place) for place in pair.ranges):
                raise NotMovable(
                    pair.name,
                    "that it shares memory with an input or another output",
                    "an output that is an input itself, or shares no memory with one",
                )
        return cls(
            device=device,
            first=first,
            inputs=inputs,
            outputs=outputs,
            relocated=relocated,
            staying=staying,
            static_outputs=static_outputs,
            pools=pools,
            allocations=(device.allocations(first), device.allocations(second)),
        )

    @property
    def regions(self) -> list[Pair]:
        """What is relocated, in the engine's order."""
        return [pair for pair in (*self.inputs, *self.relocated) if pair.bytes]

    @property
    def own(self) -> AddressRanges:
        """Memory of the first graph that calls use as it is."""
        return AddressRanges([*self.pools[0].ranges, *(pair.ranges[0] for pair in self.staying)])

    def surroundings(self, foreign: Sequence[tuple[int, int]]) -> list[Range]:
        """Allocations that the graph may write besides. `foreign`: its words that are addresses of
        other device memory. On the twin, whose tensors are the host's, that is not told."""
        named = [pair.ranges[0] for pair in (*self.inputs, *self.outputs)]
        own = AddressRanges([*self.pools[0].ranges, *named])
        index = SegmentIndex(self.allocations[0])
        # A word of what begins where a named tensor ends is none of the foreign ones.
        addresses = {*(address for address, _ in foreign), *(end for _, end in named)}
        met = set(map(index.find, addresses))
        return [
            piece
            for number, (start, size) in enumerate(self.allocations[0])
            if self.device.twin or number in met
            for piece in own.without(start, start + size)
        ]


def _pool(device: Device, graph: Any) -> AddressRanges:
    try:
        return AddressRanges((start, start + size) for start, size in device.held_by(graph))
    except CaptureFailed as error:
        raise NotMovable("the private pool", str(error), "torch's native allocator") from error


def _in_a_pool(pair: Pair, pools: tuple[AddressRanges, AddressRanges]) -> bool:
    return any(pool.overlap(*place) for pool in pools for place in pair.ranges)


def _require_outside(pair: Pair, pools: tuple[AddressRanges, AddressRanges]) -> None:
    """What is in a graph's pool may have been other scratch of it in turn."""
    if pair.bytes and _in_a_pool(pair, pools):
        raise NotMovable(
            pair.name,
            "a tensor in the private pool of one of the graphs, where scratch may share its "
            "addresses",
            "a static tensor that was allocated before the captures, and outside of them",
        )
