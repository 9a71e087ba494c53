"""What the calls of a compiled callable are like, learned from two of them.

In front of a graph Dynamo has a frame of Python code, its guards, and code that it has made. What
these do in a call is learned from an example, and done by the engine (src/callable/captured.h):

1. *Which state counts* is told by the guards: all that they look at is compared (guarded.py).
2. *Where arguments come from* is told by identity: each of the graph's is one of the caller's
   tensors, or one of those that guards look at. Both are found again by the comparison.
3. *What is returned* is told by identity, too, in two calls. Dynamo's code does no more than that:
   its instructions are read (bytecode.py).
4. *Nothing else runs*: between the call of the callable and Dynamo's code stand functions of
   torch's alone, and hooks are compared as well.

A call in which anything is different goes to the callable, guards and all.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph._engine import OutputKind
from pygraph.frontends.callable.structure import is_atom
from pygraph.frontends.compile.bytecode import Set, beside_graph
from pygraph.frontends.compile.guarded import CallState, NotComparable, StateBuilder
from pygraph.runtime.compiled_graph import CompiledGraph
from pygraph.torch_private import dynamo, modes, modules


class NotFrozen(RuntimeError):
    """A compiled callable cannot be frozen; the text says what was found, and what is needed."""


@dataclasses.dataclass(frozen=True)
class Way:
    """From Dynamo's code to a graph; see connect_entry_point()."""

    entry_point: Callable[..., Any]
    order: list[int]
    results: list[int]
    parts: Sequence[tuple[int, str]] = ()
    counted: Sequence[int] = ()


def with_parts(arguments: Sequence[Any], parts: Sequence[tuple[int, str]]) -> list[Any]:
    """Arguments, and behind them what some of them are made of."""
    return [*arguments, *(getattr(arguments[index], name) for index, name in parts)]


class WatchedCall:
    """One call of a compiled callable that was watched at its entry point."""

    def __init__(self) -> None:
        self.arguments: tuple[Any, ...] = ()
        self.results: Sequence[Any] = ()
        self.frames: list[types.FrameType] = []
        self.count = 0
        self.value: Any = None
        self._thread = threading.get_ident()

    def note(self, arguments: tuple[Any, ...], results: Sequence[Any]) -> None:
        """It comes by the entry point."""
        if threading.get_ident() != self._thread:
            return
        self.frames = frames_up_to(sys._getframe(1), Example.watch.__code__)
        self.count += 1
        self.arguments, self.results = arguments, results

    def forget(self) -> None:
        """Its arguments and its frames."""
        self.frames, self.arguments, self.results = [], (), ()


@dataclasses.dataclass(frozen=True)
class Likeness:
    """What two calls have in common that one example is of."""

    code: types.CodeType
    """Dynamo's."""
    arguments: list[tuple[int, Any]]
    """Which leaf of the state is each argument of the graph; or the mesh that one is."""
    counted: list[int]
    """The leaves whose versions a call counts up."""
    output: list[tuple[OutputKind, int, int, Any]]

    def fits(self, other: Likeness) -> bool:
        mine, others = ((each.arguments, each.counted, each.output) for each in (self, other))
        return self.code is other.code and mine == others


@dataclasses.dataclass(frozen=True)
class Lesson:
    """What one call has shown. Holds its arguments."""

    likeness: Likeness
    state: CallState
    modes: _engine.ModeGuard


