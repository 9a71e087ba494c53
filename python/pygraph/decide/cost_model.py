"""What serving a call costs, predicted from what a graph consists of.

The constants of the driver are measured on each machine (runtime/machine.py). Those of torch and of
our own code are one machine's, and so are all of them where the same must be decided everywhere
(`select="model"`): REFERENCE.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Costs:
    """Host time in us, but for the last."""

    launch: float  #: a kernel, by the driver
    graph: float  #: launching a graph
    patch: float  #: for each node that mentions what has moved
    copy: float  #: on the device, of few bytes
    bytes_per_us: float  #: of a copy on the device


#: An H100 and its host (benchmarks/results/selection.json has what was measured there).
REFERENCE = Costs(launch=2.0, graph=2.5, patch=0.17, copy=1.7, bytes_per_us=1.1e6)

#: What a call takes besides, served by a graph: guards and the entry point, per argument, per
#: result. Served by the callable: wrappers and the code around launches, per kernel.
_ENTRY, _ARGUMENT, _RESULT = 5.5, 0.02, 0.7
_WRAPPERS, _AROUND_LAUNCH = 9.0, 4.0


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
        _ENTRY
        + costs.graph
        + costs.patch * contents.patched
        + _ARGUMENT * contents.arguments
        + _RESULT * contents.results
    )


def without_graph(contents: Contents, costs: Costs = REFERENCE) -> float:
    """Host time of a call that the callable serves, in us."""
    return _WRAPPERS + (_AROUND_LAUNCH + costs.launch) * contents.nodes + _RESULT * contents.results


def patching(nodes: int, costs: Costs) -> float:
    """Host time of patching an argument that has moved, in us; `nodes`: that mention it."""
    return costs.patch * nodes


def copying(size: int, costs: Costs) -> float:
    """Time of copying an argument of `size` bytes in place instead, host's and device's, in us."""
    return costs.copy + size / costs.bytes_per_us
