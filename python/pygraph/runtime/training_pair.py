"""What a forward graph and its backward know of each other.

AOTAutograd compiles a function that trains into two graphs. The forward returns the caller's
results and, behind them, what it saves for the backward, which autograd alone keeps. The backward
takes the saved tensors back, some of which are the forward's own parameters, and then the
gradients of the results.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from pygraph.capturing import blocks, numbers, tensors
from pygraph.capturing.device import Device, is_strided
from pygraph.capturing.reference import Reference
from pygraph.runtime import calling_thread
from pygraph.runtime.partition import Partition, Position, graph_inputs, graph_outputs
from pygraph.torch_private.tensors import holders, object_of

#: Programs of a forward that wait for its backward's first program.
_MOST_WAITING = 8


class Role(enum.Enum):
    """What a compiled graph is for; the value stands in its name."""

    INFERENCE = "inference"
    FORWARD = "forward"
    BACKWARD = "backward"


@dataclasses.dataclass(frozen=True)
class PairLayout:
    """How the results of a forward and the arguments of its backward are ordered."""

    #: How many of the forward's results are for the caller; the others are saved. None: not known.
    returned: int | None = None
    #: How many sizes stand in front of the backward's saved tensors. None: not known.
    sizes: int | None = None


class TrainingPair:
    """One forward and its backward. `layout` knows by the time that one of them is called first.
    `stays`: the backward shall run on the thread that calls it (calling_thread.py)."""

    def __init__(self, layout: Callable[[], PairLayout], stays: bool = False) -> None:
        self._layout = layout
        self.stays = stays
        #: The forward's parameters and buffers, by its inputs.
        self.constant_inputs: frozenset[int] = frozenset()
        #: Where they are, per callable of the forward.
        self._constants: dict[PairMember, frozenset[tuple[int, int]]] = {}
        #: Which of the saved tensors the forward's callables return on the host
        #: (PairMember.saves_on_host).
        self.saved_on_host: frozenset[int] = frozenset()
        #: The backward's callables; empty before it is compiled.
        self._backward: list[Partition | None] = []
        #: The callables of the backward whose programs take saved tensors at any storage offset.
        self._ready: set[int] = set()
        self._given_up: dict[int, blocks.GivenUp] = {}  #: by saved tensor
        #: Programs whose results have not been put together yet, and which saved tensor each of
        #: their results is.
        self._forwards: list[tuple[Any, list[Position]]] = []
        #: A forward is to be linked in its next call, behind which its backward gets seeds on the
        #: device; until then the backward is not worth linking.
        self.forward_waits = False
        self._when_compiled: list[Callable[[], None]] = []
        #: How many programs each of the forward's callables has.
        self._counts: list[Callable[[], int]] = []

    def count_programs(self, count: Callable[[], int]) -> None:
        """`count` says how many programs one of the forward's callables has."""
        self._counts.append(count)

    def programs_of_forward(self) -> int:
        """The most that one of its callables has."""
        return max((count() for count in self._counts), default=0)

    def save_on_host(self, saved: Collection[int]) -> None:
        """The forward's callables return these saved tensors on the host, too."""
        self.saved_on_host |= frozenset(saved)

    @property
    def layout(self) -> PairLayout:
        return self._layout()

    def add_backward(self, partition: Partition | None) -> None:
        """A callable of the backward has been compiled."""
        self._backward.append(partition)
        told, self._when_compiled = self._when_compiled, []
        for tell in told:
            tell()

    def wait_for_backward(self, tell: Callable[[], None]) -> None:
        """A forward cannot be linked before the backward is compiled, when `tell` is called."""
        self.forward_waits = True
        self._when_compiled.append(tell)

    def set_backward_aside(self) -> Callable[[], None]:
        """The backward is about to be compiled once more. What it returns undoes that."""
        aside = self._backward, self._ready, self._given_up
        self._backward, self._ready, self._given_up = [], set(), {}

        def restore() -> None:
            self._backward, self._ready, self._given_up = aside

        return restore

    @property
    def backward_is_compiled(self) -> bool:
        """Whether all callables of the backward are known."""
        return bool(self._backward)

    @property
    def callables(self) -> int:
        """How many callables of the backward there are so far."""
        return len(self._backward)

    def backward_takes(self, saved: Collection[int]) -> bool:
        """Whether callables of the backward take all of these saved tensors."""
        if None in self._backward:
            return True
        first = self.layout.sizes
        taken = {position for each in self._backward if each for position in each.inputs}
        return first is not None and {first + index for index in saved} <= taken

    def note_constants(
        self, forward: PairMember, inputs: Sequence[Position], constants: Sequence[Any]
    ) -> None:
        """Parameters and buffers of a callable of the forward, and where they are in this call."""
        self.constant_inputs = self.constant_inputs | {
            position for position in inputs if position is not None
        }
        self._constants[forward] = frozenset(
            _place(each) for each in constants if _has_memory(each)
        )

    def constants_among(self, arguments: Sequence[Any]) -> frozenset[int]:
        """Those of the backward's arguments that are parameters or buffers of the forward: they
        stay where they are from call to call, and no backward writes them."""
        places = frozenset[tuple[int, int]]().union(*self._constants.values())
        return frozenset(
            index
            for index, argument in enumerate(arguments)
            if _has_memory(argument) and _place(argument) in places
        )

    def adopt_forward(self, program: Any, saved: list[Position]) -> None:
        """A program of the forward is in service; `saved`: which saved tensor each result is."""
        program.note_saved([index for index, _ in _known(saved)])
        self._forwards = [*self._forwards[1 - _MOST_WAITING :], (program, saved)]
        self._put_together()

    def adopt_backward(self, number: int, program: Any, saved: Sequence[Position]) -> None:
        """A program of the backward's callable `number` is, which serves calls with any storage
        offsets; `saved`: which saved tensor each argument is."""
        for position, part in zip(saved, program.spent_after, strict=True):
            if position is not None:
                self._given_up[position] = blocks.GivenUp(number, part)
        self._ready.add(number)
        self._put_together()

    def release(self) -> None:
        """Lets go of programs."""
        self._forwards.clear()

    def _put_together(self) -> None:
        """What is given up together is saved in common blocks, once all of the backward is known
        to take it there: a callable that counts from the start of a storage would not, captured or
        not."""
        if not self._backward or len(self._ready) < len(self._backward):
            return
        for program, saved in self._forwards:
            given_up = ((i, self._given_up.get(position)) for i, position in _known(saved))
            blocks.merge(program, {index: part for index, part in given_up if part is not None})
        self._forwards.clear()


