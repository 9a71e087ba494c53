"""Phantom memory as torch sees it: one space per device, and a capture pool over it.

The space is the engine's (include/pygraph/phantom.h). Torch's allocator reaches it through
CUDAPluggableAllocator, which looks two C functions up in the engine's shared object. `no_split`
gives every allocation a segment of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from pygraph import _engine
from pygraph.capturing.device import capture_lock

_spaces: dict[int, _engine.PhantomSpace] = {}
_streams: dict[tuple[int, str], tuple[_engine.Stream, torch.cuda.ExternalStream]] = {}
_allocator: torch.cuda.memory.CUDAPluggableAllocator | None = None


class PhantomMemoryShort(RuntimeError):
    """A capture asked for more addresses than a phantom space has."""


def space_of(device: int) -> _engine.PhantomSpace:
    """The phantom space of a CUDA device; reserved and backed on first use, kept for later."""
    if device not in _spaces:
        torch.cuda.synchronize(device)  # the CUDA context must be current in this thread
        _spaces[device] = _engine.PhantomSpace(device)
    return _spaces[device]


def stream_of(device: int, purpose: str = "capture") -> torch.cuda.ExternalStream:
    """The side stream of `device` that captures are made on, or another one for a purpose."""
    key = device, purpose
    if key not in _streams:
        # Of our own making: torch.cuda.Stream would first make a pool of 32, 70 MiB on an H200.
        with torch.cuda.device(device):
            stream = _engine.Stream()
            _streams[key] = stream, torch.cuda.ExternalStream(stream.handle, device)
    return _streams[key][1]


def release() -> None:
    """Gives the address ranges and blocks back; no capture may be under way."""
    with capture_lock:
        _spaces.clear()
        _streams.clear()


@contextlib.contextmanager
def phantom_pools(
    space: _engine.PhantomSpace, devices: Sequence[int]
) -> Iterator[list[torch.cuda.MemPool]]:
    """Routes this thread's allocations on CUDA devices into `space`, through a pool for each. What
    is allocated goes back to the space with the pools, if it is free by then. Raises
    PhantomMemoryShort on leaving when an allocation failed in between."""
    global _allocator
    if _allocator is None:
        _allocator = torch.cuda.memory.CUDAPluggableAllocator(
            _engine.__file__, "pygraph_phantom_alloc", "pygraph_phantom_free"
        )
    pools = []
    for device in devices:
        with torch.cuda.device(device):
            pools.append(torch.cuda.MemPool(_allocator.allocator(), no_split=True))
    _engine.set_capture_space(space)
    try:
        with contextlib.ExitStack() as used:
            for pool, device in zip(pools, devices, strict=True):
                used.enter_context(torch.cuda.use_mem_pool(pool, device))
            yield pools
    finally:
        failures = _engine.set_capture_space(None)
    if failures:
        raise PhantomMemoryShort(f"{failures} allocations found no phantom memory during a capture")


@contextlib.contextmanager
def private_pool(device: int) -> Iterator[torch.cuda.MemPool]:
    """Routes this thread's CUDA allocations into a pool of ordinary memory."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool, device):
        yield pool


def pool_bytes(pool: torch.cuda.MemPool) -> int:
    """GPU memory that a pool holds."""
    return sum(segment["total_size"] for segment in torch.cuda.memory_snapshot(pool.id))
