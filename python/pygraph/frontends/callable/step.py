"""A callable as the linker sees it: a function of one list of tensors, without side effects but for
what it writes into them.

Each run begins with the Python state that the call began with, and leaves that behind: what the
callable rebinds (a gradient, an attribute that gets a new tensor) is among the results, and is put
in its place once, by the call that all of this is for.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from pygraph.capturing.device import CaptureFailed, Device
from pygraph.capturing.host_numbers import Computed
from pygraph.frontends.callable.differences import difference
from pygraph.frontends.callable.lifting import Lifted, Substitution
from pygraph.frontends.callable.returned import (
    Returned,
    require_part,
    take_apart,
    waits_for_backward,
)
from pygraph.frontends.callable.structure import NotDescribed, Owner, Tree
from pygraph.frontends.callable.traced import Tape
from pygraph.frontends.callable.watching import backwards_here, casts_anew
from pygraph.torch_private.autograd import set_versions
from pygraph.torch_private.dispatch import tree_leaves, tree_map
from pygraph.torch_private.storages import Seen, resizes_seen
from pygraph.torch_private.tensors import object_of, parts_of, version

#: Makes the tree of a call with these positional and named arguments, at this moment.
Describe = Callable[[list[Any], dict[str, Any]], Tree]
#: What code raises that does not like a number.
_OF_NUMBERS = (ArithmeticError, AssertionError, LookupError, TypeError, ValueError)


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a callable."""

    positional: list[Any]
    named: dict[str, Any]
    tree: Tree  #: what it is made of, before it runs


