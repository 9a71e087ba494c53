"""What a forward graph and its backward know of each other.

AOTAutograd compiles a function that trains into two graphs. The forward returns the caller's
results and, behind them, what it saves for the backward, which autograd alone keeps. The backward
takes the saved tensors back, some of which are the forward's own parameters, and then the
gradients of the results.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from pygraph.capture import blocks, tensors
from pygraph.capture.device import Device, is_strided
from pygraph.capture.reference import Reference

#: Programs of a forward that wait for its backward's first program.
_MOST_WAITING = 8


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
        self._constants: frozenset[tuple[int, int]] = frozenset()
        #: Which of what the forward saves its callable returns on the host (Side.saves_on_host).
        self.saved_on_host: frozenset[int] = frozenset()
        #: Whether the backward is one callable, whose tensors are the forward's in their order;
        #: None before it is compiled.
        self.backward_is_whole: bool | None = None
        #: Per tensor that the forward saves, the part of the backward behind which it is given up.
        self._given_up: dict[int, int] = {}
        self._forwards: list[Any] = []  #: programs whose results have not been put together yet

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

    def adopt_forward(self, call: Any) -> None:
        """A program of the forward is in service."""
        self._forwards = [*self._forwards[1 - _MOST_WAITING :], call]
        self._put_together()

    def adopt_backward(self, call: Any, first: int) -> None:
        """A program of the backward is; `first` of its arguments are sizes."""
        if self.backward_is_whole:
            self._given_up = {
                index - first: part for index, part in enumerate(call.spent_after) if part >= 0
            }
            self._put_together()

    def release(self) -> None:
        """Lets go of programs."""
        self._forwards.clear()

    def _put_together(self) -> None:
        """What is given up together is saved in common blocks."""
        if not self._given_up or self.returned is None:
            return
        parts = {self.returned + saved: part for saved, part in self._given_up.items()}
        for call in self._forwards:
            blocks.merge(call, parts)
        self._forwards.clear()


class Side:
    """One compiled graph as a member of its pair; an inference graph has none."""

    def __init__(
        self, role: Role, pair: Pair | None, static: Collection[int], device: Device
    ) -> None:
        self.role = role
        self._pair = pair
        self._static = frozenset(static)
        self._device = device

    def note(self, arguments: Sequence[Any]) -> None:
        """Told the arguments of a call that runs uncaptured."""
        if self.role is Role.FORWARD and self._pair is not None:
            self._pair.note_constants(arguments, self._static)

    def constants(self, arguments: Sequence[Any]) -> frozenset[int]:
        """The arguments that stand where they are from call to call."""
        if self.role is Role.BACKWARD and self._pair is not None:
            return self._pair.constants_among(arguments)
        return self._static

    def results_together(self, run: Reference) -> frozenset[int]:
        """The results that die at about the same time: what a forward saves; of a backward's
        results, one per argument of its forward, the gradients of parameters."""
        count = len(run.outputs)
        if self.role is Role.FORWARD and self._pair is not None and self._pair.returned is not None:
            return frozenset(range(self._pair.returned, count))
        if self.role is Role.BACKWARD and self._pair is not None:
            return frozenset(index for index in self._pair.static if index < count)
        return frozenset()

    def given(self, arguments: Sequence[Any]) -> frozenset[int]:
        """The arguments that nobody needs behind the call."""
        backward = self.role is Role.BACKWARD
        return frozenset(range(len(arguments))) if backward else frozenset()

    def has_moved(self, call: Any, arguments: Sequence[Any]) -> bool:
        """Whether `call` does not serve these arguments because something that it needs in place
        has moved, for good as it seems. What a forward saves keeps its places in the memory that it
        is saved in, so a backward that asks for such places is linked anew for them."""
        if call.moved(arguments):
            return True
        return self.role is Role.BACKWARD and bool(call.offsets_differ(arguments))

    def adopt(self, call: Any, arguments: Sequence[Any]) -> None:
        """A program is in service, which was linked for a call with `arguments`."""
        if self._pair is None:
            return
        if self.role is Role.FORWARD:
            self._pair.adopt_forward(call)
        elif self.role is Role.BACKWARD:
            self._pair.adopt_backward(call, _sizes_in_front(arguments))

    def release(self) -> None:
        """Programs are dropped."""
        if self._pair is not None:
            self._pair.release()

    # Attention with dropout saves the seed and the offset of its random numbers, two numbers.
    # Captured, some kernels return and read them on the device, uncaptured on the host (torch,
    # aten/src/ATen/native/transformers/cuda/attention.cu, "Note [Seed and Offset Device]"). A
    # backward that runs uncaptured behind a graph of its forward must be given them on the host.

    def taken_on_host(self, arguments: Sequence[Any]) -> frozenset[int]:
        """Which arguments of a backward its callable reads on the host: sizes come first, then what
        the forward saved."""
        if self.role is not Role.BACKWARD or self._pair is None or not self._pair.saved_on_host:
            return frozenset()
        first = _sizes_in_front(arguments)
        return frozenset(first + index for index in self._pair.saved_on_host)

    def saves_on_host(self, run: Reference) -> str | None:
        """Settles which of what a forward's callable saved in a real run is on the host. Returns
        why that cannot be settled; "" if it may be later."""
        found = _numbers_on_host(run.outputs, self._device)
        if self.role is not Role.FORWARD or self._pair is None or not found:
            return None
        if self._pair.backward_is_whole is None:
            return ""
        saved = self.results_together(run)
        if not found <= saved or not self._pair.backward_is_whole:
            return "it saves numbers on the host for a backward in several parts"
        run.on_host = found
        first = min(saved)
        self._pair.saved_on_host = frozenset(index - first for index in found)
        return None


def _sizes_in_front(arguments: Sequence[Any]) -> int:
    return next((i for i, value in enumerate(arguments) if type(value) is not int), 0)


def _numbers_on_host(values: Sequence[Any], device: Device) -> frozenset[int]:
    return frozenset(
        index
        for index, value in enumerate(values)
        if isinstance(value, torch.Tensor)
        and value.dtype == torch.int64
        and value.dim() == 0
        and value.device.type == "cpu"
        and not device.owns(value)
    )


def _has_memory(value: Any) -> bool:
    return is_strided(value) and value.numel() > 0


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensors.extent_bytes(tensor)
