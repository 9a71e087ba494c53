"""What the nodes of a capture read and write, by who launched them: torch's operators, by their
schemas, and kernels of the callable's own, as far as who compiled it tells (holdings.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pygraph import _engine
from pygraph.operators import accesses


class Launches:
    """Of one capture, by the thread that makes it."""

    def __init__(self, count: Callable[[], int]) -> None:
        """`count`: how many nodes the capture has."""
        self.known: list[_engine.KnownNodes] = []
        self._count = count

    def note(
        self, nodes: tuple[int, int], target: Any, args: Any, kwargs: Any, result: Any
    ) -> None:
        """An operator's, as counts before and after."""
        self.known.append(accesses.known_nodes(nodes, target, args, kwargs, result))

    def around(
        self, launch: Callable[[], Any], touches: Callable[[], Sequence[_engine.Touch]]
    ) -> Any:
        """A kernel's, which passes no operator: Tell of holdings.py."""
        before = self._count()
        result = launch()
        after = self._count()
        if after > before:
            self.known.append(_engine.KnownNodes(before, after, list(touches())))
        return result
