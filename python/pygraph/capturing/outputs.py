"""What becomes of each output of a captured graph.

direct   the output's memory is a region of its own, bound to fresh memory at each call: the kernel
         that produces it writes into what the caller gets. Always possible where the memory (a
         *cell*, see regions.py) held one buffer only, and its cost is nothing.
copied   several buffers lived in the cell in turn. The cell moves as a whole, so a direct output
         would keep all of it alive for as long as the caller keeps the output. Where that is too
         much memory to hold, a copy at the end of the graph takes the output out of the cell, which
         then is scratch like any other. The same where the memory is in a private pool.
kept     neither memory of the graph nor of an argument, and the same in every run: a tensor that
         the callable owns (a constant that it returns). The caller gets that very tensor.
aliased  an argument itself, a view of one, or an earlier output once more.

A number on the host is made anew in each call, see numbers.py.

An output without elements has no memory, but it has a storage, which it may share: with the result
that it is an empty view of, with an argument, with another empty output. It is planned by its
storage as others are by their addresses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.capturing import numbers, tensors, views
from pygraph.capturing.device import CaptureFailed, Device, Segment, is_strided
from pygraph.capturing.record import Capture
from pygraph.capturing.segments import SegmentIndex
from pygraph.torch_private.distributed import is_handle
from pygraph.torch_private.tensors import object_of

#: Memory of a shared cell that an output may keep alive beyond its own: this many bytes, or this
#: share of the output. A copy of so little takes about as long as the node costs, 1 us.
ACCEPTED_WASTE_BYTES = 512 << 10
ACCEPTED_WASTE_SHARE = 1 / 8


@dataclasses.dataclass(frozen=True)
class Block:
    """One fresh allocation of each call that outputs live in."""

    bytes: int
    source: int = 0  #: static address that is copied into it behind the launch; 0: none
    device: int | None = None  #: torch's index, of a peer; None: the graph's own


@dataclasses.dataclass(frozen=True)
class CellCopy:
    """Bytes of a scratch cell that the graph copies into an output block at its end."""

    block: int
    segment: int
    offset: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Outputs:
    """The plan of all outputs."""

    blocks: list[Block] = dataclasses.field(default_factory=list)
    results: list[_engine.ResultSpec] = dataclasses.field(default_factory=list)
    #: The block that each segment is, of those that outputs are.
    direct: dict[int, int] = dataclasses.field(default_factory=dict)
    copies: list[CellCopy] = dataclasses.field(default_factory=list)
    counts: dict[str, int] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(("direct", "copied", "kept", "aliased"), 0)
    )

    @property
    def bytes(self) -> int:
        """Of all fresh memory that a call's outputs take."""
        return sum(block.bytes for block in self.blocks)

    def standing_in(self, segments: Iterable[int]) -> list[int]:
        """The results, by number, that are made in the memory of these segments."""
        blocks = {self.direct[segment] for segment in segments}
        made = (_engine.ResultKind.WHOLE, _engine.ResultKind.VIEW)
        again = (_engine.ResultKind.SAME, _engine.ResultKind.DERIVED)
        found: list[int] = []
        for number, result in enumerate(self.results):
            among = blocks if result.kind in made else found if result.kind in again else ()
            if result.index in among:
                found.append(number)
        return found


@dataclasses.dataclass
class _Holder:
    """Memory that outputs live in together: one block of each call."""

    start: int  #: captured address of its first byte
    bytes: int
    sharers: int = 0
    block: int | None = None


def plan(
    a: Capture,
    b: Capture,
    reference: Sequence[Any],
    device: Device,
    static_pool: bool,
) -> Outputs:
    """Plans the outputs of capture `a`, whose probe is `b`; `reference` are those of a real run.
    `static_pool`: memory of the capture that is not phantom is the graph's own. Raises
    CaptureFailed for what cannot be given back faithfully."""
    planner = _Planner(a, b, reference, device, static_pool)
    for position in range(len(a.outputs)):
        planner.add(position)
    return planner.plan


def fetched(results: Sequence[Any], which: Iterable[int]) -> list[_engine.FetchedResult]:
    """How those of a capture's results are copied that the caller gets on the host."""
    return [
        _engine.FetchedResult(
            index=index,
            bytes=results[index].nbytes,
            sizes=list(results[index].shape),
            strides=list(results[index].stride()),
            dtype_of=results[index],
        )
        for index in sorted(which)
    ]


