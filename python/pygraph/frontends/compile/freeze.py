"""`pygraph.freeze`: calls of a compiled callable that go to its graph without Dynamo.

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

import contextlib
import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from pygraph import _engine
from pygraph._engine import OutputKind
from pygraph.frontends.callable.structure import is_atom
from pygraph.frontends.compile.bytecode import does_more
from pygraph.frontends.compile.entry_point import Connector
from pygraph.frontends.compile.guarded import CallState, NotComparable, StateBuilder
from pygraph.reporting import FALLBACK
from pygraph.runtime import registry
from pygraph.runtime.compiled_graph import CompiledGraph
from pygraph.torch_private import dynamo, modes, modules
from pygraph.torch_private.autograd import count_up_versions

#: Calls with the example until one of them is served by a graph; two more are watched.
_MOST_CALLS = 30

Compiled = TypeVar("Compiled", bound=Callable[..., Any])


class NotFrozen(RuntimeError):
    """A compiled callable cannot be frozen; the text says what was found, and what is needed."""


def freeze(compiled: Callable[..., Any], /, *example: Any, **named: Any) -> Frozen:
    """Calls of `compiled`, which torch.compile has returned (backend="pygraph"), that go to its
    graph without Dynamo and its guards. `example`, `named`: the arguments of a call, with which
    `compiled` is called up to 32 times. The result is called in its place, for inference.

    Calls that are like the example are served by the graph: with tensors of the same shapes, with
    the same numbers and texts, in the same modes of torch's, while all that the guards look at is
    the same: attributes, variables, the shapes of parameters. Any other call goes to `compiled`.
    Raises NotFrozen."""
    return Frozen(compiled, _Example(compiled, example, named))


class Frozen(_engine.EngineCalled):
    """What freeze() returns: called as the compiled callable is, and from several threads, too."""

    def __init__(self, compiled: Callable[..., Any], made: _Example) -> None:
        self._calls = _engine.CapturedFunction(self._miss, count_up_versions, dynamo.set_asked)
        super().__init__(self._calls)
        self._compiled = compiled
        self._made = made
        self._misses = 0
        self._reason: str | None = None
        made.install(self._calls)

    @property
    def misses(self) -> int:
        """Calls that went to the compiled callable."""
        return self._misses

    @property
    def reason(self) -> str | None:
        """Why the last of these did; None: there was none."""
        return self._reason

    def compared(self, *positional: Any, **named: Any) -> str | None:
        """What keeps a call with these arguments from the graph now; None: nothing, as far as can
        be told without making it."""
        return self._made.difference(self._calls, positional, named)

    def __repr__(self) -> str:
        why = "" if self._reason is None else f", the last because {self._reason}"
        calls = f"{self._misses} calls went to the compiled callable{why}"
        return f"<frozen {self._made.name}, of {self._made.graph.report.name}: {calls}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "a frozen callable is tied to its module and its graph, and can be neither pickled nor "
            "copied; freeze the compiled callable again where it is needed"
        )

    def _miss(self, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self._misses += 1
        self._reason = self.compared(*positional, **named) or "its graph did not take the call"
        return self._compiled(*positional, **named)


class _Seen:
    """One call of a compiled callable that was watched at its entry point."""

    def __init__(self) -> None:
        self.arguments: tuple[Any, ...] = ()
        self.results: Sequence[Any] = ()
        self.frames: list[types.FrameType] = []
        self.count = 0
        self.value: Any = None


class _Example:
    """What is known of the calls that are like the example."""

    def __init__(
        self, compiled: Callable[..., Any], example: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        self.name = _name_of(compiled)
        if not dynamo.is_compiled(compiled):
            raise NotFrozen(
                f"{self.name} is nothing that torch.compile has returned; needed: "
                'torch.compile(..., backend="pygraph"), a function or a module'
            )
        if modes.foreign_modes():
            raise NotFrozen(
                f"{self.name} is to be frozen under a dispatch or function mode, a transform of "
                "torch.func's, or hooks on what autograd saves; needed: none of these"
            )
        call = functools.partial(compiled, *example, **named)
        self.graph, self._connector = self._warm(call)
        first = self._watch(call)
        code = self._against_frames(first)
        self._state = self._compare(compiled, code, first, example, named)
        self._modes = modes.same_for_compiled_code()
        self._arguments = self._sources(first)
        self._output = self._form(first)
        second = self._watch(call)
        if self._against_frames(second) is not code or self._form(second) != self._output:
            raise NotFrozen(f"two calls of {self.name} with the same arguments differ")

    # ------------------------------------------------------------------ with an example

    def _warm(self, call: Callable[[], Any]) -> tuple[CompiledGraph, Connector]:
        """Calls it until a graph serves it, and finds that."""
        found: list[CompiledGraph] = []
        for _ in range(_MOST_CALLS):
            before = {each: (each.dispatcher.calls, each.dispatcher.replays) for each in _graphs()}
            call()
            found = [
                each for each in _graphs() if each.dispatcher.calls != before.get(each, (0, 0))[0]
            ]
            if len(found) == 1 and found[0].report.state == FALLBACK:
                break
            if len(found) == 1 and found[0].dispatcher.replays > before.get(found[0], (0, 0))[1]:
                return found[0], self._connector_of(found[0])
        raise NotFrozen(f"{self.name} is not served by one graph: {_told(found)}")

    def _connector_of(self, graph: CompiledGraph) -> Connector:
        connector = graph.way_in
        if not isinstance(connector, Connector) or not graph.report.past_wrappers:
            what = "the wrappers around it have work to do in each call"
            if graph.report.before_wrappers:
                what = "it is a forward, whose wrappers note what a backward needs"
            raise NotFrozen(
                f"calls of {self.name} do not lead past AOTAutograd's wrappers to "
                f"{graph.report.name}: {what}; needed: inference (torch.no_grad()) that writes no "
                "argument and returns no view of one, on tensors of the device"
            )
        return connector

    def _watch(self, call: Callable[[], Any]) -> _Seen:
        """Makes one call, with which arguments its graph is called, and by whom."""
        seen, here = _Seen(), sys._getframe()

        def probe(*arguments: Any) -> Any:
            frame: types.FrameType | None = sys._getframe(1)
            while frame is not None and frame is not here:
                seen.frames.append(frame)
                frame = frame.f_back
            seen.count += 1
            seen.arguments = arguments
            seen.results = self._connector.compiled(*arguments)
            return seen.results

        with self._watched_by(probe):
            seen.value = call()
        if seen.count != 1:
            raise NotFrozen(f"{self.name} calls its graph {seen.count} times in one call")
        return seen

    @contextlib.contextmanager
    def _watched_by(self, probe: Callable[..., Any]) -> Iterator[None]:
        self.graph.hold(True)
        _engine.set_slow(self._connector.entry_point, probe)
        try:
            yield
        finally:
            _engine.set_slow(self._connector.entry_point, self._connector.compiled)
            self.graph.hold(False)

    def _against_frames(self, seen: _Seen) -> types.CodeType:
        """The code that Dynamo has made, if it and torch alone run in a call."""
        frames = [each for each in seen.frames if each.f_code is not dynamo.code_around_backend()]
        frame, *outer = frames
        code = frame.f_code
        strange = [each.f_code for each in outer if not dynamo.is_of_calls(each.f_code)]
        if dynamo.code_before(code) is None or strange:
            who = strange[0] if strange else code
            raise NotFrozen(
                f"{who.co_qualname} ({who.co_filename}:{who.co_firstlineno}) runs in each call of "
                f"{self.name} in front of its graph, which a frozen call would leave out; needed: "
                "what torch.compile has returned, compiled as a whole"
            )
        more = does_more(code, frame.f_globals)
        if more is not None:
            raise NotFrozen(
                f"the code that Dynamo has made of {self.name} does more than to call its graph "
                f"and return tuples, lists and dictionaries of what that returns: {more}; needed: "
                "a function that changes nothing but what it returns, in one graph (fullgraph=True)"
            )
        return code

    def _compare(
        self,
        compiled: Any,
        code: types.CodeType,
        seen: _Seen,
        example: tuple[Any, ...],
        named: dict[str, Any],
    ) -> CallState:
        """The tree of a call, by what guards look at."""
        guarded = dynamo.guarded_by(code)
        if guarded is None:
            raise NotFrozen(f"torch {torch.__version__} does not tell what its guards look at")
        frame = next(each for each in seen.frames if each.f_code is code)
        function, own = _function_of(compiled, code)
        variables = dict(frame.f_locals)
        callers = _given(function, own, code, example, named)
        free = {name: variables[name] for name in code.co_freevars if name in variables}
        objects: dict[str, Any] = {}
        if function is None:  # torch's around a module that Dynamo does not trace by itself
            strange = [n for n, value in free.items() if not isinstance(value, torch.nn.Module)]
            if strange:
                raise NotFrozen(f"the function that Dynamo compiled of {self.name} is not found")
            objects |= {type(value).__name__: value for value in free.values()}
        if own is not None:
            objects[type(own).__name__] = own
        try:
            builder = StateBuilder(example, named)
            builder.see(guarded, variables, frame.f_globals, callers)
            builder.add_variables(frame.f_globals)
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
        hooks = [each for each in vars(module) if each.endswith(modules.HOOKS)]
        for each in hooks:
            if vars(module)[each]:
                raise NotFrozen(f"{name} has hooks ({each}), which run beside its graph")
        builder.see_attributes(module, name, hooks)
        builder.see_method(module, "forward")

    def _sources(self, seen: _Seen) -> list[int]:
        """Which leaf of the state is each argument of the graph."""
        place = {id(leaf): number for number, leaf in enumerate(self._state.leaves)}
        found = [place.get(id(seen.arguments[index]), -1) for index in self._connector.order]
        if -1 in found:
            raise NotFrozen(
                f"argument {found.index(-1)} of {self.graph.report.name} is none of the caller's "
                "tensors, and none that a guard looks at; needed: a call that makes no tensors in "
                "front of its graph"
            )
        return found

    # ------------------------------------------------------------------ what is returned

    def _form(self, seen: _Seen) -> list[tuple[OutputKind, int, int, Any]]:
        """How what a call returned is made of the graph's results."""
        parts: list[tuple[OutputKind, int, int, Any]] = []
        order = self._connector.results
        graphs = {
            id(each): order[number] if order else number
            for number, each in enumerate(seen.results)
            if isinstance(each, torch.Tensor)
        }
        leaves = {id(each): number for number, each in enumerate(self._state.leaves)}

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

    # ------------------------------------------------------------------ afterwards

    def install(self, calls: _engine.CapturedFunction) -> None:
        """Has `calls` served from now on."""
        arguments: list[tuple[int, list[tuple[int, int]]]] = [
            (leaf, []) for leaf in self._arguments
        ]
        roots = self._state.roots
        calls.add(
            self._state.nodes,
            roots,
            self._modes,
            arguments=arguments,
            rebound=[],
            written=[],
            output=self._output,
            dispatcher=self.graph.dispatcher,
            owner=self,
        )
        self._labels = self._state.labels
        del self._state

    def difference(
        self, calls: _engine.CapturedFunction, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> str | None:
        """What is not as in the example; None: nothing."""
        if not self._modes():
            return "torch's modes are others"
        place = calls.first_mismatch(self, positional, named)
        if place is None:
            return None
        written = re.sub(
            r"\._(?:modules|parameters|buffers)\['([^']*)']", r".\1", self._labels[place]
        )
        return f"{written} is not what it was"


def _graphs() -> list[CompiledGraph]:
    return registry.live()


def _name_of(compiled: Any) -> str:
    behind = dynamo.module_behind(compiled)
    return getattr(behind, "__qualname__", type(behind).__name__)


def _told(graphs: Sequence[CompiledGraph]) -> str:
    """What the graphs of a call are, where they are not one that serves it."""
    if not graphs:
        return 'its calls come to no graph of PyGraph\'s; needed: backend="pygraph"'
    if len(graphs) > 1:
        names = ", ".join(each.report.name for each in graphs)
        return (
            f"{len(graphs)} graphs are called ({names}); needed: one, without graph breaks "
            "(fullgraph=True tells where they are)"
        )
    report = graphs[0].refresh_report()
    return f"{report.name} is no CUDA graph: {report.reason or f'it is still {report.state}'}"


def _function_of(compiled: Any, code: types.CodeType) -> tuple[Any, Any]:
    """The function whose code Dynamo has made `code` of, and what it is bound to. None: torch's
    own."""
    before = dynamo.code_before(code)
    given = dynamo.original(compiled)
    module = dynamo.module_behind(compiled)
    for each in (given, getattr(module, "forward", None), getattr(given, "forward", None)):
        function = getattr(each, "__func__", each)
        if getattr(function, "__code__", None) is before:
            return function, getattr(each, "__self__", None)
    return None, None


def _given(
    function: Any,
    own: Any,
    code: types.CodeType,
    example: tuple[Any, ...],
    named: dict[str, Any],
) -> frozenset[str]:
    """The variables of a frame that its caller has given."""
    count = code.co_argcount + code.co_kwonlyargcount
    flags = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS
    stars = code.co_varnames[count : count + sum(bool(code.co_flags & each) for each in flags)]
    if function is None:
        return frozenset([*code.co_varnames[:count], *stars])
    signature = inspect.signature(function, follow_wrapped=False)
    positional = example if own is None else (own, *example)
    given = signature.bind(*positional, **named).arguments
    first = next(iter(given), "") if own is not None else None
    return frozenset([*(name for name in given if name != first), *stars])
