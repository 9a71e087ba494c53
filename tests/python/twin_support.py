"""Any function on CPU tensors through capture, probe, link and replay on the CPU twin."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.capturing import tensors
from pygraph.twin import recorder

NAN_BYTE = 0xFF


@contextlib.contextmanager
def twin_memory() -> Iterator[None]:
    """CPU tensors are the twin's device memory while on."""
    _engine.twin_pageable_memory_access(True)
    try:
        yield
    finally:
        _engine.twin_pageable_memory_access(False)
        _engine.twin_reset_faults()


class Moved:
    """A function linked from two captures. Every call binds all memory to where it stands then:
    the arguments of the call, fresh outputs, a fresh arena."""

    def __init__(self, function: Callable[[list[Any]], Any], inputs: Sequence[Any]) -> None:
        self.space = _engine.PhantomSpace(0, 1 << 34, 1 << 21, twin=True)
        self.a, places_a = self._capture(function, inputs, _engine.Placement.A)
        self._places = places_a
        self.b, places_b = self._capture(function, inputs, _engine.Placement.B)
        assert [n for _, n in self.a.buffers] == [n for _, n in self.b.buffers]
        own, scratch = _engine.RegionRole.OWN, _engine.RegionRole.SCRATCH
        regions, self._inputs, self._buffers = [], {}, {}
        for index, (left, right) in enumerate(zip(places_a, places_b, strict=True)):
            if left:
                self._inputs[index] = len(regions)
                nbytes = tensors.extent_bytes(inputs[index])
                regions.append(_engine.Region(in_a=left, in_b=right, bytes=nbytes))
        returned = {self._buffer_of(output) for output in self.a.outputs}
        for place, ((left, nbytes), (right, _)) in enumerate(
            zip(self.a.buffers, self.b.buffers, strict=True)
        ):
            role = own if place in returned else scratch
            if place in returned:
                self._buffers[place] = len(regions)
            regions.append(
                _engine.Region(in_a=left, in_b=right, bytes=nbytes, role=role, used=nbytes)
            )
        end = self.space.base + self.space.reserved_bytes
        self.linked = _engine.link(
            self.a.graph.handle, self.b.graph.handle, regions, self.space.base, end, twin=True
        )
        assert not self.linked.problems, self.linked.problems
        self.program = self.linked.program()

    def _capture(self, function: Any, inputs: Sequence[Any], placement: Any) -> Any:
        self.space.begin(placement)
        places, phantoms = [], []
        for value in inputs:
            nbytes = tensors.extent_bytes(value) if isinstance(value, torch.Tensor) else 0
            places.append(self.space.allocate(nbytes) if nbytes else 0)
            phantoms.append(tensors.at_address(value, places[-1], nbytes) if nbytes else value)
        stream = _engine.Stream(twin=True)
        return recorder.record(function, phantoms, self.space, stream), places

    def _buffer_of(self, output: Any) -> int | None:
        if not isinstance(output, torch.Tensor) or not output.numel():
            return None
        for place, (address, nbytes) in enumerate(self.a.buffers):
            if address <= output.data_ptr() < address + nbytes:
                return place
        return None

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs as tensors of their own. Arena and outputs hold NaNs before, and so does all
        phantom memory, which the call must not change."""
        self.space.poison(NAN_BYTE)
        for index, region in self._inputs.items():
            self.program.bind(region, inputs[index].data_ptr())
        blocks = {place: _block(self.a.buffers[place][1]) for place in self._buffers}
        for place, region in self._buffers.items():
            self.program.bind(region, blocks[place].data_ptr())
        arena = _block(self.linked.arena_bytes)
        if self.linked.arena_bytes:
            self.program.bind(self.linked.arena, arena.data_ptr())
        stream = _engine.Stream(twin=True)
        self.program.launch(stream.handle)
        _engine.twin_synchronize()
        assert self.space.intact(NAN_BYTE), "phantom memory was written"
        return [self._real(output, inputs, blocks) for output in self.a.outputs]

    def _real(self, output: Any, inputs: Sequence[Any], blocks: dict[int, torch.Tensor]) -> Any:
        place = self._buffer_of(output)
        if place is None:
            if isinstance(output, torch.Tensor) and self.space.contains(output.data_ptr()):
                starts = {i: output.data_ptr() - self._places[i] for i in self._inputs}
                return next(
                    _like(output, inputs[i], start)
                    for i, start in starts.items()
                    if 0 <= start < tensors.extent_bytes(inputs[i])
                )
            return output
        return _like(output, blocks[place], output.data_ptr() - self.a.buffers[place][0])


def _block(nbytes: int) -> torch.Tensor:
    return torch.full((nbytes,), NAN_BYTE, dtype=torch.uint8)


def _like(output: torch.Tensor, memory: torch.Tensor, offset: int) -> torch.Tensor:
    storage = memory.untyped_storage()
    start = memory.storage_offset() * memory.element_size() + offset
    real = torch.empty(0, dtype=output.dtype).set_(
        storage, start // output.element_size(), output.shape, output.stride()
    )
    if output.is_conj():
        real = torch._conj(real)
    return torch._neg_view(real) if output.is_neg() else real


def check(
    function: Callable[[list[Any]], Any],
    inputs: Sequence[Any],
    other: Sequence[Any] | None = None,
    state: Sequence[torch.Tensor] = (),
) -> Moved:
    """Captures, and compares three calls bit for bit with the function itself, in results and in
    what becomes of the inputs: on `inputs`, on a copy of them elsewhere, and on `other` values.
    `state` (weights) comes before the inputs and is not written; it moves once."""
    moved = Moved(function, [*state, *inputs])
    weights = list(state)
    for given in (inputs, inputs, other if other is not None else inputs):
        mine, theirs = _copies(given), _copies(given)
        found = moved([*weights, *mine])
        expected = function([*state, *theirs])
        listed = list(expected) if isinstance(expected, (list, tuple)) else [expected]
        assert len(found) == len(listed)
        for left, right in zip([*found, *mine], [*listed, *theirs], strict=True):
            assert tensors.same_bits(_plain(left), _plain(right)), (left, right)
            if isinstance(left, torch.Tensor):
                assert left.stride() == right.stride() or left.numel() < 2
        if weights and weights[0] is state[0]:
            weights = _copies(state)
    return moved


def _plain(value: Any) -> Any:
    return value.resolve_conj().resolve_neg() if isinstance(value, torch.Tensor) else value


def _copies(values: Sequence[Any]) -> list[Any]:
    return [
        tensors.static_copy(value) if isinstance(value, torch.Tensor) and value.numel() else value
        for value in values
    ]
