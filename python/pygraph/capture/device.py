"""Where a graph's memory is, and how work on it is captured: what differs between a GPU and the CPU
twin. Everything else in this package is the same for both.

A device is shared by the graphs on it. Captures of all devices exclude each other (`capture_lock`),
since torch's allocator reaches phantom memory through C functions of the process.
"""

from __future__ import annotations

import abc
import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pygraph import _engine

#: One capture at a time.
capture_lock = threading.RLock()

Function = Callable[[list[Any]], Any]


class CaptureFailed(RuntimeError):
    """A capture that gave no usable graph. `operator` and `source` name the guilty ones when they
    are known."""

    def __init__(self, reason: str, operator: str | None = None, source: str | None = None) -> None:
        super().__init__(reason)
        self.operator = operator
        self.source = source


#: When memory was freed that was not, before the capture's end (include/pygraph/link.h).
NEVER = (1 << 64) - 1


@dataclasses.dataclass
class Segment:
    """One piece of phantom memory that was allocated while capturing."""

    address: int
    bytes: int  #: of the segment, rounded up by the allocator
    used: int  #: bytes of it that were ever handed out
    buffers: int  #: allocations that lived in it, one after the other; 0 when unknown
    #: When it was allocated and freed, by numbers that ascend through the capture; 0: not known.
    allocated: int = 0
    freed: int = NEVER


@dataclasses.dataclass
class Recording:
    """What a device captured. `keep` must live until the graph has been linked, or, when scratch
    is in a private pool (`pool`), as long as the graph."""

    graph: _engine.CapturedGraph
    outputs: list[Any]
    segments: list[Segment]
    keep: list[Any]
    pool: Any = None
    #: (nodes before, nodes after) of operators that launched several nodes
    operators: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    #: phantom memory that stands for the state of the generator, by name: (address, bytes)
    random: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)


class Device(abc.ABC):
    """One GPU, or the twin."""

    kind: str  #: torch's type of device
    index: int  #: torch's
    twin: bool  #: which driver the engine is to use
    alignment: int  #: of fresh tensors, in bytes: what the allocator guarantees
    private_scratch: bool  #: whether a capture can leave its scratch in a pool of its own
    smallest_loan: int  #: bytes of the smallest piece of scratch that may stand in an output
    arena_in_pieces = False  #: from the start, and not only where memory is short

    @abc.abstractmethod
    def owns(self, value: Any) -> bool:
        """Whether `value` is a tensor in memory of this device."""

    @abc.abstractmethod
    def space(self) -> _engine.PhantomSpace:
        """The phantom space; reserved and backed on first use, kept for later."""

    @abc.abstractmethod
    def record(
        self, function: Function, inputs: list[Any], private_pool: bool, draws: bool
    ) -> Recording:
        """Captures `function(inputs)`; what it allocates comes from phantom memory, or from a pool
        of ordinary memory. `draws`: it draws random numbers. Executes nothing. Raises
        CaptureFailed; transactional."""

    @abc.abstractmethod
    def intact(self, poison: int) -> bool:
        """Whether the phantom block still holds nothing but the byte `poison`."""

    @abc.abstractmethod
    def busy(self) -> bool:
        """Whether somebody captures the current stream."""

    @abc.abstractmethod
    def delay(self) -> None:
        """Keeps the current stream busy for some milliseconds, so that what is launched then runs
        without gaps."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Waits until nothing runs on the device."""

    @abc.abstractmethod
    def random_state(self) -> Any:
        """The state of the device's default generator; equal (==) if nothing was drawn between."""

    @abc.abstractmethod
    def restore_random(self, state: Any) -> None:
        """Brings the default generator back to a `random_state()`."""

    @abc.abstractmethod
    def random_spec(self, places: Mapping[str, int], before: Any, after: Any) -> Any:
        """What a GraphCall needs to draw random numbers like a run that began with the generator in
        state `before` and left it in state `after` (its `random`), None when it needs nothing.
        `places`: the regions of the generator's state in the capture, by name."""

    @abc.abstractmethod
    def free_bytes(self) -> int:
        """Memory that an allocation can have: the driver's, and what torch holds in reserve."""

    @abc.abstractmethod
    def peak_slack(self) -> int:
        """Bytes by which the peak of a backward's memory may exceed the uncaptured callable's."""

    @abc.abstractmethod
    def driver_free_bytes(self) -> int:
        """Memory that nobody has taken from the driver."""


def is_strided(value: Any) -> bool:
    """Whether `value` is a plain strided tensor: what an address, sizes and strides describe."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and not value.is_conj()
        and not value.is_neg()
        and not value.is_quantized
    )
