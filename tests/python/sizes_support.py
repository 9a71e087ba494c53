"""A callable with one dynamic size, called directly: for tests of which sizes get a program."""

from __future__ import annotations

from typing import Any

from places import Place, assert_bits

from pygraph.decide import budget
from pygraph.runtime.compiled_graph import CompiledGraph


def scale(arguments: list[Any]) -> list[Any]:
    x, factor = arguments
    arguments.clear()
    return [x * factor]


def serve(graph: CompiledGraph, place: Place, factor: int) -> None:
    x = place.randn(8)
    given = [x, factor]
    assert_bits(graph.dispatcher(given), [x * factor])
    assert given == []


def later(graph: CompiledGraph, seconds: float) -> None:
    """Linking may go on in so many seconds."""
    budget.BUDGET.clear()
    budget.BUDGET.spend(seconds / budget.PATIENCE, on_top=False)
    graph.dispatcher.open_bypass_to_all(seconds)
