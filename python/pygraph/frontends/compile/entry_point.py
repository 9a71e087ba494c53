"""Straight from Dynamo's call to the graph, past wrappers that do nothing.

AOTAutograd and Inductor put five to ten Python functions between Dynamo's bytecode and a compiled
graph; for a plain inference graph all they do is reorder a list, but with a thousand parameters
that costs more than the launch. An entry point (src/entry/entry_point.h) skips them for a compiled
function when three things hold:

1. AOTAutograd's metadata says that its wrappers have nothing to do: no argument that they write, no
   output to rebuild from an alias, no tokens, no functionalised generator. Two things that they do
   the entry point does, too: it counts the versions of arguments that the graph writes, and takes
   tensors apart that are made of others, as DTensor's are.
2. Inductor's generated outer function only moves names around one call of the one partition: its
   source is read and every statement must be of a known, inert form.
3. In the call that deployed the graph, every argument that reached the graph was one of the
   caller's objects, or what one of them is made of, and every result that reached the caller was
   one of the graph's.

1 and 2 make 3 a property of the function and not of that one call. Where any of them fails, the
whole stack stays in place.

In front of a forward, 1 never holds: its wrappers make an autograd.Function of it. There the entry
point launches the graph and calls the wrappers then, which find it launched when they come to it
(src/speculation/speculation.h). That needs of 2 only what comes before the graph, and of 3 only the
arguments. Wrappers that replace one (detached, as a base of views, as a part of a subclass) do so
in every call of the function, so 2 and 3 make it a property of the function again; and each call is
compared with what was launched, object by object.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import logging
import sys
from collections.abc import Callable, Collection, Sequence
from types import FrameType
from typing import Any, cast

from pygraph import _engine
from pygraph.frontends.compile import past_guards
from pygraph.frontends.compile.example import Example, Way, frames_up_to, with_parts
from pygraph.frontends.compile.generated import functions_around
from pygraph.frontends.compile.speculation import Permit, install
from pygraph.runtime.compiled_graph import CompiledGraph
from pygraph.torch_private.autograd import count_up_versions
from pygraph.torch_private.distributed import is_handle
from pygraph.torch_private.tensors import parts_of

log = logging.getLogger(__name__)

#: Tells how a graph may be launched before the guards, once that must be known.
AskPermit = Callable[[], Permit | None]


@dataclasses.dataclass(frozen=True)
class Destination:
    """A graph that calls may reach sooner."""

    graph: CompiledGraph
    before_wrappers: bool
    """The wrappers run behind its launch; False: the calls lead past them, which are inert."""
    ask: AskPermit | None
    """Who says how it may be launched before the guards; None: it may not."""
    past_guards: bool
    """Calls may go past the guards, too."""
    arguments: int | None = None
    """How many the wrappers take that calls are led past."""
    counted: Sequence[int] = ()
    """Those whose versions are counted up, since the graph writes them."""


class Connector:
    """Watches the slow path until the graph is deployed, then connects the entry point, which is
    what to give Dynamo in place of `compiled`."""

    def __init__(
        self,
        compiled: Callable[..., Any],
        destination: Destination,
        is_provisional: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_provisional`: the graph is about to be compiled once more."""
        self.compiled = compiled
        self._is_provisional = is_provisional
        self._deployed: tuple[Sequence[Any], Sequence[Any]] | None = None
        self._connected = False
        self._before_guards: _BeforeGuards | None = None
        self.entry_point = cast(Callable[..., Any], _engine.make_entry_point(self._watch))
        self._lead_to(destination)

    def lead(self, destination: Destination | None) -> None:
        """The graphs behind the wrappers are others from now on; None: none can be reached sooner.
        An entry point that was connected stays so: its graph serves no call any more, and each
        takes the slow path."""
        self._graph.watch_deployments(None)
        self._deployed = None
        if destination is None or self._connected:
            _engine.set_slow(self.entry_point, self.compiled)
        else:
            self._lead_to(destination)

    def _lead_to(self, destination: Destination) -> None:
        self._to = destination
        self._graph = destination.graph
        self._graph.watch_deployments(self._note)

    def _note(self, arguments: Sequence[Any], outputs: Sequence[Any]) -> None:
        self._deployed = arguments, outputs

    def _watch(self, *arguments: Any) -> Any:
        results = self.compiled(*arguments)
        if self._deployed is not None and self._is_provisional():
            self._deployed = None
        if self._deployed is not None:
            deployed, self._deployed = self._deployed, None
            self._graph.watch_deployments(None)  # or each call that is linked would be held
            self._connect(arguments, results, *deployed)
            _engine.set_slow(self.entry_point, self.compiled)
        return results

    def _connect(self, outer: Any, outer_results: Any, inner: Any, inner_results: Any) -> None:
        if self._to.before_wrappers and self._graph.takes_more_than_one:
            # A launch that is dropped would have been one more than other ranks make; and that the
            # streams of several GPUs are the same by then is not known.
            return
        crossing = {id(inner[index]) for index in self._graph.fallback.crossing.staged}
        wrapped = self._to.before_wrappers
        parts = [] if wrapped else parts_among(outer)
        order = arguments_between(
            lambda value: (
                id(value) in crossing or self._graph.device.owns(value) or is_handle(value)
            ),
            outer,
            inner,
            parts,
        )
        results = None if wrapped else results_between(outer_results, inner_results)
        of_others = self._to.arguments not in (None, len(outer))
        if order is None or (results is None and not wrapped) or of_others:
            name = self._graph.report.name
            log.debug("%s: wrappers stay, an object was replaced on its way", name)
            return
        counted = [] if wrapped else list(self._to.counted)
        counts = _engine.connect_entry_point(
            self.entry_point,
            self._graph.dispatcher,
            len(outer),
            order,
            results,
            parts=parts,
            counted=counted,
            count_up=count_up_versions,
        )
        self._connected = True
        self.way = Way(self.entry_point, order, results or [], parts, counted)
        self._graph.note_entry_point(wrapped, counts, self)
        if parts:  # a guess finds arguments of the caller's, and no parts of them
            self._to = dataclasses.replace(self._to, ask=None)
        frames = frames_up_to(sys._getframe(2))
        if wrapped or not self._to.past_guards or not self._lead_past_guards(frames):
            self._stay(frames)

    def _lead_past_guards(self, frames: Sequence[FrameType]) -> bool:
        example = Example(self._graph.report.name, self._graph, self.way)
        through = past_guards.lead(frames, example, self._stay)
        if through is None:
            return False
        found = self._launch_before_guards(frames) if self._graph.selecting.measures else None
        if found is not None:
            go_back = functools.partial(through.forget, example)
            self._graph.selecting.try_past(found.program, go_back, found.withdraw)
        return True

    def _stay(self, frames: Sequence[FrameType]) -> None:
        """No call goes past the guards."""
        found = self._before_guards or self._launch_before_guards(frames)
        if found is not None and not found.always:
            self._graph.selecting.try_early(found.program, found.withdraw)

    def _launch_before_guards(self, frames: Sequence[FrameType]) -> _BeforeGuards | None:
        """For a call that is on its way."""
        program = self._graph.dispatcher.oldest
        if self._to.ask is None or program is None or not program.without_trace:
            return None
        if self._graph.device.peers:
            return None  # for the same reason
        permit = self._to.ask()
        withdraw = None if permit is None else install(self.entry_point, permit, frames)
        if permit is not None and withdraw is not None:
            self._graph.report.before_guards = True
            self._before_guards = _BeforeGuards(program, withdraw, permit.always)
        return self._before_guards


