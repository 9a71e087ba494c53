"""A graph while passes work on it: which of its nodes run where, and what crosses.

A transformed graph has three parts. The *front* runs on the host before anything else, the *body*
is the graph on the device, and *behind* it runs what the host does with its results. Each pass says
of some nodes which part they belong to, and of values on the host that the body takes how they come
to it. What no pass claims stays in the body, where it is an obstacle as before.
"""

from __future__ import annotations

import dataclasses
import enum
import operator
from collections.abc import Iterator
from typing import Any

import torch

from pygraph.operators import obstacles
from pygraph.operators.known import known
from pygraph.operators.table import Obstacle, Property
from pygraph.reporting import Applied
from pygraph.torch_private.dispatch import OpOverload, schema
from pygraph.transform import reading
from pygraph.transform.expression import Expression


class Part(enum.Enum):
    FRONT = "front"
    BODY = "body"
    BEHIND = "behind"


@dataclasses.dataclass
class Draft:
    """A graph of ATen's operators, each node with a value in its `meta["val"]`."""

    module: torch.fx.GraphModule
    device: torch.device  #: the only one besides the host
    home: torch.device  #: where constants of it really are
    generated: bool  #: code is generated for it; else torch's kernels run, one operator at a time
    parts: dict[Any, Part] = dataclasses.field(default_factory=dict)  #: of nodes not in the body
    #: values on the host, by the node that has them, and what stands for each in the body
    staged: dict[Any, Any] = dataclasses.field(default_factory=dict)
    #: the same of values that never change
    folded: dict[Any, Any] = dataclasses.field(default_factory=dict)
    #: of staged arguments, what the host computes for their cells in place of them
    computed: dict[Any, list[Expression]] = dataclasses.field(default_factory=dict)
    #: nodes behind the body that copy a value of the device as it is
    fetched: set[Any] = dataclasses.field(default_factory=set)
    applied: list[Applied] = dataclasses.field(default_factory=list)
    #: which pass has taken an obstacle out of the way, by the name of the node
    cleared: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def graph(self) -> torch.fx.Graph:
        return self.module.graph

    def part(self, node: Any) -> Part:
        return self.parts.get(node, Part.BODY)

    def in_body(self) -> Iterator[Any]:
        """The nodes that compute in the body, in their order."""
        return (
            node for node in self.graph.nodes if node.op == "call_function" and self.stays(node)
        )

    def stays(self, node: Any) -> bool:
        return self.part(node) is Part.BODY

    def computes_on_host(self, node: Any) -> bool:
        """Whether a node that no pass has claimed only computes, and on the host."""
        return (
            node.op == "call_function"
            and self.stays(node)
            and reading.on_host(node)
            and is_pure(node)
        )

    def note(self, name: str, what: str, node: Any) -> None:
        """A pass has done something about a node. An argument is of no line, but its users are."""
        lines = map(reading.source, (node, *node.users))
        self.applied.append(Applied(name, what, next(filter(None, lines), None)))

    def emit(self, before: Any, target: OpOverload, *args: Any, **kwargs: Any) -> Any:
        """Puts an operator in front of a node, for the same line of the program."""
        with self.graph.inserting_before(before):
            made = self.graph.call_function(target, args, kwargs)
        given, named = torch.fx.node.map_arg((args, kwargs), reading.value)
        with self.fake_mode:
            made.meta["val"] = target(*given, **named)
        made.stack_trace = before.stack_trace
        return made

    def drop_unneeded(self) -> None:
        """Takes out what the body does not need any more."""
        for node in reversed(list(self.in_body())):
            needed = node.users or node in self.staged
            if not needed and is_pure(node) and not is_random(node):
                self.graph.erase_node(node)

    @property
    def fake_mode(self) -> Any:
        """In which operators make tensors without memory."""
        made = (each for node in self.graph.nodes for each in reading.tensors(node))
        sample: Any = next(made)
        return sample.fake_mode

    def new_placeholder(self, name: str, like: torch.Tensor) -> Any:
        """One more argument of the body, behind all others."""
        last = reading.placeholders(self.graph)[-1]
        with self.graph.inserting_after(last):
            made = self.graph.placeholder(f"{name}_{len(reading.placeholders(self.graph))}")
        made.meta["val"] = like
        return made


def kind(node: Any) -> Obstacle | None:
    """What stands in a capture's way in a node, by its arguments and results alone."""
    return obstacles.of_node(node) if node.op == "call_function" else None


def is_pure(node: Any) -> bool:
    """Whether a node only computes, by a known operator, and the same each time."""
    target = node.target
    if target is operator.getitem:
        return True
    return (
        isinstance(target, OpOverload)
        and target.namespace in ("aten", "prims")
        and not schema(target).is_mutable
        and torch.Tag.data_dependent_output not in target.tags
        and torch.Tag.dynamic_output_shape not in target.tags
    )


def is_random(node: Any) -> bool:
    """Whether it draws from a generator, or may."""
    return isinstance(node.target, OpOverload) and bool(
        torch.Tag.nondeterministic_seeded in node.target.tags
    )


def copies_memory(node: Any) -> bool:
    """Whether a node copies its first argument to where its result is, as it is."""
    if not known(node.target, Property.MOVES_MEMORY, namespaces=None):
        return False
    given = node.all_input_nodes
    return len(given) == 1 and bool(reading.value(given[0]).dtype == reading.value(node).dtype)


def is_blocking(node: Any) -> bool:
    """Of a node that copies_memory: whether the host waits for it."""
    return not obstacles.of_parameter(node, "non_blocking")


def portable(node: Any) -> bool:
    """Whether a node is a size that can be had in each part: if it follows from sizes among the
    arguments."""
    return reading.is_number(node) and (
        node.op == "placeholder" or all(map(portable, node.all_input_nodes))
    )
