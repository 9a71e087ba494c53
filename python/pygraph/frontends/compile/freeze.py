"""`pygraph.freeze`: calls of a compiled callable that go to its graph without Dynamo.

How such calls are told, and what they leave out, is learned from an example (example.py).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from pygraph import _engine
from pygraph.frontends.compile.entry_point import Connector
from pygraph.frontends.compile.example import (
    Example,
    Lesson,
    NotFrozen,
    Way,
    name_of,
    require_no_modes,
)
from pygraph.reporting import FALLBACK
from pygraph.runtime import registry
from pygraph.runtime.compiled_graph import CompiledGraph
from pygraph.torch_private import dynamo
from pygraph.torch_private.autograd import count_up_versions

#: Calls with the example until one of them is served by a graph; two more are watched.
_MOST_CALLS = 30

Compiled = TypeVar("Compiled", bound=Callable[..., Any])


def freeze(compiled: Callable[..., Any], /, *example: Any, **named: Any) -> Frozen:
    """Calls of `compiled`, which torch.compile has returned (backend="pygraph"), that go to its
    graph without Dynamo and its guards. `example`, `named`: the arguments of a call, with which
    `compiled` is called up to 32 times. The result is called in its place, for inference.

    Calls that are like the example are served by the graph: with tensors of the same shapes, with
    the same numbers and texts, in the same modes of torch's, while all that the guards look at is
    the same: attributes, variables, the shapes of parameters. Any other call goes to `compiled`.
    Raises NotFrozen."""
    name = name_of(compiled)
    if not dynamo.is_compiled(compiled):
        raise NotFrozen(
            f"{name} is nothing that torch.compile has returned; needed: "
            'torch.compile(..., backend="pygraph"), a function or a module'
        )
    require_no_modes(name)
    call = functools.partial(compiled, *example, **named)
    graph = _warm(name, call)
    made = Example(name, graph, _way_to(name, graph))
    with _held(graph):
        first = made.learn(compiled, made.watch(call), example, named)
        second = made.learn(compiled, made.watch(call), example, named)
    return Frozen(compiled, made, first, second)


class Frozen(_engine.EngineCalled):
    """What freeze() returns: called as the compiled callable is, and from several threads, too."""

    def __init__(
        self, compiled: Callable[..., Any], made: Example, first: Lesson, second: Lesson
    ) -> None:
        self._calls = _engine.CapturedFunction(self._miss, count_up_versions, dynamo.set_asked)
        super().__init__(self._calls)
        self._compiled = compiled
        self._made = made
        self._misses = 0
        self._reason: str | None = None
        made.install(self._calls, first.likeness, second)

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


def _warm(name: str, call: Callable[[], Any]) -> CompiledGraph:
    """Calls it until a graph serves it, and finds that."""
    found: list[CompiledGraph] = []
    for _ in range(_MOST_CALLS):
        before = {each: (each.dispatcher.calls, each.dispatcher.replays) for each in _graphs()}
        call()
        found = [each for each in _graphs() if each.dispatcher.calls != before.get(each, (0, 0))[0]]
        if len(found) == 1 and found[0].report.state == FALLBACK:
            break
        if len(found) == 1 and found[0].dispatcher.replays > before.get(found[0], (0, 0))[1]:
            return found[0]
    raise NotFrozen(f"{name} is not served by one graph: {_told(found)}")


def _way_to(name: str, graph: CompiledGraph) -> Way:
    connector = graph.way_in
    if not isinstance(connector, Connector) or not graph.report.past_wrappers:
        what = "the wrappers around it have work to do in each call"
        if graph.report.before_wrappers:
            what = "it is a forward, whose wrappers note what a backward needs"
        raise NotFrozen(
            f"calls of {name} do not lead past AOTAutograd's wrappers to "
            f"{graph.report.name}: {what}; needed: inference (torch.no_grad()) that writes no "
            "argument and returns no view of one, on tensors of the device"
        )
    return connector.way


@contextlib.contextmanager
def _held(graph: CompiledGraph) -> Iterator[None]:
    """No call goes past Dynamo meanwhile."""
    graph.hold(True)
    try:
        yield
    finally:
        graph.hold(False)


def _graphs() -> list[CompiledGraph]:
    return registry.live()


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
