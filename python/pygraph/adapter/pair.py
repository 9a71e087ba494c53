"""What a forward graph and its backward know of each other.

AOTAutograd compiles a function that trains into two graphs. The forward returns the caller's
results and, behind them, what it saves for the backward, which autograd alone keeps. The backward
takes the saved tensors back, some of which are the forward's own parameters, and then the
gradients of the results.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from pygraph.capture import tensors
from pygraph.capture.device import Device, is_strided


class Role(enum.Enum):
    """What a compiled graph is for; the value stands in its name."""

    INFERENCE = "inference"
    FORWARD = "forward"
    BACKWARD = "backward"


class Pair:
    """One forward and its backward. `metadata` is what AOTAutograd said of the function by the time
    that one of them is called first (its ViewAndMutationMeta; hook.observed_metadata)."""

    def __init__(self, metadata: Sequence[Any]) -> None:
        self._metadata = metadata
        self.static: frozenset[int] = frozenset()  #: the forward's parameters and buffers
        #: Which of what the forward saves its callable returns on the host (see below).
        self.saved_on_host: frozenset[int] = frozenset()
        #: Whether the backward is one callable, whose tensors are the forward's in their order;
        #: None before it is compiled.
        self.backward_is_whole: bool | None = None
        self._constants: frozenset[tuple[int, int]] = frozenset()

    @property
    def returned(self) -> int | None:
        """How many of the forward's results are for the caller; the others are saved. None: not
        known."""
        if len(self._metadata) != 1:
            return None
        count = getattr(self._metadata[0], "num_forward_returns", None)
        return count if isinstance(count, int) else None

    def note_constants(self, arguments: Sequence[Any], static: Iterable[int]) -> None:
        """Where the forward's parameters and buffers stand in this call."""
        self.static = frozenset(static)
        self._constants = frozenset(
            _place(arguments[index]) for index in static if _has_memory(arguments[index])
        )

    def constants_among(self, arguments: Sequence[Any]) -> frozenset[int]:
        """Those of the backward's arguments that are parameters or buffers of the forward: they
        stay where they are from call to call, and no backward writes them."""
        return frozenset(
            index
            for index, argument in enumerate(arguments)
            if _has_memory(argument) and _place(argument) in self._constants
        )


def _has_memory(value: Any) -> bool:
    return is_strided(value) and value.numel() > 0


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensors.extent_bytes(tensor)


# Attention with dropout saves the seed and the offset of its random numbers, two numbers. Captured,
# some kernels return and read them on the device, uncaptured on the host (torch,
# aten/src/ATen/native/transformers/cuda/attention.cu, "Note [Seed and Offset Device]"). A backward
# that runs uncaptured behind a graph of its forward must be given them on the host.


def on_host(values: Sequence[Any], device: Device) -> frozenset[int]:
    """Which of the results that a forward saves may be such numbers, and are on the host."""
    return frozenset(
        index
        for index, value in enumerate(values)
        if isinstance(value, torch.Tensor)
        and value.dtype == torch.int64
        and value.dim() == 0
        and value.device.type == "cpu"
        and not device.owns(value)
    )


def taken_on_host(pair: Pair, arguments: Sequence[Any]) -> frozenset[int]:
    """Which arguments of a backward they are: sizes come first, then what the forward saved."""
    first = next((i for i, value in enumerate(arguments) if type(value) is not int), 0)
    return frozenset(first + index for index in pair.saved_on_host)
