"""One whole step, twice side by side: as it is, and captured.

Both sides have state of their own, made from the same seed, and get the same calls and the same
random numbers. After each call everything must be the same, bit for bit: what it returned or
raised, its arguments, parameters, buffers, gradients, the state of optimizers, what else the
program has in Python, random generators on the device and the host, and which of all these tensors
are one object or share memory. What the caller keeps is compared again at the end.

Five differences are allowed. Containers that are returned may be others of the same contents.
Gradients may stand in one block of memory, in which each has a part of its own. A tensor whose
backward has been called comes back without autograd's graph, which nothing could use any more. A
backward that raises has come as far as it has: gradients are dropped behind it. And on a GPU,
values may differ by rounding.
"""

from __future__ import annotations

import dataclasses
import random
import re
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

import pygraph

from ..compare import Mismatch, error_text, same_bits, text_of
from .everything import Found, Walk, tensors
from .programs import StepCall, WholeStep, World

Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Way:
    """The way under test: how a step is captured. `ours`: there is a report."""

    device: str
    capture: Callable[[Function], Function]
    ours: bool = True


def way(name: str) -> Way:
    """twin, cuda: pygraph.capture. eager: the step as it is, to test the test."""
    if name == "eager":
        return Way("cpu", lambda step: step, ours=False)
    return Way("cpu" if name == "twin" else name, lambda step: pygraph.capture(step, device=name))


@dataclasses.dataclass
class StepOutcome:
    calls: int = 0
    raised: int = 0
    replays: int = 0
    programs: int = 0  #: that serve calls
    reasons: list[str] = dataclasses.field(default_factory=list)


#: What a late backward says of weights that were written meanwhile, and were counted.
_WRITTEN = "modified by an inplace operation"


