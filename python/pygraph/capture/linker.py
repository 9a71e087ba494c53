"""From two captures to a callable graph: regions, roles, specifications.

The engine compares and lays out (include/pygraph/link.h); this module says what each region is: an
argument, an output, or scratch. The ranges that a capture's memory consists of are *cells*: what
torch's allocator took as one segment, which moves as a whole and only as a whole, whichever buffers
lived in it in turn. That is sound whatever happened inside; how outputs leave their cells is
decided in outputs.py.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.capture import blocks, foreign, generators, numbers, outputs, record, space, tensors
from pygraph.capture.device import NEVER, CaptureFailed, Device, is_strided
from pygraph.capture.policy import Policy
from pygraph.capture.record import Capture
from pygraph.capture.request import Request

#: Bytes that everything in an arena takes a multiple of (include/pygraph/layout.h).
_ARENA_STEP = 512


@dataclasses.dataclass
class LinkedProgram:
    """A graph ready to be proven and called, with the figures for the report."""

    call: _engine.TensorProgram
    policy: Policy
    figures: dict[str, int]
    keep: list[Any]  #: memory that the graph addresses where it was captured
    timings_ms: dict[str, float]  #: "capture": both captures; "compare": reading to layout
    offsets_kept: str  #: why it serves only calls with the storage offsets of the linked one; or ""
    #: Words that look like phantom addresses are left; the callable may count from the start of a
    #: storage, and then a proof fails unless the offsets are kept.
    doubtful: bool


def link(request: Request, policy: Policy) -> LinkedProgram:
    """Captures the callable twice and links it under `policy`. Reads and writes none of the
    arguments' memory. Raises CaptureFailed, UnsupportedGraph or DriverError; leaves nothing behind
    then."""
    device = request.device
    _require_known(request.arguments, device)
    numbers.require_served(
        request.arguments, request.mutated, request.results, request.drew_on_host, device
    )
    in_place = _in_place(request, policy)
    device.space()  # whose memory is the device's, not this capture's
    free = device.driver_free_bytes()
    pair, offsets_kept = _best_pair(request, policy, in_place)
    taken = free - device.driver_free_bytes()
    linked, planned = pair.linked, pair.planned
    if linked.problems:
        raise CaptureFailed(
            f"two captures of the same call differ in {len(linked.problems)} places; the first: "
            f"{linked.problems[0]}"
        )
    for number, copy in enumerate(planned.copies):
        planned.blocks[copy.block].place(linked.copy_regions[0] + number, 0)
    owned, unknown = foreign.explain(request.function, linked.foreign_words)
    specs = _argument_specs(request, pair.a, in_place, pair.region_of_argument, bool(unknown))
    for index in pair.spent:
        specs[index].spent = 0
    if offsets_kept:
        for spec, argument in zip(specs, request.arguments, strict=True):
            if isinstance(argument, torch.Tensor) and spec.kind != _engine.ArgumentKind.NUMBER:
                spec.storage_offset = argument.storage_offset()
                if spec.kind == _engine.ArgumentKind.PATCHED:
                    spec.front = spec.storage_offset * argument.element_size()
    before, after = request.random_before, request.random_after
    draws = generators.draws(pair.random, before, after, device)
    passed = generators.among(request.arguments, device)
    call = _engine.TensorProgram.make(
        linked,
        device.twin,
        device.index,
        specs,
        planned.blocks,
        planned.results,
        planned.objects,
        draws,
        device.default_generator() if draws or passed else None,
    )
    unaddressed = [] if linked.strays or unknown else pair.unaddressed
    call.unwritten = sorted({*planned.standing_in(unaddressed), *pair.idle})
    blocks.merge(call, dict.fromkeys(request.gradients, blocks.GivenUp(0, 0)))
    on_host = [pair.a.inputs[index] for index in numbers.among(request.arguments, device)]
    keep: list[Any] = [*in_place.values(), *owned, *on_host]
    if device.twin:  # constants that only the capture holds; a GPU's are phantom buffers
        keep += pair.a.keep
    if policy.private_scratch:
        keep += [pair.a.pool, pair.a.keep, pair.a.outputs]
    figures = _figures(linked, pair.a, planned)
    figures |= {
        "regions": pair.regions,
        "capture_bytes": taken,
        "private_pool_bytes": space.pool_bytes(pair.a.pool) if policy.private_scratch else 0,
        "foreign_words": len(linked.foreign_words),
        "unknown_words": len(unknown),
    }
    return LinkedProgram(
        call, policy, figures, keep, pair.timings_ms, offsets_kept, bool(linked.strays)
    )


def _best_pair(
    request: Request, policy: Policy, in_place: Mapping[int, torch.Tensor]
) -> tuple[_Pair, str]:
    """Two captures, compared, and why they hold only for calls whose arguments have the storage
    offsets of this one; "" if for any. A callable that counts from the start of a storage cannot be
    captured, or not alike, with other offsets; or it shows by addresses that nobody explains, which
    are as a rule something else (padding), so that the proof decides."""
    if request.keep_offsets:
        return _Pair(request, policy, in_place, shifted=False), "with other ones a proof failed"
    try:
        pair = _Pair(request, policy, in_place, shifted=True)
    except _ProbeFailed as error:
        return _Pair(request, policy, in_place, shifted=False), str(error)
    if pair.linked.problems:
        unshifted = _Pair(request, policy, in_place, shifted=False)
        if len(unshifted.linked.problems) < len(pair.linked.problems):
            return unshifted, str(pair.linked.problems[0])
    return pair, ""


class _ProbeFailed(CaptureFailed):
    """It was captured, but not a second time, or not alike, with other storage offsets."""


class _Pair:
    """Capture A, probe B, and what comparing them gave. `shifted`: arguments have other storage
    offsets in B."""

    def __init__(
        self,
        request: Request,
        policy: Policy,
        in_place: Mapping[int, torch.Tensor],
        shifted: bool,
    ) -> None:
        arguments, device = request.arguments, request.device

        def capture(placement: _engine.Placement) -> Capture:
            return record.record(
                request.function,
                arguments,
                in_place,
                policy.private_scratch,
                placement,
                device,
                shifted,
                request.draws,
                request.alignments,
            )

        started = time.perf_counter()
        draws = request.drew_on_host and not device.twin  # whose generator is the host's
        with record.generator_kept_on_failure(draws):
            self.a = capture(_engine.Placement.A)
            try:
                b = capture(_engine.Placement.B)
                captured = time.perf_counter()
                record.require_alike(self.a, b)
            except CaptureFailed as error:
                if not shifted:
                    raise
                raise _ProbeFailed(str(error), error.operator, error.source) from error
            if draws and self.a.drew_on_host and b.drew_on_host:  # else another thread drew
                raise CaptureFailed(
                    "it draws random numbers on the host, which a graph does not do"
                )
        self.planned = outputs.plan(self.a, b, request.results, device, policy.private_scratch)
        self.spent = _spent(request, self.planned)
        regions, self.region_of_argument, of_segment = _regions(
            self.a, b, arguments, self.planned, self.spent
        )
        self.random = generators.add_regions(regions, self.a, b)
        self.regions = len(regions)
        phantom = device.space()
        self.linked = _engine.link(
            self.a.graph.handle,
            b.graph.handle,
            regions,
            phantom.base,
            phantom.base + phantom.reserved_bytes,
            copies=[(of_segment[c.segment], c.offset, c.bytes, True) for c in self.planned.copies],
            operators=self.a.operators,
            share_scratch=not policy.scratch_apart,
            arena_in_pieces=request.arena_in_pieces,
            smallest_loan=device.smallest_loan,
            times=_times(self.a, of_segment, len(regions)),
            **({"peak_slack": device.peak_slack()} if request.cut else {}),
            twin=device.twin,
        )
        #: Segments that no node has an address of, allocated for one thing each: what is there
        #: stays what it was, captured or not.
        self.unaddressed = [
            segment
            for segment in (self.planned.direct if not self.linked.problems else ())
            if self.a.segments[segment].buffers == 1
            and not self.linked.mentions[of_segment[segment]]
        ]
        self.idle = [
            position
            for position, output in enumerate(self.a.outputs)
            if is_strided(output) and output.numel() and output.data_ptr() in self.a.idle
        ]
        compared = time.perf_counter()
        self.timings_ms = {
            "capture": 1e3 * (captured - started),
            "compare": 1e3 * (compared - captured),
        }


def _in_place(request: Request, policy: Policy) -> dict[int, torch.Tensor]:
    """What stands in for the arguments that `policy` does not relocate: a static buffer for one
    that is copied, the argument itself for one that is fixed."""
    stand_ins: dict[int, torch.Tensor] = {}
    for index, argument in enumerate(request.arguments):
        if not isinstance(argument, torch.Tensor) or not argument.numel():
            continue
        if index in request.changing:
            if policy.copy_inputs:
                stand_ins[index] = tensors.static_copy(argument)
        elif policy.fix_constants:
            stand_ins[index] = argument
    return stand_ins


RegionTuple = tuple[int, int, int, Any, int]


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


def _regions(
    a: Capture,
    b: Capture,
    arguments: Sequence[Any],
    planned: outputs.Outputs,
    spent: frozenset[int],
) -> tuple[list[RegionTuple], dict[int, int], dict[int, int]]:
    """The regions as the engine takes them, and which of them each argument and segment is."""
    regions: list[RegionTuple] = []
    of_argument: dict[int, int] = {}
    of_segment: dict[int, int] = {}
    for index, (in_a, in_b) in enumerate(zip(a.places, b.places, strict=True)):
        if in_a:
            of_argument[index] = len(regions)
            nbytes = tensors.extent_bytes(arguments[index])
            role = _engine.RegionRole.SPENT if index in spent else _engine.RegionRole.OWN
            regions.append((in_a, in_b, nbytes, role, nbytes if index in spent else 0))
    for index, (left, right) in enumerate(zip(a.segments, b.segments, strict=True)):
        role = _engine.RegionRole.SCRATCH
        used = max(left.used, right.used)
        of_segment[index] = len(regions)
        if index in planned.direct:
            block = planned.blocks[planned.direct[index]]
            block.place(len(regions), 0)
            role, used = _engine.RegionRole.FRESH, block.bytes
        regions.append((left.address, right.address, left.bytes, role, used))
    return regions, of_argument, of_segment


def _times(a: Capture, of_segment: Mapping[int, int], regions: int) -> list[tuple[int, int]]:
    """When the regions were allocated and freed while A was captured; those of segments are
    known."""
    times = [(0, NEVER)] * regions
    for index, segment in enumerate(a.segments):
        times[of_segment[index]] = segment.allocated, segment.freed
    return times


def _require_known(arguments: Sequence[Any], device: Device) -> None:
    for index, argument in enumerate(arguments):
        known = argument is None or isinstance(argument, (int, torch.Tensor))
        known = known or generators.is_generator(argument, device)
        if not known or isinstance(argument, bool):
            raise CaptureFailed(
                f"argument {index} is a {type(argument).__name__}; "
                "a graph takes tensors and random generators of its device, and integers"
            )


def _argument_specs(
    request: Request,
    capture: Capture,
    in_place: Mapping[int, torch.Tensor],
    region_of_argument: Mapping[int, int],
    guarded: bool,
) -> list[_engine.ArgumentSpec]:
    """How each argument reaches the graph. `guarded`: constants must stay where they are, since
    memory that the graph reads and nobody can explain may hold pointers to them."""
    specs = []
    for index, argument in enumerate(request.arguments):
        spec = _engine.ArgumentSpec()
        specs.append(spec)
        if numbers.is_number(argument, request.device):
            numbers.argument_spec(spec, capture.inputs[index])
            continue
        if isinstance(argument, torch.Generator):
            generators.argument_spec(spec, request.arguments, index, request.device)
            continue
        if isinstance(argument, torch.Tensor):
            spec.bytes = tensors.extent_bytes(argument)
            spec.mutated = index in request.mutated
        if index in region_of_argument:
            spec.kind = _engine.ArgumentKind.PATCHED
            spec.region = region_of_argument[index]
            spec.alignment_mask = tensors.alignment_mask(capture.places[index])
            spec.elsewhere = index in request.elsewhere
            if guarded and index not in request.changing:
                spec.guarded = True
                spec.address = argument.data_ptr()
        elif index in in_place:
            copied = index in request.changing
            spec.kind = _engine.ArgumentKind.COPIED if copied else _engine.ArgumentKind.FIXED
            spec.address = in_place[index].data_ptr()
            # The stand-in is the same at any offset, so nothing would show that the callable counts
            # from the start of the storage.
            spec.storage_offset = argument.storage_offset()
        elif isinstance(argument, int):
            spec.kind = _engine.ArgumentKind.INTEGER
            spec.value = argument
        else:
            spec.kind = _engine.ArgumentKind.IGNORED  # an empty tensor has no memory to address
    return specs


def _figures(linked: Any, a: Capture, planned: outputs.Outputs) -> dict[str, int]:
    return {
        "nodes": linked.nodes,
        "kernels": linked.kernels,
        "copy_nodes": linked.copies,
        "fill_nodes": linked.fills,
        "edges": linked.edges,
        "relocations": linked.relocations,
        "coincidences": linked.coincidences,
        "noise": linked.noise,
        "scratch_bytes": sum(
            -(-segment.used // _ARENA_STEP) * _ARENA_STEP
            for index, segment in enumerate(a.segments)
            if index not in planned.direct
        ),
        "arena_bytes": linked.arena_bytes,
        "arena_pieces": len(linked.arena_pieces),
        "parts": linked.parts,
        "scratch_in_outputs": linked.lent,
        "arena_lower_bound": linked.lower_bound,
        "output_bytes": planned.bytes,
        "outputs": len(planned.results),
        "segments": len(a.segments),
        **{f"outputs_{name}": count for name, count in planned.counts.items()},
    }