class _Planner:
    def __init__(
        self,
        a: Capture,
        b: Capture,
        reference: Sequence[Any],
        device: Device,
        static_pool: bool,
    ) -> None:
        self._capture = a
        self._probe = b
        self._reference = reference
        self._device = device
        self._static_pool = static_pool
        self._index = SegmentIndex((each.address, each.bytes) for each in a.segments)
        self._holders: dict[tuple[str, int], _Holder] = {}
        self._key: dict[int, tuple[str, int]] = {}
        self._together: dict[tuple[str, int], list[int]] = {}  #: outputs by key
        self.plan = Outputs()
        self._find_holders()

    # ------------------------------------------------------------------ who shares what

    def _find_holders(self) -> None:
        """Decides for every cell that holds outputs whether it moves as a whole (direct) or its
        outputs are copied out of it."""
        in_cell: dict[int, list[int]] = {}
        for position, output in enumerate(self._capture.outputs):
            if not is_strided(output):
                continue
            storage = output.untyped_storage()
            segment = self._index.find(output.data_ptr() if output.numel() else storage.data_ptr())
            if segment is not None:
                in_cell.setdefault(segment, []).append(position)
            elif not output.numel() and not self._belongs_to_others(position, output):
                key = ("empty", object_of(storage))
                self._hold(position, key, self._holders.get(key) or _Holder(storage.data_ptr(), 0))
        for segment, positions in in_cell.items():
            cell = self._capture.segments[segment]
            storages = self._storages(positions)
            needed = sum(end - start for start, end in storages.values())
            if self._moves_whole(cell, needed):
                size = cell.used
                if cell.buffers == 1:
                    output = self._capture.outputs[positions[0]]
                    size = output.untyped_storage().nbytes()
                holder = _Holder(cell.address, size)
                for position in positions:
                    self._hold(position, ("cell", segment), holder)
                continue
            for position in positions:
                storage = self._capture.outputs[position].untyped_storage().data_ptr()
                start, end = storages.get(storage, (storage, storage))
                key = ("copy", storage)
                self._hold(position, key, self._holders.get(key) or _Holder(start, end - start))

    def _belongs_to_others(self, position: int, output: torch.Tensor) -> bool:
        return (
            views.argument_of(output, self._capture) is not None
            or self._kept(position, output) is not None
        )

    def _storages(self, positions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """For each storage among some outputs, the range of it that they cover together."""
        ranges: dict[int, tuple[int, int]] = {}
        for position in positions:
            output = self._capture.outputs[position]
            if not output.numel():
                continue
            storage = output.untyped_storage().data_ptr()
            start = output.data_ptr()
            end = start + tensors.extent_bytes(output)
            low, high = ranges.get(storage, (start, end))
            ranges[storage] = min(low, start), max(high, end)
        return ranges

    @staticmethod
    def _moves_whole(cell: Segment, needed: int) -> bool:
        if cell.buffers == 1:
            return True
        waste = cell.used - needed
        return waste <= max(ACCEPTED_WASTE_BYTES, needed * ACCEPTED_WASTE_SHARE)

    def _hold(self, position: int, key: tuple[str, int], holder: _Holder) -> None:
        self._key[position] = key
        self._together.setdefault(key, []).append(position)
        self._holders[key] = holder
        holder.sharers += self._is_first(position)

    def _is_first(self, position: int) -> bool:
        """Whether no earlier output is the same object."""
        return self._capture.first_output[id(self._capture.outputs[position])] == position

    # ------------------------------------------------------------------ one output after another

    def add(self, position: int) -> None:
        """Plans output number `position`; outputs are planned in order."""
        self.plan.results.append(self._result(position))

    def _result(self, position: int) -> _engine.ResultSpec:
        output = self._capture.outputs[position]
        if not isinstance(output, torch.Tensor):
            same = is_handle(output) and output is self._reference[position]
            if output is not None and not isinstance(output, (int, float, bool)) and not same:
                raise CaptureFailed(f"output {position} is a {type(output).__name__}")
            return _engine.ResultSpec(kind=_engine.ResultKind.CONSTANT, object=output)
        if not self._is_first(position):
            self.plan.counts["aliased"] += 1
            index = self._capture.first_output[id(output)]
            return _engine.ResultSpec(kind=_engine.ResultKind.SAME, index=index)
        if numbers.is_number(output, self._device):
            kept = self._kept(position, output)
            if kept is not None:
                return self._keep(kept)
            return numbers.result_spec(position, self._capture, self._probe, self._reference)
        if not self._device.owns(output) or not is_strided(output):
            raise CaptureFailed(f"output {position} is {tensors.describe(output)}")
        return self._tensor(position, output)

    def _tensor(self, position: int, output: torch.Tensor) -> _engine.ResultSpec:
        argument = views.argument_of(output, self._capture)
        if argument is not None:
            views.require_same_place(position, argument, self._capture, self._probe)
            self.plan.counts["aliased"] += 1
            taken = self._capture.inputs[argument]
            if output is taken:
                return _engine.ResultSpec(kind=_engine.ResultKind.ARGUMENT, index=argument)
            return views.result_spec(_engine.ResultKind.ALIAS, argument, output, taken)
        if position in self._key:
            self._require_as_uncaptured(position, output)
            base = self._base_of(position, output)
            if base is None:
                return self._fresh(position, output)
            self.plan.counts["aliased"] += 1
            viewed = self._capture.outputs[base]
            return views.result_spec(_engine.ResultKind.DERIVED, base, output, viewed)
        kept = self._kept(position, output)
        if kept is not None:
            return self._keep(kept)
        if self._static_pool:
            return self._static(output)
        raise CaptureFailed(
            f"output {position} is memory that is neither the graph's nor the same in every run"
        )

    def _keep(self, kept: torch.Tensor) -> _engine.ResultSpec:
        self.plan.counts["kept"] += 1
        return _engine.ResultSpec(kind=_engine.ResultKind.CONSTANT, object=kept)

    def _base_of(self, position: int, output: torch.Tensor) -> int | None:
        """The earlier result that the callable made this one from, as far as autograd can tell: it
        counts the writes to both together. Without that, an error that autograd raises about a
        result which was saved and then written would not be raised."""
        if position >= len(self._reference) or not output.numel():
            return None
        for index in self._together[self._key[position]]:
            earlier = self._capture.outputs[index]
            if (
                index < position
                and earlier is not output
                and earlier.dtype == output.dtype
                and tensors.share_versions(self._reference[index], self._reference[position])
            ):
                return index
        return None

    def _fresh(self, position: int, output: torch.Tensor) -> _engine.ResultSpec:
        key = self._key[position]
        holder = self._holders[key]
        if holder.block is None:
            holder.block = self._add_block(holder.bytes, output)
            if key[0] == "cell":
                self.plan.direct[key[1]] = holder.block
            elif holder.bytes:
                self._add_copy(holder, holder.block)
        copied = key[0] == "copy" and holder.bytes
        self.plan.counts["copied" if copied else "direct"] += 1
        # An empty view may stand in front of what is copied of its storage.
        offset = max(tensors.address_of(output) - holder.start, 0)
        whole = holder.sharers == 1 and offset == 0 and tensors.extent_bytes(output) >= holder.bytes
        kind = _engine.ResultKind.WHOLE if whole else _engine.ResultKind.VIEW
        return _in_block(output, kind, holder.block, offset)

    def _add_block(self, nbytes: int, like: torch.Tensor, source: int = 0) -> int:
        self.plan.blocks.append(Block(nbytes, source, self._device.peer_of(like)))
        return len(self.plan.blocks) - 1

    def _add_copy(self, holder: _Holder, block: int) -> None:
        segment = self._index.find(holder.start)
        assert segment is not None
        offset = holder.start - self._capture.segments[segment].address
        self.plan.copies.append(CellCopy(block, segment, offset, holder.bytes))

    def _static(self, output: torch.Tensor) -> _engine.ResultSpec:
        """The output stands in a private pool: each call copies it out behind the launch."""
        self.plan.counts["copied"] += 1
        block = self._add_block(tensors.extent_bytes(output), output, output.data_ptr())
        return _in_block(output, _engine.ResultKind.WHOLE, block)

    def _kept(self, position: int, output: torch.Tensor) -> Any:
        """What a real run returned there, when that is the memory which both captures returned."""
        if position >= len(self._reference):
            return None
        same = self._reference[position]
        others = (same, self._probe.outputs[position])
        persistent = all(
            isinstance(other, torch.Tensor)
            and other.data_ptr() == output.data_ptr()
            and (output.numel() or tensors.share_storage(other, output))
            and other.shape == output.shape
            and other.stride() == output.stride()
            and other.dtype == output.dtype
            for other in others
        )
        return same if persistent else None

    def _require_as_uncaptured(self, position: int, output: torch.Tensor) -> None:
        """Whether the real run returned a tensor like the captured one, but for the address: a
        callable may do other things while it is captured, and a twin's operator may make memory
        that begins elsewhere."""
        if position >= len(self._reference):
            return
        real = self._reference[position]
        captured, found = (
            (each.dtype, tuple(each.shape), each.stride(), each.storage_offset())
            if isinstance(each, torch.Tensor) and is_strided(each)
            else None
            for each in (output, real)
        )
        if captured != found:
            raise CaptureFailed(
                f"output {position} is {captured} when captured and {found} when not"
                " (dtype, sizes, strides, storage offset)"
            )


def _in_block(
    output: torch.Tensor, kind: _engine.ResultKind, block: int, byte_offset: int = 0
) -> _engine.ResultSpec:
    """A result in fresh memory that looks like `output`."""
    return _engine.ResultSpec(
        kind=kind,
        index=block,
        byte_offset=byte_offset,
        sizes=list(output.shape),
        strides=list(output.stride()),
        dtype_of=output,
    )