@dataclasses.dataclass
class FinishedRun:
    """One run of a callable, and what it did to what it was made of."""

    value: Any  #: what it returned
    before: Tree
    rebound: dict[int, Any]  #: what places of that tree were given
    change: str | None  #: what else is not what it was; None: nothing

    def problem(self) -> str | None:
        """Why no replay can stand for such a run; None: it can."""
        if self.change is not None:
            return f"it changes what a replay does not: {self.change}"
        homeless = next((n for n in self.rebound if n not in self.before.owners), None)
        if homeless is not None:
            return f"it puts another tensor in {self.before.path(homeless)}"
        return None

    def waits(self) -> bool:
        """Whether a backward can be called on something that it returned or rebound."""
        own = set(map(id, self.before.leaves))
        made = [t for t in tensors_in([self.value, *self.rebound.values()]) if id(t) not in own]
        return any(map(waits_for_backward, made))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors among what a callable returns."""
    return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]


def run(
    function: Callable[..., Any],
    positional: list[Any],
    named: dict[str, Any],
    describe: Describe,
    before: Tree,
) -> FinishedRun:
    """Calls the function, which is made of `before`, once. Raises what it raises."""
    own = set(map(id, before.leaves))
    memory = _memory_of(before.leaves)
    value = without_spent_graphs(function(*positional, **named), own)
    if (moved := _first_moved(before, memory)) is not None:
        return FinishedRun(value, before, {}, f"{moved} got other memory")
    try:
        after = describe(positional, named)
    except NotDescribed as error:
        return FinishedRun(value, before, {}, str(error))
    found = difference(before, after)
    rebound = {one: without_spent_graphs(after.held[two], own) for one, two in found.rebound}
    return FinishedRun(value, before, rebound, found.change)


#: A storage, which nothing else can stand in for while it is held, and where a tensor begins.
_Memory = tuple[torch.UntypedStorage, int]


def _memory_of(leaves: Sequence[Any]) -> dict[int, _Memory]:
    """By number."""
    return {
        number: (leaf.untyped_storage(), leaf.data_ptr())
        for number, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor)
    }


def _first_moved(tree: Tree, memory: Mapping[int, _Memory]) -> str | None:
    """The first tensor that is the same object on other memory, as `p.data = other` makes it."""
    for number, (storage, address) in memory.items():
        leaf = tree.leaves[number]
        if leaf.data_ptr() != address or object_of(leaf.untyped_storage()) != object_of(storage):
            return tree.path(tree.leaf_places[number])
    return None


def without_spent_graphs(value: Any, own: Collection[int]) -> Any:
    """What a callable returned, with tensors that stand in front of nothing in place of those that
    no backward can be called on any more. `own`: tensors that are left as they are, by id().

    What is left of autograd's graph would keep the nodes alive that accumulate gradients, which
    know the stream that they were made for: a capture on another one fails in them (torch,
    csrc/autograd/engine.cpp, evaluate_function)."""
    known: dict[int, torch.Tensor] = {}

    def replaced(each: Any) -> Any:
        if not isinstance(each, torch.Tensor) or id(each) in own or not each.requires_grad:
            return each
        if id(each) not in known:
            known[id(each)] = each if waits_for_backward(each) else each.detach()
        return known[id(each)]

    if all(replaced(each) is each for each in tree_leaves(value)):
        return value  # with its own containers
    return tree_map(replaced, value)


class Step:
    """What a CompiledGraph calls. Its results are the tensors of what is returned and rebound."""

    def __init__(
        self,
        function: Callable[..., Any],
        describe: Describe,
        device: Device,
        varying: Collection[int] = (),
    ) -> None:
        """`varying`: the places of numbers that are arguments."""
        self._varying = varying
        self._tape = Tape()  #: of the last capture
        self._function = function
        self._describe = describe
        self._device = device
        self.form: Returned | None = None  #: of all runs
        self.slots: list[int] = []  #: the places that are rebound
        self._call: Call | None = None  #: that has begun
        self._lifted: Sequence[Lifted] = ()  #: what a run for real is given
        self.first: FinishedRun | None = None  #: of the call that has begun
        self._problem: CaptureFailed | None = None

    def begin(self, call: Call, lifted: Sequence[Lifted]) -> list[Any]:
        """A call begins. Returns what this is to be called with."""
        self._call, self._lifted = call, lifted
        self.first = self._problem = None
        return [each.value for each in lifted]

    def gradients(self) -> list[int]:
        """The results that tensors get for gradients."""
        if self.first is None or self.form is None:
            return []
        owners = self.first.before.owners
        bound = zip(self.slots, self.form.bound, strict=True)
        return [number for place, number in bound if number >= 0 and owners[place].key == "grad"]

    def computed(self) -> list[Computed]:
        """The numbers among the arguments, and what the last capture has computed of them."""
        return self._tape.computed

    @property
    def decided(self) -> Collection[int]:
        """The arguments whose numbers have decided in the last capture what is computed."""
        return self._tape.decided

    @property
    def leaves(self) -> list[Any]:
        """The tensors of the call that has begun."""
        return [] if self._call is None else self._call.tree.leaves

    def end(self) -> None:
        """It has ended."""
        self._call = self.first = None
        self._lifted = ()

    def is_real(self, arguments: Sequence[Any]) -> bool:
        """Whether a run is given what the caller has, but for numbers, and what was brought from
        the host: it is in no capture."""
        pairs = zip(self._lifted, arguments, strict=True)
        return all(
            each.value is other or each.is_number or self._is_brought(each, other)
            for each, other in pairs
        )

    def _is_brought(self, argument: Lifted, other: torch.Tensor) -> bool:
        captured = self._device.space().contains
        return argument.is_staged(self._device) and not captured(other.data_ptr())

    def __call__(self, arguments: list[Any]) -> list[Any]:
        assert self._call is not None
        pairs = zip(self._lifted, arguments, strict=True)
        numbers = {n: other for n, (each, other) in enumerate(pairs) if each.is_number}
        real = self.is_real(arguments)
        counted = [] if real and self.first is None else self.leaves
        with backwards_here(), casts_anew(), _uncounted(counted):
            if real:
                with self._in_place(numbers):
                    return self._for_real(self._call)
            self._tape = Tape()
            traced = {n: self._tape.number(n, value) for n, value in numbers.items()}
            with self._in_place(traced):
                return self._captured(self._call, arguments, traced)

    @contextlib.contextmanager
    def _in_place(self, numbers: Mapping[int, Any]) -> Iterator[None]:
        """Has the callable find these numbers, by argument, in their places."""
        assert self._call is not None
        tree, replaced = self._call.tree, []
        try:
            for n, number in numbers.items():
                place = tree.leaf_places[self._lifted[n].leaf]
                owner, original = tree.number_owners[place], self._lifted[n].value
                if number is not original:
                    _put(owner, number, tree.path(place))
                    replaced.append((owner, original))
            yield
        finally:
            for owner, original in replaced:
                owner.put(original)

    def _for_real(self, call: Call) -> list[Any]:
        first = self.first is None
        before = call.tree if first else self._described(call.positional, call.named)
        try:
            made = run(self._function, call.positional, call.named, self._describe, before)
        finally:
            if not first:
                call.tree.restore()
        if not first:
            return self._results(made)
        # The caller has its result; a capture will say what is wrong with it.
        self.first, problem = made, made.problem()
        if problem is not None:  # what it has changed stays changed
            self._problem = CaptureFailed(problem)
            return []
        call.tree.restore()
        try:
            return self._results(made)
        except CaptureFailed as error:
            self._problem = error
            return []

    def _described(self, positional: list[Any], named: dict[str, Any]) -> Tree:
        tree = self._describe(positional, named)
        tree.vary(self._varying)
        return tree

    def _captured(self, call: Call, stand_ins: list[Any], numbers: Collection[int]) -> list[Any]:
        if self._problem is not None:
            raise self._problem
        mode = Substitution([each.value for each in self._lifted], stand_ins, self._device)
        given, given_by_name = _replaced(call.positional, mode), _replaced(call.named, mode)
        try:
            for optimizer in call.tree.optimizers:
                switch_to_capturable(optimizer)  # restored with the tree
            before = self._described(given, given_by_name)
            with mode, resizes_seen(self._resized(call.tree)):
                made = run(self._function, given, given_by_name, self._describe, before)
        except _OF_NUMBERS as error:
            if not numbers:
                raise
            raise CaptureFailed(f"with other numbers it raises {error!r}") from error
        finally:
            call.tree.restore()
        for argument, method in self._tape.decided.items():
            place = call.tree.path(call.tree.leaf_places[self._lifted[argument].leaf])
            raise CaptureFailed(f"{place} decides what is computed ({method})")
        return self._results(made)

    def _resized(self, tree: Tree) -> Seen:
        """In a capture a storage gets memory of the capture's. It must have none before, and
        restore() must know that, or it must be the capture's already."""
        emptied = {object_of(each.untyped_storage()) for each in tree.emptied}
        space = self._device.space()

        def see(original: Callable[[Any, int], Any], storage: Any, size: int) -> Any:
            if object_of(storage) in emptied or space.contains(storage.data_ptr()):
                return original(storage, size)
            raise CaptureFailed(
                f"it resizes a storage of {storage.nbytes()} bytes that is in nothing it reads, or "
                "has memory before the call"
            )

        return see

    def _results(self, made: FinishedRun) -> list[Any]:
        if made.waits():
            raise CaptureFailed("a backward can be called on what it returns, unlike before")
        return list(self._taken_apart(made).tensors)

    def _taken_apart(self, made: FinishedRun) -> Returned:
        returned = take_apart(made.value, list(made.rebound.values()), made.before)
        if self.form is None:
            self.form, self.slots = returned.without_tensors(), list(made.rebound)
        elif made.change is not None:
            raise CaptureFailed(f"it changes what a replay does not: {made.change}")
        elif not self.form.same_form(returned) or self.slots != list(made.rebound):
            raise CaptureFailed("two runs of the same call do not return or rebind the same")
        return returned


