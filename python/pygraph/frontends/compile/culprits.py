"""Compiling once more with an operator outside, when a capture has failed in it.

Dynamo's FX graph becomes graphs of AOTAutograd's: one for inference, or a forward and a backward.
It is one of these that is compiled again, below AOTAutograd: arguments and results, what is saved
for the backward, wrappers and guards are what they were, and no more than the code changes that the
wrappers call. So a backward's culprit does not concern its forward, and calls that are under way
finish in the code that they have begun in.

`Unit` has the order of events: a graph names its culprit in the call that was to be linked, whose
caller has its result by then; in front of the graph's next call the unit is compiled again; the
compiled function's next call after that runs the new code. Code that would not do exactly what the
old code does (Unfit) is thrown away, and all stays as it was. What is particular to a compiler is a
`Source`: FromInductor here, and that of operators one by one in aot.py.

AOTAutograd's own cache would give code without the graph that it was made from. So functions whose
operators are not torch's own are compiled past that cache (`named_beforehand`); Inductor's cache
serves them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import operator
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from pygraph.decide.culprits import CULPRITS
from pygraph.frontends.compile import hook
from pygraph.runtime import notes, registry
from pygraph.runtime.compiled_graph import CompiledGraph
from pygraph.torch_private import aot, dispatch, dynamo
from pygraph.torch_private import inductor as inductor_names
from pygraph.torch_private.graphs import copied
from pygraph.transform.parts import InParts

log = logging.getLogger(__name__)

#: Namespaces of torch's own operators.
_TORCHS_OWN = ("aten", "prims", "prim", "higher_order", "inductor")
#: Functions of torch whose operators read sizes on the host where nothing else serves.
_DOUBTFUL = ("grouped_mm",)


class Unfit(Exception):
    """What was compiled once more cannot stand in for the code that it was to replace."""


class Source(Protocol):
    """One of AOTAutograd's graphs, to be compiled as often as it takes."""

    operators: frozenset[str]  #: that it calls, as "mylib::foo"
    is_backward: bool

    def compile(self, outside: Sequence[str]) -> Any:
        """Compiles it with these operators outside of graphs; all others go to the unit's wrap."""

    def compile_again(self, outside: Sequence[str]) -> Any:
        """The same later, when Dynamo is done. Raises Unfit."""

    def put(self, compiled: Any) -> None:
        """Calls run what compile_again() returned from now on."""


@dataclasses.dataclass(frozen=True)
class Wrapped:
    """A compiled graph; whether it is all of its unit, and whether nothing but moved names comes
    before it."""

    graph: CompiledGraph
    whole: bool
    first: bool


Replaced = Callable[["Unit"], None]
Undo = Callable[[], None]


class Unit:
    """The compiled graphs that became of one of AOTAutograd's."""

    def __init__(
        self,
        source: Source,
        outside: Sequence[str],
        units: Units,
        seconds: float = 0.0,
        tentative: bool = False,
    ) -> None:
        self.source, self.outside, self.seconds = source, tuple(outside), seconds
        self.tentative = tentative  #: it may be thrown away
        self.rewrapped = False  #: it is the old code
        self.graphs: list[Wrapped] = []
        self._units = units
        self._named: list[str] = []

    def add(self, wrapped: Wrapped) -> None:
        self.graphs.append(wrapped)
        wrapped.graph.report.culprits = list(self.outside)
        wrapped.graph.report.compiled_again_s = self.seconds

    def on_culprit(self, operator: str) -> Callable[[], None] | None:
        """A capture has failed in an operator (compiled_graph.OnCulprit)."""
        name = dispatch.packet_of(operator)
        if name is None or name not in self.source.operators or name in self.outside:
            return None
        CULPRITS.learn(name)
        named = list(dict.fromkeys([*self._named, name]))
        if not CULPRITS.worth_compiling([*self.outside, *named]):
            return None
        self._named = named
        self._units.note_waiting(self, True)
        return self._compile_again

    def _compile_again(self) -> None:
        """With all operators outside that have been named until now."""
        named, self._named = self._named, []
        self._units.note_waiting(self, False)
        outside = [*self.outside, *named]
        if not named or not CULPRITS.worth_compiling(outside):
            return
        CULPRITS.count_compilation()
        names = " and ".join(outside)
        undo = self._units.make_room(self)
        new = Unit(self.source, outside, self._units, tentative=True)
        started = time.perf_counter()
        try:
            with dynamo.keeping_generators(), self._units.current(new):
                compiled = dynamo.untraced(self.source.compile_again)(outside)
            if new.rewrapped:
                raise Unfit("the code is the same")
        except Exception as error:  # whatever it is, the program goes on
            undo()
            for each in new.graphs:
                each.graph.release()
            level = logging.INFO if isinstance(error, Unfit) else logging.ERROR
            log.log(level, "not compiled again with %s outside", names, exc_info=error)
            notes.note(f"compiling once more with {names} outside came to nothing: {error}")
            return
        took = time.perf_counter() - started
        self.source.put(compiled)
        self._units.replaced(self, new, self.seconds + took)
        log.info("compiled once more with %s outside, in %.1f s", names, took)


