"""A graph of the twin as torch.cuda.CUDAGraph is one of a GPU's: captured on memory that is there,
and replayed where it was captured. It is what `pygraph.adopt` takes where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.twin.recorder import record


class TwinGraph:
    """`function(inputs)`, captured and not run. `inputs`: tensors that it may write, and reads
    where they are at each replay, as it does with others that it knows. Raises NotRecordable."""

    def __init__(self, function: Callable[[list[Any]], Any], inputs: Sequence[Any]) -> None:
        _engine.twin_pageable_memory_access(True)
        self._memory = _Pool()
        self._stream = _engine.Stream(twin=True)
        self._recorded = record(function, inputs, self._memory, self._stream)
        self._program: _engine.Program | None = None
        self.outputs: list[Any] = self._recorded.outputs
        """What the function returned: static tensors, which each replay overwrites."""

    def raw_cuda_graph(self) -> int:
        """The captured graph, in the twin's driver."""
        return self._recorded.graph.handle

    def replay(self) -> None:
        """Runs it, to its end."""
        if self._program is None:
            raw = self.raw_cuda_graph()
            self._program = _engine.link(raw, raw, [], 0, 0, twin=True).program()
        self._program.launch(self._stream.handle)
        _engine.twin_synchronize()

    def pool(self) -> list[tuple[int, int]]:
        """The memory that the capture allocated, as (address, bytes)."""
        return self._memory.segments

    def storages(self) -> list[torch.UntypedStorage]:
        """Of the tensors that it met and did not make."""
        return [tensor.untyped_storage() for tensor in self._recorded.keep]


class _Pool:
    """Memory of a capture, a CPU tensor for each buffer."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []

    @property
    def segments(self) -> list[tuple[int, int]]:
        return [(each.data_ptr(), each.numel()) for each in self._buffers]

    def allocate(self, bytes: int) -> int:
        self._buffers.append(torch.empty(bytes, dtype=torch.uint8, device="cpu"))
        return self._buffers[-1].data_ptr()

    def contains(self, address: int) -> bool:
        return any(start <= address < start + size for start, size in self.segments)
