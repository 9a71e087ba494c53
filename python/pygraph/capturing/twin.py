"""The CPU twin as a device: CPU tensors are its memory, captures are recorded (twin/recorder.py).

`torch.compile(model, backend="pygraph", options={"device": "twin"})` takes the same way as on a
GPU: capture A and probe B in phantom memory, link, proof, replay.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.capturing import reasons
from pygraph.capturing.device import (
    DEFAULT,
    CaptureFailed,
    Device,
    Function,
    Recording,
    Segment,
)
from pygraph.capturing.holdings import Allocator, Observed
from pygraph.twin import generator_state, resized
from pygraph.twin.recorder import NotRecordable, record

#: Address space for both placements, and the one block behind all of it.
_RESERVE_BYTES = 1 << 40
_BLOCK_BYTES = 4 << 20


class Twin(Device):
    """The one twin of the process."""

    index = 0
    twin = True
    alignment = 64  #: of torch's CPU allocator (c10/core/alignment.h, gAlignment)
    kind = "cpu"
    private_scratch = False
    smallest_loan = 1  #: what a GPU does with large tensors, small ones are to show here

    def __init__(self) -> None:
        self._space: _engine.PhantomSpace | None = None
        self._stream: _engine.Stream | None = None

    @contextlib.contextmanager
    def in_any_order(self, wanted: bool) -> Iterator[None]:
        _engine.twin_any_order(1 if wanted else 0)
        try:
            yield
        finally:
            _engine.twin_any_order(0)

    def owns(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "cpu"

    def space(self) -> _engine.PhantomSpace:
        if self._space is None:
            _engine.twin_pageable_memory_access(True)
            self._space = _engine.PhantomSpace(
                0, reserve_bytes=_RESERVE_BYTES, block_bytes=_BLOCK_BYTES, twin=True
            )
        return self._space

    def in_capture(self, tensor: torch.Tensor) -> bool:
        return self.space().contains(resized.address_of(tensor))

    def release(self) -> None:
        """Gives the phantom space back; no capture may be under way."""
        self._space = self._stream = None

    def record(
        self,
        function: Function,
        inputs: list[Any],
        *,
        allocators: Iterable[Allocator],
        private_pool: bool,
        draws: Mapping[int, torch.Generator],
        observed: Observed | None = None,
    ) -> Recording:
        if private_pool:
            raise CaptureFailed("the twin has no private pools")
        if self._stream is None:
            self._stream = _engine.Stream(twin=True)
        places = {
            source: self.space().allocate(generator_state.ADDRESS_BYTES)
            for source in draws
            if source != DEFAULT
        }
        known = [(draws[source], place) for source, place in places.items()]
        try:
            made = record(function, inputs, self.space(), self._stream, known, observed is not None)
        except NotRecordable as error:
            source = reasons.source_of(error)
            raise CaptureFailed(str(error), error.operator, source) from error
        except RuntimeError as error:
            if not reasons.views_outside(error):
                raise
            raise CaptureFailed(*reasons.explain(error, None)) from error
        segments = [Segment(address, size, size, 1) for address, size in made.buffers]
        random = {
            source: [(place, generator_state.ADDRESS_BYTES)] for source, place in places.items()
        }
        return Recording(
            made.graph, made.outputs, segments, made.keep, random=random, known=made.known
        )

    def intact(self, poison: int) -> bool:
        return bool(self.space().intact(poison))

    def busy(self) -> bool:
        return False

    def stream(self) -> int:
        return 0

    def idle(self) -> bool:
        """Always: its kernels run within the call."""
        return True

    def alone(self) -> bool:
        return True

    def delay(self) -> None:
        """The twin has no clock."""

    def synchronize(self) -> None:
        """Calls wait for the twin by themselves."""

    def default_generator(self) -> torch.Generator:
        return torch.random.default_generator

    def generator_state(self, generator: torch.Generator) -> Any:
        state = generator.get_state()
        return ctypes.string_at(state.data_ptr(), state.numel())

    def restore_generator(self, generator: torch.Generator, state: Any) -> None:
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    def draw(self, argument: int, regions: Sequence[int], before: Any, after: Any) -> _engine.Draw:
        """The operators of a replay draw from the generators themselves: from the default one, or
        from that whose address stands in its region."""
        region = regions[0] if regions else _engine.NO_REGION
        return _engine.Draw(argument=argument, seed_region=region)

    def held_by(self, graph: Any) -> list[tuple[int, int]]:
        return list(graph.pool())

    def allocations(self, graph: Any) -> list[tuple[int, int]]:
        """What it has met."""
        return sorted(
            {(each.data_ptr(), each.nbytes()) for each in graph.storages() if each.nbytes()}
        )

    def free_bytes(self) -> int:
        """Of the host's memory, which tensors come from."""
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def peak_slack(self) -> int:
        """What a GPU does with large tensors, small ones are to show here."""
        return 1

    def driver_free_bytes(self) -> int:
        """All that the host has, less what the twin has given out: by the twin's own books, so
        that other processes do not show in the cost of a capture."""
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return pages - int(_engine.twin_census()["allocated_bytes"])


@functools.cache
def twin_device() -> Twin:
    """The process's twin."""
    return Twin()
