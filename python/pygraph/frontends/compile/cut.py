"""A graph of AOTAutograd's cut around operators that are to run outside of graphs.

Nodes keep their order. An operator that is outside is a piece of its own, with the nodes that take
its results apart; what lies between two of them is a piece, too. Pieces hand values on by number.
Each is given all sizes that the graph is given: a program is chosen by a call's integers, and they
must tell its tensors' sizes.
(torch.fx.passes.split_module would do, but makes modules whose single results are not in a list,
and keeps all values to the end.)
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pygraph.runtime.partition import Partition, Position
from pygraph.torch_private import aot, symbols
from pygraph.torch_private.dispatch import OpOverload, calls_one_of


@dataclasses.dataclass(frozen=True)
class Piece:
    """Nodes that follow each other. `inputs` and `outputs` are values by number: the graph's
    arguments come first."""

    graph: torch.fx.GraphModule
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    partition: Partition  #: where they are among the graph's arguments and results
    outside: bool  #: it is an operator that is to run outside
    first: bool  #: nothing computes before it
    sized: bool  #: the sizes of its tensors follow from the integers that it is given

    @property
    def fits(self) -> bool:
        """Whether a graph can serve it, and would have anything to do."""
        return (
            not self.outside
            and self.sized
            and any(
                isinstance(node.target, OpOverload) and not node.target.is_view
                for node in self.graph.graph.nodes
            )
        )


Run = Callable[[list[Any]], Sequence[Any]]


@aot.boxed
class Cut:
    """Runs pieces one after the other, each by a callable of a list of arguments; a value is let go
    of when nobody needs it any more."""

    def __init__(
        self, pieces: Sequence[Piece], runs: Sequence[Run], results: Sequence[Any]
    ) -> None:
        """`results`: of the graph; a value by number as a `Value`, others as they are."""
        wanted = {each.number for each in results if isinstance(each, Value)}
        self._steps: list[tuple[Run, list[tuple[int, bool]], tuple[int, ...]]] = []
        for piece, run in reversed(list(zip(pieces, runs, strict=True))):
            inputs = [(number, number not in wanted) for number in piece.inputs]
            wanted.update(piece.inputs)
            self._steps.insert(0, (run, inputs, piece.outputs))
        self._results = list(results)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        values = dict(enumerate(arguments))
        arguments.clear()
        for run, inputs, outputs in self._steps:
            given = [values.pop(each) if last else values[each] for each, last in inputs]
            values.update(zip(outputs, run(given), strict=True))
        return [values[each.number] if isinstance(each, Value) else each for each in self._results]


@dataclasses.dataclass(frozen=True)
class Value:
    """A value of the graph, by number."""

    number: int


def cut(graph: torch.fx.GraphModule, outside: Sequence[str]) -> tuple[list[Piece], list[Any]]:
    """The pieces in their order, and the graph's results as Cut takes them."""
    nodes = list(graph.graph.nodes)
    arguments = [node for node in nodes if node.op == "placeholder"]
    computed = [node for node in nodes if node.op not in ("placeholder", "get_attr", "output")]
    results = list(nodes[-1].args[0])
    sizes = [node for node in arguments if isinstance(node.meta.get("val"), torch.SymInt)]
    known = {symbol for node in sizes for symbol in symbols.is_one(node.meta["val"])}
    numbers = {node: number for number, node in enumerate([*arguments, *computed])}
    place, around = _places(computed, outside)
    pieces: list[Piece] = []
    for number in sorted(set(place.values())):
        inside = [node for node in computed if place[node] == number]
        sources = [
            source
            for node in inside
            for source in node.all_input_nodes
            if source.op != "get_attr" and place.get(source) != number
        ]
        inputs = list(dict.fromkeys([*sizes, *sources]))
        outputs = [
            node
            for node in inside
            if any(user.op == "output" or place.get(user) != number for user in node.users)
        ]
        pieces.append(
            Piece(
                _part(graph, inputs, inside, outputs),
                tuple(numbers[node] for node in inputs),
                tuple(numbers[node] for node in outputs),
                Partition(
                    tuple(_position(node, arguments) for node in inputs),
                    tuple(_position(node, results) for node in outputs),
                ),
                outside=number in around,
                first=not pieces,
                sized=all(symbols.of(node.meta.get("val")) <= known for node in inputs),
            )
        )
    named = [Value(numbers[each]) if isinstance(each, torch.fx.Node) else each for each in results]
    return pieces, named


def _places(
    computed: Sequence[torch.fx.Node], outside: Sequence[str]
) -> tuple[dict[torch.fx.Node, int], set[int]]:
    """Which piece each node is in, and which pieces are to run outside."""
    place: dict[torch.fx.Node, int] = {}
    around: set[int] = set()
    number = 0
    for node in computed:
        taken_apart = node.args[0] if node.target is operator.getitem else None
        if calls_one_of(outside, node.target, node.args):
            place[node] = number + 1
            around.add(number + 1)
            number += 2
        elif isinstance(taken_apart, torch.fx.Node) and place.get(taken_apart) in around:
            place[node] = place[taken_apart]
        else:
            place[node] = number
    return place, around


def _part(
    graph: torch.fx.GraphModule,
    inputs: Sequence[torch.fx.Node],
    inside: Sequence[torch.fx.Node],
    outputs: Sequence[torch.fx.Node],
) -> torch.fx.GraphModule:
    part = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in inputs:
        copies[node] = part.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in inside:
        for source in node.all_input_nodes:
            if source not in copies:
                copies[source] = part.node_copy(source)  # a constant of the graph's
        copies[node] = part.node_copy(node, copies.__getitem__)
    part.output([copies[node] for node in outputs])
    return torch.fx.GraphModule(graph, part)


def _position(node: torch.fx.Node, among: Sequence[Any]) -> Position:
    return next((index for index, each in enumerate(among) if each is node), None)
