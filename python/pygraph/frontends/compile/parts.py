"""Graphs that are compiled in parts (transform/): what the compilers make of each."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import torch

from pygraph.frontends.compile.entry_point import hands_over, returned_once
from pygraph.operators.known import known
from pygraph.operators.table import Property
from pygraph.runtime.crossing import NOTHING, Crossing, renumbered
from pygraph.runtime.partition import Partition
from pygraph.torch_private import aot
from pygraph.transform import reading
from pygraph.transform.parts import Callee, InParts
from pygraph.transform.split import HostPart, Split


@aot.boxed
class Boxed:
    """Marks a callable as taking one list, which it clears (torch's boxed calling convention)."""

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self.call(function)

    def call(self, function: Callable[[list[Any]], Any]) -> None:
        """From now on it calls this."""
        self._function = self.__wrapped__ = function

    def __call__(self, arguments: list[Any]) -> Any:
        return self._function(arguments)


def run_by_operators(graph: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    """Calls torch's kernels, one operator after the other."""
    for node in graph.graph.nodes:
        if node.target is torch.ops.prims.device_put.default:
            _call_directly(node)
    graph.graph.set_codegen(aot.BoxedCodeGen())
    graph.recompile()
    return Boxed(graph.forward)


def _call_directly(node: Any) -> None:
    """torch has written this operator in Python, and what it comes to is `.to()`."""
    given, device, *later = node.args
    blocking = {"non_blocking": later[0]} if later else {}
    node.op, node.target = "call_method", "to"
    node.args, node.kwargs = (given, device), {**node.kwargs, **blocking}


@dataclasses.dataclass
class Transformed:
    """A graph whose body is compiled right now."""

    split: Split
    #: The compiled graph brings and fetches by itself: settled when the body is handed over.
    crosses: bool = False

    def crossing(self, model: Any, partition: Partition | None) -> Crossing:
        """What crosses in a call of `model`, the body or one of its partitions. Where the body is
        more than that, or its arguments or results cannot be told apart from outside, they cross
        around the body."""
        staged, fetched = self.split.staged, self.split.fetched
        computed = self.split.computed
        if not hands_over(model, staged):
            return NOTHING
        if partition is not None:
            inputs, outputs = partition.inputs, partition.outputs
            if (None in inputs and staged) or not fetched <= {*outputs}:
                return NOTHING
            if not returned_once(model, fetched):
                return NOTHING
            place = {each: i for i, each in enumerate(inputs) if each is not None}
            computed = {index: computed[index] for index in computed if index in place}
            if not all(each.arguments <= place.keys() for own in computed.values() for each in own):
                return NOTHING
            staged = frozenset(place[each] for each in staged if each in place)
            fetched = frozenset(i for i, each in enumerate(outputs) if each in fetched)
            computed = {
                place[index]: [renumbered(each, place) for each in formulas]
                for index, formulas in computed.items()
            }
        self.crosses = True
        return Crossing(staged, fetched, computed)

    @property
    def transparent(self) -> bool:
        """Whether a call of the graph is one of its body."""
        return self.crosses and self.split.transparent

    @property
    def begins_with_body(self) -> bool:
        """Whether nothing happens before the body is called."""
        return self.crosses and self.split.front is None


def compile_in_parts(
    made: Transformed,
    compile_body: Callable[[torch.fx.GraphModule, list[Any]], Callee],
    compile_host: Callable[[torch.fx.GraphModule, list[Any]], Callee],
) -> Callee:
    """The callable that stands for a transformed graph: where the body is all of it, what that is
    compiled to. It is compiled last: a graph of it that is at hand is one that will be called."""
    split = made.split
    if split.is_body:
        return compile_body(split.body, split.examples)
    (device,) = reading.devices(split.body.graph)

    def host(part: HostPart | None) -> Callee | None:
        return None if part is None else compile_host(part.module, part.examples)

    front, behind = host(split.front), host(split.behind)
    body = compile_body(split.body, split.examples)
    parts = InParts(split, body, front, behind, device, made.crosses)
    return aot.boxed(parts)  # the object: torch copies what that has to functions around it


def only_moves(graph: torch.fx.Graph) -> bool:
    """Whether a host's part computes nothing, so that there is no code to generate; or takes
    something of the device, which is copied by torch's own operators."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    return any(map(reading.on_device, reading.placeholders(graph))) or all(map(_moves, calls))


def _moves(node: Any) -> bool:
    if reading.is_number(node) or known(node.target, Property.MAKES_OF_NUMBER):
        return True
    if node.target is operator.getitem or getattr(node.target, "is_view", False):
        return True
    copies = Property.MOVES_MEMORY, Property.COPIES_INTO
    same_type = [each.dtype for each in reading.tensors(node)] == [
        each.dtype for given in node.all_input_nodes[-1:] for each in reading.tensors(given)
    ]
    return same_type and any(known(node.target, each, namespaces=None) for each in copies)
