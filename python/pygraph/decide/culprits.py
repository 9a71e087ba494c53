"""Which operators are kept outside of graphs, and whether one more is worth compiling again for.

A capture that fails names its culprit. Compiling once more with that operator outside takes about
as long as compiling did, so it is bounded: per graph, and in the whole process. What was learned
serves graphs that are compiled later: they have such operators outside from the start.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

#: Operators outside of one graph of AOTAutograd's.
MOST_PER_GRAPH = 3
#: Compilations of a process that only culprits have caused.
MOST_COMPILATIONS = 8
#: Operators that are remembered; the first ones stay.
MOST_REMEMBERED = 16


class Culprits:
    """Those of a process, by the names of their packets ("mylib::foo")."""

    def __init__(self) -> None:
        self._known: dict[str, None] = {}
        self._compilations = 0

    def among(self, operators: Collection[str]) -> tuple[str, ...]:
        """Those that a graph of these operators is compiled without from the start."""
        return tuple(each for each in self._known if each in operators)[:MOST_PER_GRAPH]

    def learn(self, operator: str) -> None:
        """A capture has failed in this one."""
        if len(self._known) < MOST_REMEMBERED:
            self._known[operator] = None

    def worth_compiling(self, outside: Sequence[str]) -> bool:
        """Whether a graph may be compiled once more with these outside."""
        return len(outside) <= MOST_PER_GRAPH and self._compilations < MOST_COMPILATIONS

    def count_compilation(self) -> None:
        """A graph is compiled once more."""
        self._compilations += 1

    def clear(self) -> None:
        """Forgets everything."""
        self.__init__()  # type: ignore[misc]


CULPRITS = Culprits()