class Example:
    """Calls that are alike, and the graph that serves them."""

    def __init__(self, name: str, graph: CompiledGraph, way: Way) -> None:
        """`name`: of the callable, in what is said of it."""
        self.name = name
        self.graph = graph
        self._way = way
        self._labels: list[str] = []
        self._modes: _engine.ModeGuard | None = None

    def watch(self, call: Callable[[], Any]) -> WatchedCall:
        """Makes one call, with which arguments its graph is called, and by whom."""
        seen = WatchedCall()
        _engine.set_watcher(self._way.entry_point, seen.note)
        try:
            seen.value = call()
        finally:
            _engine.set_watcher(self._way.entry_point, None)
        return seen

    def learn(
        self,
        compiled: Callable[..., Any],
        seen: WatchedCall,
        given: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Lesson:
        """Of a call of `compiled` with these arguments. Raises NotFrozen."""
        if seen.count != 1:
            raise NotFrozen(f"{self.name} calls its graph {seen.count} times in one call")
        require_no_modes(self.name)
        code, sets = self._against_frames(seen)
        state = self._compare(compiled, code, sets, seen, given, named)
        frame = next(each for each in seen.frames if each.f_code is code)
        if not dynamo.admits(code, frame.f_locals):
            raise NotFrozen(f"what the guards of {self.name} look at has changed in its call")
        order = self._sources(seen, state, self._way.order)
        counted = [leaf for leaf, _ in self._sources(seen, state, self._way.counted)]
        found = Likeness(code, order, counted, self._form(seen, state))
        return Lesson(found, state, modes.same_for_compiled_code())

    def install(
        self,
        calls: _engine.CapturedFunction,
        first: Likeness,
        second: Lesson,
        once_decided: bool = False,
    ) -> None:
        """Has `calls` serve calls like these two from now on. `once_decided`: not while it is being
        found out whether the graph pays. Raises NotFrozen."""
        if not first.fits(second.likeness):
            raise NotFrozen(f"two calls of {self.name} with the same arguments differ")
        calls.add(
            second.state.nodes,
            second.state.roots,
            second.modes,
            arguments=[(leaf, [], mesh) for leaf, mesh in first.arguments],
            rebound=[],
            written=first.counted,
            output=first.output,
            dispatcher=self.graph.dispatcher,
            owner=self,
            once_decided=once_decided,
        )
        self._labels, self._modes = second.state.labels, second.modes

    def difference(
        self, calls: _engine.CapturedFunction, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> str | None:
        """What is not as it was; None: nothing."""
        if self._modes is not None and not self._modes():
            return "torch's modes are others"
        place = calls.first_mismatch(self, positional, named)
        if place is None:
            return None
        written = re.sub(
            r"\._(?:modules|parameters|buffers)\['([^']*)']", r".\1", self._labels[place]
        )
        return f"{written} is not what it was"

    def _against_frames(self, seen: WatchedCall) -> tuple[types.CodeType, tuple[Set, ...]]:
        """The code that Dynamo has made, if it and torch alone run in a call; and what it sets."""
        frame, *outer = (each for each in seen.frames if not _leaves_as_it_is(each))
        code = frame.f_code
        strange = [each.f_code for each in outer if not dynamo.is_of_calls(each.f_code)]
        if dynamo.code_before(code) is None or strange:
            who = strange[0] if strange else code
            raise NotFrozen(
                f"{who.co_qualname} ({who.co_filename}:{who.co_firstlineno}) runs in each call of "
                f"{self.name} in front of its graph, which a frozen call would leave out; needed: "
                "what torch.compile has returned, compiled as a whole"
            )
        beside = beside_graph(code, frame.f_globals)
        if beside.reason is not None:
            raise NotFrozen(
                f"the code that Dynamo has made of {self.name} does more than to call its graph "
                "and return tuples, lists and dictionaries of what that returns: "
                f"{beside.reason}; needed: a function that changes nothing but what it returns, "
                "in one graph (fullgraph=True)"
            )
        return code, beside.sets

    def _compare(
        self,
        compiled: Any,
        code: types.CodeType,
        sets: Sequence[Set],
        seen: WatchedCall,
        example: tuple[Any, ...],
        named: dict[str, Any],
    ) -> CallState:
        """The tree of a call, by what guards look at, and by what the code sets: in a call that is
        like this one it is that already."""
        guarded = dynamo.guarded_by(code)
        if guarded is None:
            raise NotFrozen(f"torch {torch.__version__} does not tell what its guards look at")
        for each in sets:
            if vars(each.owner).get(each.name, each) is not each.value:
                raise NotFrozen(f"{self.name} sets {each.source}, which is another thing again")
            guarded.append(dynamo.Guarded(each.source, frozenset()))
        frame = next(each for each in seen.frames if each.f_code is code)
        bound = _bound(compiled, code)
        function, variables = bound.function, dict(frame.f_locals)
        callers = _given(bound, code, example, named)
        free = {name: variables[name] for name in code.co_freevars if name in variables}
        objects: dict[str, Any] = {}
        if function is None:  # torch's around a module that Dynamo does not trace by itself
            strange = [n for n, value in free.items() if not isinstance(value, torch.nn.Module)]
            if strange:
                raise NotFrozen(f"the function that Dynamo compiled of {self.name} is not found")
            objects |= {type(value).__name__: value for value in free.values()}
        for owner in bound.owners:
            name = type(owner).__name__
            while name in objects:
                name = f"another {name}"
            objects[name] = owner
        try:
            builder = StateBuilder(example, named)
            builder.see(guarded, variables, frame.f_globals, callers)
            builder.add_variables(frame.f_globals)
            for partial in bound.partials:
                builder.see_partial(partial)
            for module in {id(m): m for m in (compiled, *objects.values())}.values():
                if isinstance(module, torch.nn.Module):
                    objects.setdefault(type(module).__name__, module)
                    self._see_module(builder, module)
            for hooks in modes.HOOKS["torch.nn.modules.module"]:
                builder.see_dictionary(hooks, "a hook on all modules")
                objects[f"a hook on all modules {id(hooks)}"] = hooks
            return builder.build(function, objects)
        except NotComparable as error:
            raise NotFrozen(
                f"{self.name} cannot be frozen, since what it depends on cannot be compared from "
                f"call to call: {error}"
            ) from None

    def _see_module(self, builder: StateBuilder, module: torch.nn.Module) -> None:
        """What runs around its forward, in front of Dynamo's code or behind."""
        name = type(module).__name__
        hooks = modules.hooks_on(module)
        for each, table in hooks.items():
            if table:
                raise NotFrozen(f"{name} has hooks ({each}), which run beside its graph")
        builder.see_attributes(module, name, hooks)
        builder.see_method(module, "forward")

    def _sources(
        self, seen: WatchedCall, state: CallState, order: Sequence[int]
    ) -> list[tuple[int, Any]]:
        place: dict[int, tuple[int, Any]] = {id(mesh): (0, mesh) for mesh in state.handles}
        place |= {id(leaf): (number, None) for number, leaf in enumerate(state.leaves)}
        given = with_parts(seen.arguments, self._way.parts)
        found = [place.get(id(given[index])) for index in order]
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            raise NotFrozen(
                f"argument {found.index(None)} of {self.graph.report.name} is none of the caller's "
                "tensors, and none that a guard looks at; needed: a call that makes no tensors in "
                "front of its graph"
            )
        return known

    # ------------------------------------------------------------------ what is returned

    def _form(self, seen: WatchedCall, state: CallState) -> list[tuple[OutputKind, int, int, Any]]:
        """How what a call returned is made of the graph's results."""
        parts: list[tuple[OutputKind, int, int, Any]] = []
        order = self._way.results
        graphs = {
            id(each): order[number] if order else number
            for number, each in enumerate(seen.results)
            if isinstance(each, torch.Tensor)
        }
        leaves = {id(each): number for number, each in enumerate(state.leaves)}

        def add(value: Any) -> None:
            if isinstance(value, torch.Tensor):
                if id(value) in graphs:
                    parts.append((OutputKind.RESULT, graphs[id(value)], 0, None))
                    return
                if id(value) in leaves:
                    parts.append((OutputKind.LEAF, leaves[id(value)], 0, None))
                    return
            elif is_atom(value):
                parts.append((OutputKind.CONSTANT, 0, 0, value))
                return
            elif type(value) in (tuple, list):
                kind = OutputKind.TUPLE if type(value) is tuple else OutputKind.LIST
                parts.append((kind, 0, len(value), None))
                for each in value:
                    add(each)
                return
            elif type(value) is dict and all(map(is_atom, value)):
                parts.append((OutputKind.DICT, 0, len(value), tuple(value)))
                for each in value.values():
                    add(each)
                return
            raise NotFrozen(
                f"{self.name} returns a {type(value).__name__} that is not its graph's; needed: "
                "the graph's results, tensors that were given to it, numbers and texts, and "
                "tuples, lists and dictionaries of them"
            )

        add(seen.value)
        return parts


def _leaves_as_it_is(frame: types.FrameType) -> bool:
    """Whether it does nothing but call on."""
    of_ours = frame.f_globals.get("__name__") == f"{__package__}.past_guards"
    return of_ours or frame.f_code is dynamo.code_around_backend()


def frames_up_to(
    frame: types.FrameType | None, end: types.CodeType | None = None
) -> list[types.FrameType]:
    """It, and those that have called it, up to one that runs `end`."""
    found = []
    while frame is not None and frame.f_code is not end:
        found.append(frame)
        frame = frame.f_back
    return found


def require_no_modes(name: str) -> None:
    """Raises NotFrozen under modes that see operators before torch does."""
    if modes.foreign_modes():
        raise NotFrozen(
            f"{name} is to be frozen under a dispatch or function mode, a transform of "
            "torch.func's, or hooks on what autograd saves; needed: none of these"
        )


def name_of(compiled: Any) -> str:
    behind = dynamo.module_behind(compiled)
    return getattr(behind, "__qualname__", type(behind).__name__)


@dataclasses.dataclass(frozen=True)
class _Bound:
    """The function that Dynamo has compiled, and what its first arguments are bound to."""

    function: Any = None
    """None: torch's own."""
    arguments: tuple[Any, ...] = ()
    owners: tuple[Any, ...] = ()
    """The module that has it as its `forward`, and the object whose method it is."""
    partials: tuple[functools.partial[Any], ...] = ()


def _bound(compiled: Any, code: types.CodeType) -> _Bound:
    """By the code that Dynamo has made of it."""
    before = dynamo.code_before(code)
    if before is None or dynamo.is_of_calls(before):
        return _Bound()
    given = dynamo.original(compiled)
    module = dynamo.module_behind(compiled)
    owners = module, given, getattr(given, "__self__", None)
    for each in (given, *(getattr(owner, "forward", None) for owner in owners)):
        found = _unbound(each)
        if getattr(found.function, "__code__", None) is before:
            around = isinstance(module, torch.nn.Module) and module not in found.owners
            return dataclasses.replace(found, owners=(module, *found.owners)) if around else found
    return _Bound()


def _unbound(function: Any) -> _Bound:
    """A method, or what functools.partial has made of one, or of a function."""
    if isinstance(function, functools.partial) and not function.keywords:
        within = _unbound(function.func)
        arguments = (*within.arguments, *function.args)
        partials = (*within.partials, function)
        return dataclasses.replace(within, arguments=arguments, partials=partials)
    if isinstance(function, types.MethodType):
        return _Bound(function.__func__, (function.__self__,), (function.__self__,))
    return _Bound(function)


def _given(
    bound: _Bound, code: types.CodeType, example: tuple[Any, ...], named: dict[str, Any]
) -> frozenset[str]:
    """The variables of a frame that its caller has given."""
    count = code.co_argcount + code.co_kwonlyargcount
    flags = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS
    stars = code.co_varnames[count : count + sum(bool(code.co_flags & each) for each in flags)]
    if bound.function is None:
        return frozenset([*code.co_varnames[:count], *stars])
    first = len(bound.arguments)
    if first > code.co_argcount:
        raise NotFrozen(f"{bound.function.__qualname__} is bound to more than its own arguments")
    signature = inspect.signature(bound.function, follow_wrapped=False)
    given = signature.bind(*bound.arguments, *example, **named).arguments
    return frozenset([*list(given)[first:], *stars])