class Units:
    """The units of one FX graph of Dynamo's. `replaced` is told a unit that took the place of one;
    `set_aside` makes room for a backward beside the old one (TrainingPair.set_backward_aside)."""

    def __init__(self, replaced: Replaced, set_aside: Callable[[], Undo]) -> None:
        self._replaced, self._set_aside = replaced, set_aside
        self._local = threading.local()
        self._waiting: set[Unit] = set()

    def compile(self, source: Source) -> Any:
        """Compiles it for the first time, without operators that have been culprits before."""
        unit = Unit(source, CULPRITS.among(source.operators), self)
        with self.current(unit):
            return source.compile(unit.outside)

    @contextlib.contextmanager
    def current(self, unit: Unit) -> Iterator[None]:
        """What this thread compiles meanwhile is the unit's."""
        previous = self.now
        self._local.unit = unit
        try:
            yield
        finally:
            self._local.unit = previous

    @property
    def now(self) -> Unit | None:
        """The unit that this thread compiles; None where code comes from AOTAutograd's cache."""
        return getattr(self._local, "unit", None)

    def note_waiting(self, unit: Unit, waits: bool) -> None:
        """A unit will be compiled once more, or is."""
        (self._waiting.add if waits else self._waiting.discard)(unit)

    @property
    def waiting(self) -> bool:
        """Whether what calls come to first, and no backward, is about to be compiled once more."""
        return any(not unit.source.is_backward for unit in self._waiting)

    def make_room(self, unit: Unit) -> Undo:
        return self._set_aside() if unit.source.is_backward else lambda: None

    def replaced(self, old: Unit, new: Unit, seconds: float) -> None:
        new.seconds, new.tentative = seconds, False
        names = " and ".join(new.outside)
        for each in old.graphs:
            reason = f"compiled once more with {names} outside, in {seconds:.1f} s"
            registry.replace(each.graph, reason)
        for each in new.graphs:
            each.graph.report.compiled_again_s = seconds
            registry.add(each.graph)
        self._replaced(new)