def _put(owner: Owner, number: Any, path: str) -> None:
    try:
        owner.put(number)
    except Exception as error:  # an object that allows no change
        raise CaptureFailed(f"{path} cannot be given another value: {error}") from error


@contextlib.contextmanager
def _uncounted(tensors: Sequence[Any]) -> Iterator[None]:
    """What is written to these tensors meanwhile does not count: it is undone, or was in a capture.
    Autograd would refuse a backward that needs them as the call has left them."""
    known = (each for each in tensors if isinstance(each, torch.Tensor) and not each.is_inference())
    before = [(each, version(each)) for each in known]
    try:
        yield
    finally:
        written = [(each, was) for each, was in before if version(each) != was]
        set_versions([each for each, _ in written], [was for _, was in written])


def switch_to_capturable(optimizer: torch.optim.Optimizer) -> None:
    """Where an optimizer's steps are fused, the device counts them whether they are to be captured
    or not, but torch refuses to capture them if not (torch/optim/optimizer.py,
    _cuda_graph_capture_health_check)."""
    for group in optimizer.param_groups:
        if group.get("fused") and group.get("capturable") is False:
            group["capturable"] = True


def steps_on_host(optimizers: Sequence[torch.optim.Optimizer], device: Device) -> str | None:
    """Why a step of these optimizers cannot be captured, if they count their steps on the host."""
    for each in optimizers:
        counts = (state["step"] for state in each.state.values() if "step" in state)
        if any(isinstance(count, torch.Tensor) and not device.owns(count) for count in counts):
            return (
                f"{type(each).__name__} counts its steps on the host; make it with fused=True or "
                "capturable=True"
            )
    return None


def _replaced(value: Any, mode: Substitution) -> Any:
    """An argument with stand-ins in place of its tensors, as far as its containers are plain."""
    if parts_of(value):
        part, layout = require_part(value)
        return layout.made_of(mode.of(part)).requires_grad_(value.requires_grad)
    if isinstance(value, torch.Tensor):
        other = mode.of(value)
        if other is not value and value.requires_grad:
            other.requires_grad_(True)
        return other
    if type(value) in (tuple, list):
        return type(value)(_replaced(each, mode) for each in value)
    if type(value) is dict:
        return {key: _replaced(each, mode) for key, each in value.items()}
    return value