@dataclasses.dataclass(frozen=True)
class _BeforeGuards:
    """A program that is launched before the guards."""

    program: Any
    withdraw: Callable[[], None]
    always: bool


def parts_among(outer: Sequence[Any]) -> list[tuple[int, str]]:
    """What those of the caller's arguments are made of that are made of other tensors."""
    return [(index, name) for index, value in enumerate(outer) for name in parts_of(value)]


def arguments_between(
    owns: Callable[[Any], bool],
    outer: Sequence[Any],
    inner: Sequence[Any],
    parts: Sequence[tuple[int, str]] = (),
) -> list[int] | None:
    """Which of the caller's arguments is each of the graph's, by identity, or which of the `parts`,
    counted behind them. None when one of the graph's is nowhere, or is there twice, or the caller
    has one that is not a tensor which the graph takes (`owns`)."""
    return _positions(with_parts(outer, parts), inner) if all(map(owns, outer)) else None


def results_between(outer: Any, inner: Sequence[Any]) -> list[int] | None:
    """Which of the graph's results is each of the caller's; [] for all of them in their order. None
    when one is nowhere, or is there twice."""
    if not isinstance(outer, (list, tuple)):
        return None
    results = _positions(inner, outer)
    if results is None:
        return None
    return [] if results == list(range(len(inner))) else results


def _positions(among: Sequence[Any], wanted: Sequence[Any]) -> list[int] | None:
    tensors = [item for item in among if not is_handle(item)]
    if len({id(item) for item in tensors}) != len(tensors):
        return None
    place = {id(item): index for index, item in enumerate(among)}
    found = [place.get(id(item), -1) for item in wanted]
    return None if -1 in found else found


