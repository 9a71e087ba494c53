"""What each region of a graph is: an argument, an output, or scratch.

The ranges that a capture's memory consists of are *cells*: what torch's allocator took as one
segment, which moves as a whole and only as a whole, whichever buffers lived in it in turn. That is
sound whatever happened inside; how outputs leave their cells is decided in outputs.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from pygraph import _engine
from pygraph.capturing import generators, outputs, tensors
from pygraph.capturing.record import Capture
from pygraph.capturing.request import Request


@dataclasses.dataclass(frozen=True)
class Regions:
    """All regions of two captures, in the engine's order."""

    places: Sequence[_engine.Region]
    of_argument: Mapping[int, int]
    of_segment: Mapping[int, int]
    of_generator: Mapping[int, Sequence[int]]  #: by source: seed, then offset (generators.py)
    spent: frozenset[int]  #: arguments whose memory a call may give up early

    def copies(self, planned: outputs.Outputs) -> list[_engine.Copy]:
        """The copies of outputs out of scratch."""
        return [
            _engine.Copy(
                region=self.of_segment[each.segment],
                offset=each.offset,
                bytes=each.bytes,
                fresh=True,
            )
            for each in planned.copies
        ]

    def blocks(self, planned: outputs.Outputs, first_copy: int) -> list[_engine.OutputBlock]:
        """The blocks of outputs with the regions that stand in them. `first_copy`: the region that
        the first copy is made into."""
        standing: list[list[int]] = [[] for _ in planned.blocks]
        for segment, number in planned.direct.items():
            standing[number].append(self.of_segment[segment])
        for number, copy in enumerate(planned.copies):
            standing[copy.block].append(first_copy + number)
        return [
            _engine.OutputBlock(
                bytes=block.bytes,
                source=block.source,
                regions=regions,
                device=block.device,
            )
            for block, regions in zip(planned.blocks, standing, strict=True)
        ]


def name_regions(a: Capture, b: Capture, request: Request, planned: outputs.Outputs) -> Regions:
    """The regions of capture `a` and probe `b`: arguments, then segments, then the states of
    generators."""
    places: list[_engine.Region] = []
    of_argument: dict[int, int] = {}
    of_segment: dict[int, int] = {}
    of_generator: dict[int, Sequence[int]] = {}
    role, spent = _engine.RegionRole, _spent(request, planned)
    for index, (in_a, in_b) in enumerate(zip(a.places, b.places, strict=True)):
        if in_a:
            nbytes, given_up = tensors.extent_bytes(request.arguments[index]), index in spent
            of_argument[index] = len(places)
            places.append(
                _engine.Region(
                    in_a=in_a,
                    in_b=in_b,
                    bytes=nbytes,
                    role=role.SPENT if given_up else role.OWN,
                    used=nbytes if given_up and index not in request.held else 0,
                    device=request.device.number_of(request.arguments[index].device.index),
                )
            )
    for index, (left, right) in enumerate(zip(a.segments, b.segments, strict=True)):
        block = planned.direct.get(index)
        of_segment[index] = len(places)
        places.append(
            _engine.Region(
                in_a=left.address,
                in_b=right.address,
                bytes=left.bytes,
                role=role.SCRATCH if block is None else role.FRESH,
                used=max(left.used, right.used) if block is None else planned.blocks[block].bytes,
                allocated=left.allocated,
                freed=left.freed,
                device=left.device,
            )
        )
    for source, states in generators.regions(a, b).items():
        of_generator[source] = range(len(places), len(places) + len(states))
        places += states
    return Regions(
        places=places,
        of_argument=of_argument,
        of_segment=of_segment,
        of_generator=of_generator,
        spent=spent,
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