class Side:
    """One of the two worlds."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.function: Function = world.step
        self.places: list[Found] = []  #: behind the call that is compared
        #: of tensors behind the call before, by path: themselves, their versions and values
        self.before: dict[str, tuple[weakref.ref[torch.Tensor], int, torch.Tensor]] = {}
        self.result: Any = None
        self.kept: list[Any] = []
        self.raised: str | None = None

    def call(self, call: StepCall, number: int) -> None:
        """One call, and what surrounds it."""
        self.raised, self.result = None, None
        if call.before:
            self._between(f"before_{number}")
        positional, named = self.world.arguments_of(call)
        try:
            with self.world.context(call):
                self.result = self.function(*positional, **named)
        except Exception as error:
            self.raised = _text_of(error)
        self.places = self._all_places(positional, named)

    def follow(self, call: StepCall, number: int) -> None:
        """What the caller does with the result of a call that was compared."""
        if call.kept:
            gradients = [value for path, value in self.places if path.endswith(".grad")]
            self.kept.append((self.result, gradients))
        if call.behind and self.raised is None:
            self._between(f"behind_{number}", self.result)
            if self.raised is not None:
                self._forget_gradients()
        self.before = {
            path: (weakref.ref(value), _version(value), value.detach().clone())
            for path, value in self.places
            if isinstance(value, torch.Tensor) and value.layout == torch.strided
        }
        self.places, self.result = [], None  # nothing but the caller keeps anything

    def _forget_gradients(self) -> None:
        """How far a backward that has raised has come is its own affair. It may have been that of a
        call before."""
        waiting = Walk().places(self.world.arguments_to_come, "argument")
        leaves = [
            value
            for value in tensors([*self.places, *waiting])
            if value.is_leaf and value.requires_grad
        ]
        doubtful = {id(value.grad) for value in leaves if value.grad is not None}
        self.kept = [
            (result, [each for each in gradients if id(each) not in doubtful])
            for result, gradients in self.kept
        ]
        for value in leaves:
            value.grad = None

    def _between(self, name: str, *given: Any) -> None:
        try:
            self.world.between[name](*given)
        except Exception as error:  # torch's: another optimizer's state does not fit, say
            self.raised = _text_of(error)

    def everything(self, walk: Walk | None = None) -> list[Found]:
        return list((walk or Walk()).places(self.world.everything(), "state"))

    def _all_places(self, positional: Any, named: Any) -> list[Found]:
        walk = Walk()
        found = self.everything(walk)
        found += walk.places(positional, "argument")
        found += walk.places(named, "argument")
        found += Walk(anew=True).places(self.result, "result")
        return found


def _text_of(error: Exception) -> str:
    """Autograd tells a tensor that was written by the name of a node, which may be another one."""
    return re.sub("(modified by an inplace operation): .*", r"\1", error_text(error))


def run(program: WholeStep, way: Way) -> StepOutcome:
    """Raises Mismatch, or what the way under test raised where the step as it is does not."""
    outcome = StepOutcome()
    if way.ours:
        pygraph.reset()  # others in this process have left reports
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, found = (Side(World(program, way.device)) for _ in range(2))
        found.function = way.capture(found.world.step)
        try:
            for number, call in enumerate(program.calls):
                if not _one_call(expected, found, call, number, outcome, way.ours):
                    break
            else:
                for side in (expected, found):
                    side.places = side.everything()
                _same_places(expected, found, "the last call")
                _same_kept(expected, found)
            if way.ours:
                _read_report(outcome)
        finally:
            if way.ours:
                pygraph.reset()
    return outcome


def _one_call(
    expected: Side, found: Side, call: StepCall, number: int, outcome: StepOutcome, ours: bool
) -> bool:
    """False: what follows cannot be compared."""
    where = f"call {number}"
    random.seed(number)
    start, ends = _random_state(), []
    for side in (expected, found):
        _set_random_state(start)
        side.call(call, number)
        ends.append(_random_state())
    replays = sum(graph.replays for graph in pygraph.report().graphs) if ours else 0
    replayed, outcome.replays = replays > outcome.replays, replays
    outcome.calls += 1
    outcome.raised += expected.raised is not None
    if expected.raised != found.raised:
        raise Mismatch("error", where, f"{expected.raised}, {found.raised}")
    _same_places(expected, found, where)
    # While a dispatch mode is on, torch itself does not count what foreach and fused operators
    # write. So calls that are watched do not, nor replays that a backward is to follow, which count
    # what these did.
    _same_history(expected, found, where, counts=replayed and not call.behind)
    if ends[0][1] != ends[1][1]:
        raise Mismatch("random state", f"Python after {where}")
    for left, right in zip(ends[0][0], ends[1][0], strict=True):
        if not torch.equal(left, right):
            raise Mismatch("random state", f"a device after {where}")
    for side in (expected, found):
        _set_random_state(ends[0])
        side.follow(call, number)
    if expected.raised != found.raised:
        missed = found.raised is None and _WRITTEN in (expected.raised or "")
        if not (missed and not replayed and expected.world.counts_less_when_watched):
            what = f"{expected.raised}, {found.raised}"
            raise Mismatch("error", f"the caller behind {where}", what)
        return False
    return True


def _random_state() -> tuple[list[torch.Tensor], Any]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return states, random.getstate()


def _set_random_state(state: tuple[list[torch.Tensor], Any]) -> None:
    torch.set_rng_state(state[0][0])
    for each in state[0][1:]:
        torch.cuda.set_rng_state(each)
    random.setstate(state[1])


def _same_places(expected: Side, found: Side, where: str) -> None:
    left, right = expected.places, found.places
    for (path, a), (other, b) in zip(left, right, strict=False):
        if path != other:
            raise Mismatch("structure", f"{path} after {where}", f"{other} instead")
        _same_value(a, b, f"{path} after {where}")
    if len(left) != len(right):
        raise Mismatch("structure", f"all after {where}", f"{len(left)}, {len(right)} places")
    objects, storages = zip(*map(_relations, (expected, found)), strict=True)
    paths = [path for path, value in left if isinstance(value, torch.Tensor)]
    _same_relation("identity", *objects, paths, where)
    _same_relation("shared memory", *storages, paths, where)


def _same_value(a: Any, b: Any, where: str) -> None:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        if type(a) is not type(b) or a != b:
            raise Mismatch("value", where, f"{a!r}, {b!r}")
        return
    if type(a) is not type(b):
        raise Mismatch("type", where, f"{type(a)}, {type(b)}")
    if a.layout != b.layout:
        raise Mismatch("layout", where, f"{a.layout}, {b.layout}")
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    for what in ("dtype", "device", "shape"):
        if getattr(a, what) != getattr(b, what):
            raise Mismatch(what, where, f"{getattr(a, what)}, {getattr(b, what)}")
    if a.stride() != b.stride():
        raise Mismatch("strides", where, f"{a.stride()}, {b.stride()}")
    if a.is_inference() != b.is_inference():
        raise Mismatch("inference", where, f"{a.is_inference()}, {b.is_inference()}")
    if a.requires_grad != b.requires_grad and (b.requires_grad or not _is_spent(a)):
        raise Mismatch("requires_grad", where, f"{a.requires_grad}, {b.requires_grad}")
    if not same_bits(a, b):
        raise Mismatch("bits", where, text_of(a, b))


def _is_spent(tensor: torch.Tensor) -> bool:
    """Whether autograd refuses another backward from here."""
    leaves = []
    waiting = [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None:
            if hasattr(node, "variable") and node.variable.requires_grad:
                leaves.append(node.variable)
            waiting += [before for before, _ in node.next_functions]
    if not leaves:  # they were frozen since
        return True
    try:
        torch.autograd.grad(tensor.sum(), leaves, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        return "backward through the graph a second time" in str(error)
    return False


def _relations(side: Side) -> tuple[list[int], list[int]]:
    """Of all tensors behind the last call: the first that is the same, and the first that shares
    its storage; of gradients, the first that stands in the same place."""
    seen = [value for _, value in side.places if isinstance(value, torch.Tensor)]
    gradients = {id(value) for path, value in side.places if path.endswith(".grad")}
    storages: dict[Any, int] = {}
    objects: dict[int, int] = {}
    identity, sharing = [], []
    for index, value in enumerate(seen):
        identity.append(objects.setdefault(id(value), index))
        sharing.append(storages.setdefault(_memory(value, id(value) in gradients), index))
    return identity, sharing


def _memory(value: torch.Tensor, gradient: bool) -> Any:
    if value.layout != torch.strided or not value.numel():
        return id(value)
    return value.data_ptr() if gradient else value.untyped_storage()._cdata


def _same_relation(
    what: str, left: Sequence[int], right: Sequence[int], paths: Sequence[str], where: str
) -> None:
    if left != right:
        index = next(i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b)
        details = f"with {paths[left[index]]}; found: with {paths[right[index]]}"
        raise Mismatch(what, f"{paths[index]} after {where}", details)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _same_history(expected: Side, found: Side, where: str, counts: bool) -> None:
    """What stayed the same object on one side did on the other. `counts`: what got other values
    counts as written, too."""
    for (path, a), (_, b) in zip(expected.places, found.places, strict=True):
        if not isinstance(a, torch.Tensor) or path not in expected.before:
            continue
        (before_a, version_a, bits), (before_b, version_b, _) = (
            side.before[path] for side in (expected, found)
        )
        stayed = before_a() is a, before_b() is b
        if stayed[0] != stayed[1]:
            raise Mismatch("staying", f"{path} after {where}", f"{stayed[0]}, {stayed[1]}")
        missed = _version(a) != version_a and _version(b) == version_b
        if counts and missed and stayed[0] and not same_bits(a, bits):
            raise Mismatch("version", f"{path} after {where}", "written, and not counted")


def _same_kept(expected: Side, found: Side) -> None:
    for number, (left, right) in enumerate(zip(expected.kept, found.kept, strict=True)):
        where = f"what was kept {number}"
        kept = (Walk(anew=True).places(each, where) for each in (left, right))
        pairs = zip(*kept, strict=True)
        for (path, a), (_, b) in pairs:
            _same_value(a, b, f"{path}, at the end")


def _read_report(outcome: StepOutcome) -> None:
    report = pygraph.report()
    for graph in report.graphs:
        outcome.programs += graph.graphed
        if not graph.graphed:
            outcome.reasons.append(graph.reason or f"no reason given ({graph.state})")
    outcome.reasons += report.events
