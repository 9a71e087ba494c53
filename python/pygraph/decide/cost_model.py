"""What serving a call costs the host, predicted from what a graph consists of.

No clock is read here: the same graph has the same prediction on every machine and every rank. The
constants are those of one machine (docs/benchmarks.md, "Selection"); where a prediction is close,
another machine may have it the other way round, which is what measuring is for.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Costs:
    """Host time in us."""

    graph: float  #: a call that a graph serves, whatever is in it
    callable: float  #: a call that the callable serves, with the wrappers in front of it
    node: float  #: for each node of it
    patch: float  #: for each node that mentions an argument that moves, or memory of the call
    argument: float  #: for each tensor whose address is looked at
    result: float  #: for each tensor that is made
    launch: float  #: for each kernel, copy or fill that is launched without a graph


#: An H100's host: what driver calls take from benchmarks/results/engine.json, the others from calls
#: of MLPs of 1 and 8 layers.
REFERENCE = Costs(
    graph=8.0, callable=9.0, node=0.0015, patch=0.15, argument=0.02, result=0.7, launch=6.0
)


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a graph consists of."""

    nodes: int  #: kernels, copies and fills, which the callable launches one by one
    patched: int  #: nodes that mention an argument that changes, a result or the arena
    arguments: int
    results: int


def with_graph(contents: Contents, costs: Costs = REFERENCE) -> float:
    """Host time of a call that the graph serves, in us, if all that may move has moved."""
    return (
        costs.graph
        + costs.node * contents.nodes
        + costs.patch * contents.patched
        + costs.argument * contents.arguments
        + costs.result * contents.results
    )


def without_graph(contents: Contents, costs: Costs = REFERENCE) -> float:
    """Host time of a call that the callable serves, in us."""
    return costs.callable + costs.launch * contents.nodes + costs.result * contents.results
