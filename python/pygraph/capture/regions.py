"""What each region of a graph is: an argument, an output, or scratch.

The ranges that a capture's memory consists of are *cells*: what torch's allocator took as one
segment, which moves as a whole and only as a whole, whichever buffers lived in it in turn. That is
sound whatever happened inside; how outputs leave their cells is decided in outputs.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pygraph import _engine
from pygraph.capture import generators, outputs, tensors
from pygraph.capture.device import NEVER
from pygraph.capture.record import Capture
from pygraph.capture.request import Request

#: (address in A, address in B, bytes, role, used bytes), as the engine takes it.
Region = tuple[int, int, int, Any, int]


@dataclasses.dataclass(frozen=True)
class Regions:
    """All regions of two captures, in the engine's order."""

    places: Sequence[Region]
    of_argument: Mapping[int, int]
    of_segment: Mapping[int, int]
    of_generator: Mapping[int, Sequence[int]]  #: by source: seed, then offset (generators.py)
    spent: frozenset[int]  #: arguments whose memory a call may give up early
    #: when each was allocated and freed while A was captured; those of segments are known
    times: Sequence[tuple[int, int]]

    def copies(self, planned: outputs.Outputs) -> list[tuple[int, int, int, bool]]:
        """The copies of outputs out of scratch, as the engine takes them."""
        return [
            (self.of_segment[each.segment], each.offset, each.bytes, True)
            for each in planned.copies
        ]

    def blocks(self, planned: outputs.Outputs, first_copy: int) -> list[_engine.OutputBlock]:
        """The blocks of outputs with the regions that stand in them. `first_copy`: the region that
        the first copy is made into."""
        made = []
        for block in planned.blocks:
            made.append(_engine.OutputBlock())
            made[-1].bytes, made[-1].source = block.bytes, block.source
        for segment, number in planned.direct.items():
            made[number].place(self.of_segment[segment], 0)
        for number, copy in enumerate(planned.copies):
            made[copy.block].place(first_copy + number, 0)
        return made


def name_regions(a: Capture, b: Capture, request: Request, planned: outputs.Outputs) -> Regions:
    """The regions of capture `a` and probe `b`: arguments, then segments, then the states of
    generators."""
    places: list[Region] = []
    of_argument: dict[int, int] = {}
    of_segment: dict[int, int] = {}
    spent = _spent(request, planned)
    for index, (in_a, in_b) in enumerate(zip(a.places, b.places, strict=True)):
        if in_a:
            of_argument[index] = len(places)
            nbytes = tensors.extent_bytes(request.arguments[index])
            role = _engine.RegionRole.SPENT if index in spent else _engine.RegionRole.OWN
            places.append((in_a, in_b, nbytes, role, nbytes if index in spent else 0))
    for index, (left, right) in enumerate(zip(a.segments, b.segments, strict=True)):
        role, used = _engine.RegionRole.SCRATCH, max(left.used, right.used)
        of_segment[index] = len(places)
        if index in planned.direct:
            role, used = _engine.RegionRole.FRESH, planned.blocks[planned.direct[index]].bytes
        places.append((left.address, right.address, left.bytes, role, used))
    of_generator = generators.add_regions(places, a, b)
    times = [(0, NEVER)] * len(places)
    for index, segment in enumerate(a.segments):
        times[of_segment[index]] = segment.allocated, segment.freed
    return Regions(
        places=places,
        of_argument=of_argument,
        of_segment=of_segment,
        of_generator=of_generator,
        spent=spent,
        times=times,
    )


def _spent(request: Request, planned: outputs.Outputs) -> frozenset[int]:
    """The arguments whose memory the call may give up early: those that the caller gives away with
    the call, that are worth it, and that no result is made from."""
    kinds = (_engine.ResultKind.ARGUMENT, _engine.ResultKind.ALIAS)
    returned = {result.index for result in planned.results if result.kind in kinds}
    return frozenset(
        index
        for index in request.given
        if index in request.changing
        and index not in returned
        and request.device.owns(request.arguments[index])
        and tensors.extent_bytes(request.arguments[index]) >= request.device.smallest_loan
    )
