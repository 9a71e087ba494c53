"""The device under measurement. On the CPU everything works and means nothing: for tests."""

from __future__ import annotations

import gc
from collections.abc import Iterable
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
        return Memory(
            allocated=torch.cuda.memory_allocated() / MIB,
            reserved=torch.cuda.memory_reserved() / MIB,
            peak_allocated=torch.cuda.max_memory_allocated() / MIB,
            peak_reserved=torch.cuda.max_memory_reserved() / MIB,
            in_use=(total - free) / MIB,
        )

    def restart_peaks(self) -> None:
        if self.is_cuda:
            torch.cuda.reset_peak_memory_stats()

    def tidy(self) -> None:
        """Give back all memory that nothing refers to."""
        gc.collect()
        if self.is_cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def broken(self) -> str | None:
        """Why the device cannot be used any more, if so: a faulty kernel ends a CUDA context."""
        try:
            self.synchronize()
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return None


def nbytes(tensors: Iterable[Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
