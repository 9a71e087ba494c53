"""Where a callable's arguments and results stand in the compiled graph that it is a part of.

Inductor may cut a graph into partitions around what a CUDA graph cannot have, and makes a function
of each even where there is only one. A partition's arguments and results stand in an order of their
own: what AOTAutograd says of the graph's is to be looked up through Inductor's GraphPartitionMap
(torch/_inductor/utils.py). Sizes that a partition takes stand behind its tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

Position = int | None  #: in the compiled graph; None: not of its arguments (or results), or unknown


@dataclasses.dataclass(frozen=True)
class Partition:
    """A partition; `inputs` and `outputs` are the graph's, by the partition's."""

    inputs: tuple[Position, ...]
    outputs: tuple[Position, ...]

    @staticmethod
    def of(partition_map: Any) -> Partition | None:
        """Inductor's map as one; None when it is of an unknown form."""
        inputs = getattr(partition_map, "input_index_mapping", None)
        outputs = getattr(partition_map, "output_index_mapping", None)
        if inputs is None or outputs is None:
            return None
        return Partition(tuple(inputs), tuple(map(_last, outputs)))


def _last(outputs: Any) -> Position:
    """Of a partition's result that is several of the graph's, the last. From torch 2.14 on the map
    lists them all; before, it had the last."""
    if isinstance(outputs, list):
        return outputs[-1] if outputs else None
    return cast(Position, outputs)


def graph_inputs(partition: Partition | None, arguments: Sequence[Any]) -> list[Position]:
    """For each argument of a call, which of the graph's it is. No partition: they are the graph's.
    Inductor drops an argument that no kernel needs after it has made the map: then all are
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
