"""From two captures to a callable graph: regions, roles, specifications.

The engine compares and lays out (include/pygraph/link.h); this module says what each region is: an
argument, an output, or scratch. Outputs whose memory is theirs alone are *direct*: a region of
their own, bound to the fresh tensor of each call. Where several buffers lived at an output's
address in turn, the cell moves as a whole, and the output becomes a view of a block that large.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.capture import record, space, tensors
from pygraph.capture.policy import Policy
from pygraph.capture.record import Capture, CaptureFailed, Segment


@dataclasses.dataclass
class LinkedCall:
    """A graph ready to be proven and called, with the figures for the report."""

    call: _engine.GraphCall
    policy: Policy
    figures: dict[str, int]
    keep: list[Any]  #: memory that the graph addresses where it was captured


@dataclasses.dataclass
class _Outputs:
    blocks: list[_engine.OutputBlock]
    results: list[_engine.ResultSpec]
    objects: list[Any]
    direct: dict[int, int]  #: segment index -> block index
    total_bytes: int


def link(
    function: Callable[[list[Any]], Any],
    arguments: Sequence[Any],
    changing: Sequence[int],
    mutated: frozenset[int],
    device: int,
    policy: Policy,
) -> LinkedCall:
    """Captures `function(arguments)` twice and links it under `policy`; `changing` are the
    arguments that differ from call to call. Reads and writes none of the arguments' memory. Raises
    CaptureFailed, UnsupportedGraph or DriverError; leaves nothing behind then."""
    in_place = _in_place(arguments, changing, policy)
    phantom = space.space_of(device)
    _engine.set_capture_space(None)  # spaces that torch has let go of are freed before we measure
    free = _engine.memory_info()[0]
    a, b = (
        record.record(function, arguments, in_place, policy.private_scratch, placement, device)
        for placement in (_engine.Placement.A, _engine.Placement.B)
    )
    _require_pairs(a, b)
    outputs = _plan_outputs(a, policy)

    regions: list[tuple[int, int, int, _engine.RegionRole, int]] = []
    region_of_argument: dict[int, int] = {}
    for index, (in_a, in_b) in enumerate(zip(a.places, b.places, strict=True)):
        if in_a:
            region_of_argument[index] = len(regions)
            nbytes = tensors.extent_bytes(arguments[index])
            regions.append((in_a, in_b, nbytes, _engine.RegionRole.OWN, 0))
    for index, (left, right) in enumerate(zip(a.segments, b.segments, strict=True)):
        role = _engine.RegionRole.SCRATCH
        if index in outputs.direct:
            role = _engine.RegionRole.OWN
            outputs.blocks[outputs.direct[index]].region = len(regions)
        used = max(left.used, right.used)
        regions.append((left.address, right.address, left.bytes, role, used))

    taken = free - _engine.memory_info()[0]
    begin, end = phantom.base, phantom.base + phantom.reserved_bytes
    linked = _engine.link(a.graph.handle, b.graph.handle, regions, begin, end)
    if linked.problems:
        raise CaptureFailed(
            f"two captures of the same call differ in {len(linked.problems)} places; the first: "
            f"{linked.problems[0]}"
        )
    figures = {
        "nodes": linked.nodes,
        "kernels": linked.kernels,
        "edges": linked.edges,
        "relocations": linked.relocations,
        "coincidences": linked.coincidences,
        "noise": linked.noise,
        "arena_bytes": linked.arena_bytes,
        "arena_lower_bound": linked.lower_bound,
        "output_bytes": outputs.total_bytes,
        "outputs": len(outputs.results),
        "segments": len(a.segments),
        "capture_bytes": taken,
        "private_pool_bytes": space.pool_bytes(a.pool) if policy.private_scratch else 0,
    }
    specs = _argument_specs(
        arguments, a, in_place, frozenset(changing), region_of_argument, mutated
    )
    call = _engine.GraphCall.make(
        linked, False, device, specs, outputs.blocks, outputs.results, outputs.objects
    )
    keep: list[Any] = list(in_place.values())
    if policy.private_scratch:
        keep += [a.pool, a.keep, a.outputs]
    return LinkedCall(call, policy, figures, keep)


def _in_place(
    arguments: Sequence[Any], changing: Sequence[int], policy: Policy
) -> dict[int, torch.Tensor]:
    """What stands in for the arguments that `policy` does not relocate: a static buffer for one
    that is copied, the argument itself for one that is fixed."""
    stand_ins: dict[int, torch.Tensor] = {}
    for index, argument in enumerate(arguments):
        if not isinstance(argument, torch.Tensor) or not argument.numel():
            continue
        if index in changing:
            if policy.copy_inputs:
                stand_ins[index] = tensors.static_copy(argument)
        elif policy.fix_constants:
            stand_ins[index] = argument
    return stand_ins


def _require_pairs(a: Capture, b: Capture) -> None:
    left = [segment.bytes for segment in a.segments]
    right = [segment.bytes for segment in b.segments]
    if left != right:
        raise CaptureFailed(
            f"two captures of the same call allocate differently: {len(left)} segments of "
            f"{sum(left)} bytes, then {len(right)} of {sum(right)}"
        )
    if len(a.outputs) != len(b.outputs):
        raise CaptureFailed("two captures of the same call return different numbers of outputs")


def _argument_specs(
    arguments: Sequence[Any],
    capture: Capture,
    in_place: Mapping[int, torch.Tensor],
    changing: frozenset[int],
    region_of_argument: Mapping[int, int],
    mutated: frozenset[int],
) -> list[_engine.ArgumentSpec]:
    specs = []
    for index, argument in enumerate(arguments):
        spec = _engine.ArgumentSpec()
        if isinstance(argument, torch.Tensor):
            spec.bytes = tensors.extent_bytes(argument)
            spec.mutated = index in mutated
        if index in region_of_argument:
            spec.kind = _engine.ArgumentKind.PATCHED
            spec.region = region_of_argument[index]
            spec.alignment_mask = tensors.alignment_mask(capture.places[index])
        elif index in in_place:
            copied = index in changing
            spec.kind = _engine.ArgumentKind.COPIED if copied else _engine.ArgumentKind.FIXED
            spec.address = in_place[index].data_ptr()
        elif isinstance(argument, int) and not isinstance(argument, bool):
            spec.kind = _engine.ArgumentKind.INTEGER
            spec.value = argument
        elif argument is None or isinstance(argument, torch.Tensor):
            spec.kind = _engine.ArgumentKind.IGNORED  # an empty tensor has no memory to address
        else:
            raise CaptureFailed(
                f"argument {index} is a {type(argument).__name__}; "
                "a graph takes CUDA tensors and integers"
            )
        specs.append(spec)
    return specs


class _SegmentIndex:
    """Finds the segment of a capture that an address lies in."""

    def __init__(self, segments: list[Segment]) -> None:
        self._order = sorted(range(len(segments)), key=lambda i: segments[i].address)
        self._starts = [segments[i].address for i in self._order]
        self._segments = segments

    def find(self, address: int) -> int | None:
        position = bisect.bisect_right(self._starts, address) - 1
        if position < 0:
            return None
        index = self._order[position]
        segment = self._segments[index]
        return index if address < segment.address + segment.bytes else None


def _plan_outputs(capture: Capture, policy: Policy) -> _Outputs:
    plan = _Outputs([], [], [], {}, 0)
    index = _SegmentIndex(capture.segments)
    sharing: dict[int, int] = {}
    for output in capture.outputs:
        if isinstance(output, torch.Tensor) and output.numel():
            segment = index.find(output.data_ptr())
            if segment is not None:
                sharing[segment] = sharing.get(segment, 0) + 1
    for position, output in enumerate(capture.outputs):
        _plan_output(position, output, capture, policy, index, sharing, plan)
    return plan


def _plan_output(
    position: int,
    output: Any,
    capture: Capture,
    policy: Policy,
    index: _SegmentIndex,
    sharing: dict[int, int],
    plan: _Outputs,
) -> None:
    result = _engine.ResultSpec()
    made_from: Any = None
    if not isinstance(output, torch.Tensor):
        if output is not None and not isinstance(output, (int, float, bool)):
            raise CaptureFailed(f"output {position} is a {type(output).__name__}")
        result.kind = _engine.ResultKind.CONSTANT
        made_from = output
    elif not output.is_cuda or output.layout != torch.strided:
        raise CaptureFailed(f"output {position} is a {output.device.type} {output.layout} tensor")
    else:
        result.sizes = list(output.shape)
        result.strides = list(output.stride())
        result.set_dtype_of(output)
        segment = index.find(output.data_ptr()) if output.numel() else None
        argument = _argument_of(output, capture)
        if argument is not None:
            result.index = argument
            if output is capture.inputs[argument]:
                result.kind = _engine.ResultKind.ARGUMENT
            else:
                result.kind = _engine.ResultKind.ALIAS
                made_from = _alias_maker(output, capture, argument)
        elif segment is not None or output.numel() == 0:
            _plan_fresh(output, result, segment, capture, sharing, plan)
        elif policy.private_scratch:
            _plan_copied(output, result, plan)
        else:
            raise CaptureFailed(
                f"output {position} is not memory of the graph nor of an argument (a constant?)"
            )
    plan.results.append(result)
    plan.objects.append(made_from)


def _plan_fresh(
    output: torch.Tensor,
    result: _engine.ResultSpec,
    segment: int | None,
    capture: Capture,
    sharing: dict[int, int],
    plan: _Outputs,
) -> None:
    if segment is not None and segment in plan.direct:
        block_index = plan.direct[segment]
    else:
        block_index = len(plan.blocks)
        block = _engine.OutputBlock()
        if segment is not None:
            cell = capture.segments[segment]
            block.bytes = output.untyped_storage().nbytes() if cell.buffers == 1 else cell.used
            plan.direct[segment] = block_index
        plan.blocks.append(block)
        plan.total_bytes += block.bytes
    block_bytes = plan.blocks[block_index].bytes
    result.index = block_index
    start = capture.segments[segment].address if segment is not None else output.data_ptr()
    result.byte_offset = output.data_ptr() - start
    whole = segment is None or (
        sharing[segment] == 1
        and result.byte_offset == 0
        and tensors.extent_bytes(output) >= block_bytes
    )
    result.kind = _engine.ResultKind.WHOLE if whole else _engine.ResultKind.VIEW


def _plan_copied(output: torch.Tensor, result: _engine.ResultSpec, plan: _Outputs) -> None:
    """The output stands in a private pool: each call copies it out behind the launch."""
    block = _engine.OutputBlock()
    block.bytes = tensors.extent_bytes(output)
    block.source = output.data_ptr()
    result.kind = _engine.ResultKind.WHOLE
    result.index = len(plan.blocks)
    plan.blocks.append(block)
    plan.total_bytes += block.bytes


def _argument_of(output: torch.Tensor, capture: Capture) -> int | None:
    """The argument that an output is, or shares memory with."""
    for index, argument in enumerate(capture.inputs):
        if output is argument:
            return index
    if not output.numel():
        return None
    address = output.data_ptr()
    for index, place in enumerate(capture.places):
        if place and place <= address < place + tensors.extent_bytes(capture.inputs[index]):
            return index
    return None


def _alias_maker(
    output: torch.Tensor, capture: Capture, argument: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    base = capture.inputs[argument]
    delta = output.data_ptr() - base.data_ptr()
    if output.dtype != base.dtype or delta % base.element_size():
        raise CaptureFailed(f"an output views argument {argument} as another dtype")
    offset = delta // base.element_size()
    shape, strides = tuple(output.shape), output.stride()

    def view_of(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)

    return view_of
