"""The device under measurement. On the CPU everything works and means nothing: for tests."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

MIB = 2**20


@dataclass(frozen=True)
class Memory:
    """MiB, by the caching allocator's and by the driver's count."""

    allocated: float = 0.0
    reserved: float = 0.0
    peak_allocated: float = 0.0
    peak_reserved: float = 0.0
    in_use: float = 0.0
    """By everything on the GPU, memory that did not come from the caching allocator included."""
    private: float | None = 0.0
    """Held by private pools, those of graphs; None where this torch does not tell."""
    idle: float | None = 0.0
    """The part of that which is not allocated: the intermediates of torch's graphs live there, and
    nobody else can use it."""


class Device:
    """Synchronising, memory figures and tidying up."""

    def __init__(self, name: str = "cuda") -> None:
        self.torch = torch.device(name)
        self.is_cuda = self.torch.type == "cuda"

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def memory(self) -> Memory:
        if not self.is_cuda:
            return Memory()
        free, total = torch.cuda.mem_get_info()
        private, idle = private_pools()
        return Memory(
            allocated=torch.cuda.memory_allocated() / MIB,
            reserved=torch.cuda.memory_reserved() / MIB,
            peak_allocated=torch.cuda.max_memory_allocated() / MIB,
            peak_reserved=torch.cuda.max_memory_reserved() / MIB,
            in_use=(total - free) / MIB,
            private=private,
            idle=idle,
        )

    def restart_peaks(self) -> None:
        if self.is_cuda:
            torch.cuda.reset_peak_memory_stats()

    def tidy(self, generation: int = 2) -> None:
        """Give back all memory that nothing refers to, cuBLAS's workspaces included.

        The oldest generation takes a good part of a second once a compiler has run. A lower number
        does where everything older was collected before.
        """
        gc.collect(generation)
        if self.is_cuda:
            torch.cuda.synchronize()
            drop_workspaces()
            torch.cuda.empty_cache()

    def broken(self) -> str | None:
        """Why the device cannot be used any more, if so: a faulty kernel ends a CUDA context."""
        try:
            self.synchronize()
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return None


def drop_workspaces() -> None:
    """Free what torch keeps for cuBLAS per stream, 32 MiB each on Hopper; the next use makes anew.

    reduce-overhead and pygraph do the same when they capture, so a difference of two readings means
    nothing unless both come after this. Graphs are safe if it was called before they were captured:
    then the workspace that they refer to lies in a pool of their own.
    """
    drop = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if drop is not None:
        drop()


def private_pools() -> tuple[float, float] | tuple[None, None]:
    """MiB that the private pools of the current device hold, and how much of that is unused."""
    try:
        try:
            segments = torch.cuda.memory_snapshot(include_traces=False)
        except TypeError:  # before torch 2.11
            segments = torch.cuda.memory_snapshot()
        device = torch.cuda.current_device()
        own = [
            segment
            for segment in segments
            if segment["device"] == device and tuple(segment["segment_pool_id"]) != (0, 0)
        ]
        held = sum(segment["total_size"] for segment in own)
        return held / MIB, (held - sum(segment["allocated_size"] for segment in own)) / MIB
    except (KeyError, RuntimeError):
        return None, None


@contextmanager
def young_heap() -> Iterator[None]:
    """Leave all objects that exist by now out of garbage collections.

    The modules of torch and of the model libraries alone are a million objects; every collection
    would walk them.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def nbytes(tensors: Iterable[Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
