"""Where a callable's arguments and results stand in the compiled graph that it is a part of.

A compiler may cut a graph into partitions around what a CUDA graph cannot have, and make a function
of each even where there is only one. A partition's arguments and results stand in an order of their
own: what is known of the graph's is to be looked up through the partition's map. Sizes that a
partition takes stand behind its tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

Position = int | None  #: in the compiled graph; None: not of its arguments (or results), or unknown


@dataclasses.dataclass(frozen=True)
class Partition:
    """A partition; `inputs` and `outputs` are the graph's, by the partition's."""

    inputs: tuple[Position, ...]
    outputs: tuple[Position, ...]


def graph_inputs(partition: Partition | None, arguments: Sequence[Any]) -> list[Position]:
    """For each argument of a call, which of the graph's it is. No partition: they are the graph's.
    A compiler may drop an argument that no kernel needs after it has made the map: then all are
    unknown."""
    if partition is None:
        return list(range(len(arguments)))
    sizes = arguments[len(partition.inputs) :]
    if len(arguments) < len(partition.inputs) or any(type(size) is not int for size in sizes):
        return [None] * len(arguments)
    return [*partition.inputs, *[None] * len(sizes)]


def graph_outputs(partition: Partition | None, count: int) -> list[Position]:
    """The same for its `count` results."""
    if partition is None:
        return list(range(count))
    return list(partition.outputs) if len(partition.outputs) == count else [None] * count
