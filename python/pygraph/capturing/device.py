"""Where a graph's memory is, and how work on it is captured: what differs between a GPU and the CPU
twin. Everything else in this package is the same for both.

A device is shared by the graphs on it. Captures of all devices exclude each other (`capture_lock`),
since torch's allocator reaches phantom memory through C functions of the process.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from pygraph import _engine
from pygraph.capturing.holdings import Allocator, Observed

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


#: What stands for the device's default generator where others are known by an argument's number.
DEFAULT = -1

#: When memory was freed that was not, before the capture's end (include/pygraph/link.h).
NEVER = (1 << 64) - 1


@dataclasses.dataclass(frozen=True)
class Segment:
    """One piece of phantom memory that was allocated while capturing."""

    address: int
    bytes: int  #: of the segment, rounded up by the allocator
    used: int  #: bytes of it that were ever handed out
    buffers: int  #: allocations that lived in it, one after the other; 0 when unknown
    #: When it was allocated and freed, by numbers that ascend through the capture; 0: not known.
    allocated: int = 0
    freed: int = NEVER
    device: int = 0  #: whose memory, by Device.number_of()


@dataclasses.dataclass(frozen=True)
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
    #: the same of all operators that launched nodes, with their names
    launched: list[tuple[int, int, str]] = dataclasses.field(default_factory=list)
    #: phantom memory that stands for the states of generators, by source (generators.py): for each
    #: a list of (address, bytes)
    random: dict[int, list[tuple[int, int]]] = dataclasses.field(default_factory=dict)
    #: addresses of results that nobody writes (attention.py)
    unwritten: frozenset[int] = frozenset()
    #: what the nodes read and write that are known, ascending; if that was to be noted
    known: Sequence[_engine.KnownNodes] = ()


class Device(abc.ABC):
    """One GPU, or the twin. It may have `peers`: other GPUs that a graph works on besides."""

    kind: str  #: torch's type of device
    index: int  #: torch's
    twin: bool  #: which driver the engine is to use
    alignment: int  #: of fresh tensors, in bytes: what the allocator guarantees
    private_scratch: bool  #: whether a capture can leave its scratch in a pool of its own
    smallest_loan: int  #: bytes of the smallest piece of scratch that may stand in an output
    arena_in_pieces = False  #: from the start, and not only where memory is short
    #: with which seeds nodes are delayed in proofs of graphs with lanes (link.h, delayed)
    delays: Sequence[int] = ()
    peers: tuple[int, ...] = ()  #: torch's indices

    @property
    def place(self) -> torch.device:
        """Where its tensors are."""
        return torch.device("cpu") if self.twin else torch.device(self.kind, self.index)

    def current(self) -> AbstractContextManager[Any]:
        """While on, this thread's driver calls are about this device."""
        return contextlib.nullcontext()

    def in_any_order(self, wanted: bool) -> AbstractContextManager[Any]:
        """While on, nodes run in any order that their edges allow, where the device can tell."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def owns(self, value: Any) -> bool:
        """Whether `value` is a tensor in memory of this device."""

    def apart(self, value: Any) -> bool:
        """Whether it is a tensor on another device of this kind that is no peer. No capture has
        work of it: streams belong to a device (driver API, Stream Management)."""
        return False

    def joined_by(self, others: Collection[int]) -> Device:
        """This device with others of its kind as its peers. Raises CaptureFailed where it cannot
        have them."""
        raise CaptureFailed("it works on several devices")

    def peer_of(self, tensor: torch.Tensor) -> int | None:
        """The peer that a tensor is on; None if it is on none."""
        index = tensor.device.index
        return index if index in self.peers else None

    def number_of(self, index: int | None) -> int:
        """What the engine knows torch's device `index` by: 0 is the device itself, which needs no
        index where there is one, then come its peers. Raises ValueError for others."""
        return 0 if index in (None, self.index) else 1 + self.peers.index(index)

    @abc.abstractmethod
    def space(self) -> _engine.PhantomSpace:
        """The phantom space; reserved and backed on first use, kept for later."""

    def in_capture(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory is the arguments' or the scratch of the capture under way."""
        return self.space().contains(tensor.data_ptr())

    def may_lead_to(self, foreign: Sequence[int], places: Sequence[tuple[int, int]]) -> bool:
        """Whether memory of this device at `foreign` addresses holds an address in one of `places`,
        (address, bytes) each, leads to memory that does, or cannot be followed (link.h)."""
        return _engine.may_lead_to(self.stream(), foreign, places, twin=self.twin)

    @abc.abstractmethod
    def stream(self) -> int:
        """The current stream's handle."""

    @abc.abstractmethod
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
        """Captures `function(inputs)`; what it allocates, by `allocators` among others, comes from
        phantom memory, or from a pool of ordinary memory. `draws`: the generators that it draws
        from, by source: the default one, and such among `inputs`. `observed`: what nodes read and
        write is noted, of kernels that pass no operator by this. Executes nothing. Raises
        CaptureFailed; transactional."""

    @abc.abstractmethod
    def intact(self, poison: int) -> bool:
        """Whether the phantom block still holds nothing but the byte `poison`."""

    @abc.abstractmethod
    def busy(self) -> bool:
        """Whether somebody captures the current stream, or that of a peer."""

    @abc.abstractmethod
    def idle(self) -> bool:
        """Whether the current stream, which nobody captures, has nothing to do."""

    @abc.abstractmethod
    def alone(self) -> bool:
        """Whether torch has memory of no other device of this kind."""

    @abc.abstractmethod
    def delay(self) -> None:
        """Keeps the current stream busy for some milliseconds, so that what is launched then runs
        without gaps."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Waits until nothing runs on the device and its peers."""

    @abc.abstractmethod
    def default_generator(self) -> torch.Generator:
        """The generator of those who name none."""

    @abc.abstractmethod
    def generator_state(self, generator: torch.Generator) -> Any:
        """The state of one of the device's; equal (==) if nothing was drawn between."""

    def states_elsewhere(self) -> Mapping[int, Any]:
        """Of the default generators of all other devices of this kind, by torch's index."""
        return {}

    @abc.abstractmethod
    def restore_generator(self, generator: torch.Generator, state: Any) -> None:
        """Brings it back to a `generator_state()`."""

    @abc.abstractmethod
    def draw(self, argument: int, regions: Sequence[int], before: Any, after: Any) -> _engine.Draw:
        """What a TensorProgram needs to draw random numbers like a run that began with a generator
        in state `before` and left it in state `after`. `argument`: which one the generator is, or
        DEFAULT_GENERATOR; `regions`: those of its state in the capture. Raises CaptureFailed."""

    @abc.abstractmethod
    def held_by(self, graph: Any) -> list[tuple[int, int]]:
        """The memory that somebody else's graph has for itself, as (address, bytes): the segments
        of its private pool. Raises CaptureFailed where that cannot be told."""

    @abc.abstractmethod
    def allocations(self, graph: Any) -> list[tuple[int, int]]:
        """What of memory that torch has given out somebody else's graph may address besides, as
        (address, bytes)."""

    @abc.abstractmethod
    def free_bytes(self) -> int:
        """Memory that an allocation can have: the driver's, and what torch holds in reserve."""

    @abc.abstractmethod
    def peak_slack(self) -> int:
        """Bytes by which the peak of a backward's memory may exceed the uncaptured callable's. Of
        what is allocated now: in a capture, phantom memory is part of that."""

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