@dataclasses.dataclass(frozen=True)
class SavedOnHost:
    """Which results of a forward are numbers on the host that its backward takes."""

    results: frozenset[int] = frozenset()
    against: str | None = None  #: why a graph cannot serve them
    later: bool = False  #: it is not known yet


class PairMember:
    """One callable of a pair's forward or backward; an inference graph has no pair."""

    def __init__(
        self,
        role: Role,
        pair: TrainingPair | None,
        constants: Collection[int],
        device: Device,
        partition: Partition | None = None,
    ) -> None:
        self.role = role
        self._pair = pair
        self._constants = frozenset(constants)
        self._device = device
        self._partition = partition
        self._number = pair.callables if pair is not None else 0

    def count_programs(self, count: Callable[[], int]) -> None:
        """`count` says how many programs it has."""
        if self.role is Role.FORWARD and self._pair is not None:
            self._pair.count_programs(count)

    def programs_at_once(self) -> int:
        """How many programs it may have whatever linking them takes: a backward as many as its
        forward, of whose graphs it gets what only a graph takes as it is (saves_on_host)."""
        if self.role is not Role.BACKWARD or self._pair is None:
            return 0
        return self._pair.programs_of_forward()

    def note(self, arguments: Sequence[Any]) -> None:
        """Told the arguments of a call that runs uncaptured, on the thread that calls it."""
        if self.role is Role.FORWARD and self._pair is not None:
            if self._pair.stays:
                calling_thread.settle(self._device.alone())
            inputs = graph_inputs(self._partition, arguments)
            self._pair.note_constants(
                self,
                [inputs[index] for index in self._constants],
                [arguments[index] for index in self._constants],
            )

    def constants(self, arguments: Sequence[Any]) -> frozenset[int]:
        """The arguments that stand where they are from call to call."""
        if self.role is Role.BACKWARD and self._pair is not None:
            return self._pair.constants_among(arguments)
        return self._constants

    def gradients(self, count: int) -> frozenset[int]:
        """Of the `count` results of a backward, one per argument of its forward, those of
        parameters. They die at about the same time."""
        if self.role is not Role.BACKWARD or self._pair is None:
            return frozenset()
        outputs = graph_outputs(self._partition, count)
        return frozenset(
            i for i, position in _known(outputs) if position in self._pair.constant_inputs
        )

    def given(self, arguments: Sequence[Any]) -> frozenset[int]:
        """The arguments that nobody needs behind the call."""
        backward = self.role is Role.BACKWARD
        return frozenset(range(len(arguments))) if backward else frozenset()

    def held(self, arguments: Sequence[Any]) -> frozenset[int]:
        """Those of them whose memory is not free when the call has let go of them: somebody else
        has a reference, such as the caller to a result that was saved, too, and autograd to a
        gradient until the call is done."""
        having = {i: arguments[i] for i in self.given(arguments) if _has_memory(arguments[i])}
        sharing = Counter(object_of(each.untyped_storage()) for each in having.values())
        references = {index: sys.getrefcount(each) for index, each in having.items()}
        least = min(references.values(), default=0)
        return frozenset(
            index
            for index, each in having.items()
            if references[index] > least
            or holders(each) > sharing[object_of(each.untyped_storage())]
        )

    def has_moved(self, program: Any, arguments: Sequence[Any]) -> bool:
        """Whether `program` does not serve these arguments because something that it needs in place
        has moved, for good as it seems. What a forward saves keeps its places in the memory that it
        is saved in, so a backward that asks for such places is linked anew for them."""
        if program.moved(arguments):
            return True
        return self.role is Role.BACKWARD and bool(program.offsets_differ(arguments))

    def adopt(self, program: Any, arguments: Sequence[Any], any_offsets: bool = True) -> None:
        """A program is in service, which was linked for a call with `arguments`. `any_offsets`: it
        serves calls with any storage offsets."""
        if self._pair is None:
            return
        if self.role is Role.FORWARD:
            saved = self._saved_results(len(program.block_of_result))
            self._pair.adopt_forward(program, saved)
        elif self.role is Role.BACKWARD and any_offsets:
            self._pair.adopt_backward(self._number, program, self._saved_arguments(arguments))

    def release(self) -> None:
        """Programs are dropped."""
        if self._pair is not None:
            self._pair.release()

    def _saved_results(self, count: int) -> list[Position]:
        """Which saved tensor each of a forward's results is."""
        outputs = graph_outputs(self._partition, count)
        return _beyond(outputs, self._pair.layout.returned if self._pair is not None else None)

    def _saved_arguments(self, arguments: Sequence[Any]) -> list[Position]:
        """Which saved tensor each of a backward's arguments is: sizes come first, then what the
        forward saved. Gradients stand behind, with the numbers that follow."""
        inputs = graph_inputs(self._partition, arguments)
        if self._partition is None:
            first: int | None = _sizes_in_front(arguments)
        else:
            first = self._pair.layout.sizes if self._pair is not None else None
        return _beyond(inputs, first)

    # Attention with dropout saves the seed and the offset of its random numbers, two numbers. A
    # backward that runs uncaptured behind a graph of its forward must be given them on the host
    # (operators/table.py, SEEDS).

    def taken_on_host(self, arguments: Sequence[Any]) -> frozenset[int]:
        """Which arguments of a backward its callable reads on the host."""
        if self.role is not Role.BACKWARD or self._pair is None or not self._pair.saved_on_host:
            return frozenset()
        saved = _known(self._saved_arguments(arguments))
        return frozenset(index for index, each in saved if each in self._pair.saved_on_host)

    def wait_for_backward(self, tell: Callable[[], None]) -> None:
        """This forward needs its backward compiled; `tell` is called when it is."""
        if self._pair is not None:
            self._pair.wait_for_backward(tell)

    def waits_for_forward(self, arguments: Sequence[Any]) -> bool:
        """Whether a backward has seeds on the host because its forward is not linked yet: many
        calls of a forward may come before the first backward, as those of a block that is used for
        all layers do."""
        if self.role is not Role.BACKWARD or self._pair is None or not self._pair.forward_waits:
            return False
        return bool(_seeds_on_host(arguments, self._device))

    def linked_or_not(self) -> None:
        """It has been tried to link this callable."""
        if self.role is Role.FORWARD and self._pair is not None:
            self._pair.forward_waits = False

    def saves_on_host(self, run: Reference, fetched: Collection[int] = ()) -> SavedOnHost:
        """Settles which of what a forward's callable saved in a real run is on the host. `fetched`
        results are there for another reason."""
        found = _seeds_on_host(run.outputs, self._device).difference(fetched)
        if self.role is not Role.FORWARD or self._pair is None or not found:
            return SavedOnHost()
        if not self._pair.backward_is_compiled:
            return SavedOnHost(later=True)
        saved = dict(_known(self._saved_results(len(run.outputs))))
        if not found <= saved.keys():
            return SavedOnHost(
                against="it returns numbers on the host that are not saved for its backward"
            )
        taken = {saved[index] for index in found}
        if not self._pair.backward_takes(taken):
            return SavedOnHost(
                against="it saves numbers on the host that its backward's graphs do not take"
            )
        self._pair.save_on_host(taken)
        return SavedOnHost(results=found)


def _known(positions: Sequence[Position]) -> list[tuple[int, int]]:
    return [(index, each) for index, each in enumerate(positions) if each is not None]


def _beyond(positions: Sequence[Position], first: int | None) -> list[Position]:
    """Positions counted from `first`; None for those in front of it, or if it is not known."""
    return [
        position - first
        if position is not None and first is not None and position >= first
        else None
        for position in positions
    ]


def _sizes_in_front(arguments: Sequence[Any]) -> int:
    return next((i for i, value in enumerate(arguments) if type(value) is not int), 0)


def _seeds_on_host(values: Sequence[Any], device: Device) -> frozenset[int]:
    found = numbers.among(values, device)
    return frozenset(index for index in found if values[index].dtype == torch.int64)


def _has_memory(value: Any) -> bool:
    return is_strided(value) and value.numel() > 0


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensors.extent_bytes(tensor)
