"""`debug="paranoid"`: the proof of a deployed graph is repeated now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pygraph.adapter.graphed import Graphed


class Paranoid:
    """Calls a graph, and has its proof repeated every `interval` calls (`debug="paranoid"`)."""

    _boxed_call = True

    def __init__(self, graph: Graphed, interval: int) -> None:
        self._graph = graph
        self._interval = interval
        self._count = 0

    def __call__(self, arguments: list[Any]) -> Any:
        self._count += 1
        if self._count % self._interval == 0:
            return self._graph.prove_again(arguments)
        return self._graph.dispatcher(arguments)