# ------------------------------------------------------------------------- what is known beforehand


def covers_everything(model: Callable[..., Any]) -> bool:
    """Whether `model`, as Inductor gave it to the hook, is the whole compiled graph: code that was
    not partitioned, the outer function itself, or the only partition of an outer function that
    does nothing else."""
    return all(
        len(partitions) == 1 and model is partitions[0] and _only_moves_names(statements)
        for partitions, statements in functions_around(model)
    )


def returned_once(model: Callable[..., Any], results: Collection[int]) -> bool:
    """Whether the compiled graph around `model` returns something of its own for each of these
    results: generated code may return one buffer for several."""
    for _, statements in functions_around(model):
        returned = next((each for each in statements if isinstance(each, ast.Return)), None)
        if returned is None or not isinstance(returned.value, (ast.Tuple, ast.List)):
            return False
        names = [ast.unparse(each) for each in returned.value.elts]
        if any(index >= len(names) or names.count(names[index]) > 1 for index in results):
            return False
    return True


def hands_over(model: Callable[..., Any], given: Collection[int]) -> bool:
    """Whether the compiled graph around `model` does nothing but call it, and return its results or
    views of them; and nothing with these arguments but hand them over."""
    for partitions, statements in functions_around(model):
        if len(partitions) != 1 or model is not partitions[0] or not statements:
            return False
        *before, last = statements
        if not _only_moves_names(before) or not _only_views(last):
            return False
        names = _arguments(statements)
        used = [each.id for each in _names_in(statements) if isinstance(each.ctx, ast.Load)]
        if any(index >= len(names) or used.count(names[index]) > 1 for index in given):
            return False
    return True


def _only_views(statement: ast.stmt) -> bool:
    """Whether it returns what has names, views of that, or None."""
    returned = statement.value if isinstance(statement, ast.Return) else None
    return isinstance(returned, (ast.Tuple, ast.List)) and all(
        isinstance(_viewed(each), ast.Name) or ast.unparse(each) == "None" for each in returned.elts
    )


def _viewed(returned: ast.expr) -> ast.expr:
    if isinstance(returned, ast.Call) and ast.unparse(returned.func) == "reinterpret_tensor":
        return returned.args[0]
    return returned


def _arguments(statements: list[ast.stmt]) -> list[str]:
    """What generated code calls its arguments, in their order."""
    for each in statements:
        if isinstance(each, ast.Assign) and ast.unparse(each.value) == "args":
            return [name.id for name in _names_in([each.targets[0]])]
    return []


def _names_in(code: Sequence[ast.AST]) -> list[ast.Name]:
    return [each for part in code for each in ast.walk(part) if isinstance(each, ast.Name)]


def comes_first(model: Callable[..., Any]) -> bool:
    """Whether nothing happens in a call of the compiled graph before `model` runs: it is all of it,
    or the first partition of an outer function that does nothing in front of that."""
    return all(
        any(model is first for first in partitions[:1])
        and _only_moves_names(_up_to_the_first_call(statements))
        for partitions, statements in functions_around(model)
    )


def _up_to_the_first_call(statements: list[ast.stmt]) -> list[ast.stmt]:
    for index, statement in enumerate(statements):
        if _is_call_of_first(statement):
            return statements[: index + 1]
    return []


def _only_moves_names(statements: list[ast.stmt]) -> bool:
    """But for one call of the first partition, and at most clearing the list of arguments."""
    calls = sum(_is_call_of_first(statement) for statement in statements)
    return calls == 1 and all(_is_inert(statement) for statement in statements)


def _is_clear(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and ast.unparse(statement) == "args.clear()"


def _is_inert(statement: ast.stmt) -> bool:
    if _is_clear(statement):
        return True
    if isinstance(statement, ast.Delete):
        return all(_only_names(target) for target in statement.targets)
    if isinstance(statement, ast.Return):
        return statement.value is not None and _only_names(statement.value)
    if isinstance(statement, ast.Assign):
        value = statement.value
        if isinstance(value, ast.Call):
            return _is_call_of_first(statement)
        return _only_names(value) and all(_only_names(target) for target in statement.targets)
    return False


def _is_call_of_first(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Assign)
        and all(_only_names(target) for target in statement.targets)
        and isinstance(statement.value, ast.Call)
        and ast.unparse(statement.value.func) == "self.partitions[0]"
        and not statement.value.keywords
        and all(_only_names(argument) for argument in statement.value.args)
    )


def _only_names(expression: ast.expr) -> bool:
    if isinstance(expression, (ast.Tuple, ast.List)):
        return all(isinstance(element, ast.Name) for element in expression.elts)
    return isinstance(expression, ast.Name)