class FromInductor:
    """A graph as AOTAutograd gives it to Inductor's `inner_compile`, kept for a second time:
    Inductor rewrites the graph that it compiles."""

    def __init__(
        self,
        inner_compile: Callable[..., Any],
        settings: dict[str, Any],
        graph: torch.fx.GraphModule,
        inputs: Sequence[Any],
        arguments: dict[str, Any],
    ) -> None:
        """`arguments`: the other ones of `inner_compile`; `settings`: of Inductor's config."""
        self.is_backward = bool(arguments.get("is_backward"))
        self._inner_compile, self._settings = inner_compile, settings
        self._first: tuple[torch.fx.GraphModule, Sequence[Any]] | None = (graph, inputs)
        self._arguments = arguments
        self._output: Any = None
        without_memory = all(aot.is_fake(x) for x in inputs if isinstance(x, torch.Tensor))
        again = without_memory and inductor_names.partitions_graphs()
        self.operators = dispatch.packets(graph.graph) if again else frozenset()
        self._kept = Kept(graph) if again else None
        self._inputs = list(inputs)
        self._tracing = aot.Tracing.now()
        self._grad = torch.is_grad_enabled()

    def compile(self, outside: Sequence[str]) -> Any:
        assert self._first is not None
        (graph, inputs), self._first = self._first, None
        with hook.kept_outside(outside) if outside else contextlib.nullcontext():
            self._output = self._inner_compile(graph, inputs, **_fresh(self._arguments))
        return self._output

    def compile_again(self, outside: Sequence[str]) -> Any:
        assert self._kept is not None
        before = self._tracing.guards()
        with (
            self._tracing.resumed(),
            torch.set_grad_enabled(self._grad),
            inductor_names.config().patch(self._settings),
            hook.kept_outside(outside),
        ):
            graph = self._kept.again()
            output = self._inner_compile(graph, self._inputs, **_fresh(self._arguments))
        if self._tracing.guards() != before:
            raise Unfit("the new code would need further guards")
        bodies = [_body(each) for each in (self._output, output)]
        if None in map(inductor_names.callable_within, bodies) or len({*map(type, bodies)}) > 1:
            raise Unfit("Inductor returned code of an unknown form")
        old, new = map(inductor_names.output_strides, bodies)
        if old != new:
            raise Unfit("its results would have other strides")
        return output

    def put(self, compiled: Any) -> None:
        if isinstance(self._output, InParts):
            self._output.become(compiled)
        else:
            inductor_names.call_within(self._output, compiled)


def _body(output: Any) -> Any:
    """What Inductor made of a graph, or of its part on the device."""
    return output.body if isinstance(output, InParts) else output


def watched(
    units: Units, inner_compile: Callable[..., Any], settings: dict[str, Any]
) -> Callable[..., Any]:
    """An `inner_compile` for compile_fx whose graphs can be compiled again."""

    @functools.wraps(inner_compile)
    def compile_watched(graph: Any, inputs: Any, **arguments: Any) -> Any:
        if not isinstance(graph, torch.fx.GraphModule):
            return inner_compile(graph, inputs, **arguments)
        return units.compile(FromInductor(inner_compile, settings, graph, inputs, arguments))

    return compile_watched


def _fresh(arguments: dict[str, Any]) -> dict[str, Any]:
    """Lists of arguments may be written by whom they are given to."""
    return {
        name: list(value) if type(value) is list else value for name, value in arguments.items()
    }


class Kept:
    """A graph's nodes with the values in their meta, and the very tensors; graphs within it are
    kept, too. (No second module of it: to write code for that takes longer than to copy nodes.)"""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self._nodes = copied(graph.graph)
        self._meta = dict(graph.meta)
        self._held: dict[str, Any] = {}
        for node in graph.graph.nodes:
            if node.op in ("get_attr", "call_module"):
                value = operator.attrgetter(node.target)(graph)
                within = isinstance(value, torch.fx.GraphModule)
                self._held[node.target] = Kept(value) if within else value

    def again(self) -> torch.fx.GraphModule:
        """The graph once more, for whoever rewrites it."""
        held = {
            name: value.again() if isinstance(value, Kept) else value
            for name, value in self._held.items()
        }
        graph = torch.fx.GraphModule(held, copied(self._nodes))
        graph.meta = dict(self._meta)
        return graph


def named_beforehand(graph: torch.fx.GraphModule) -> bool:
    """Whether this FX graph of Dynamo's calls operators that may turn out to be culprits: those
    that torch does not have, and some that are known."""
    return any(
        _doubtful(node.target)
        for module in graph.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if node.op == "call_function"
    )


def _doubtful(target: Any) -> bool:
    name = target.name() if isinstance(target, dispatch.OpOverload) else str(target)
    if isinstance(target, (dispatch.OperatorPacket, dispatch.OpOverload)):
        namespace = str(target).split(".")[0]
        return namespace not in _TORCHS_OWN or _any(name)
    return _any(getattr(target, "__name__", name))


def _any(name: str) -> bool:
    return any(each in name for each in _DOUBTFUL)
