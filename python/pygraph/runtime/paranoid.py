"""`debug="paranoid"`: the proof of a deployed graph is repeated now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Serve = Callable[[list[Any]], Any]


class Paranoid:
    """Serves calls by `graph`, and every `interval`-th by `prove_again`, which proves it again."""

    def __init__(self, graph: Serve, prove_again: Serve, interval: int) -> None:
        self._graph = graph
        self._prove_again = prove_again
        self._interval = interval
        self._count = 0

    def __call__(self, arguments: list[Any]) -> Any:
        self._count += 1
        serve = self._graph if self._count % self._interval else self._prove_again
        return serve(arguments)
