"""Every compiled graph of the process, for the report and for reset()."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import platform
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from pygraph import _engine
from pygraph.decide import agreement
from pygraph.decide.budget import BUDGET
from pygraph.decide.culprits import CULPRITS
from pygraph.reporting import FALLBACK, GraphReport, Report
from pygraph.runtime import calling_thread, devices, notes
from pygraph.runtime.compiled_graph import CompiledGraph
from pygraph.torch_private import support as torch_support
from pygraph.torch_private.cuda import is_in_bad_fork

_graphs: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()
_plain: list[GraphReport] = []
_keepers: list[list[GraphReport]] = []
_numbers = itertools.count()
_MAXIMUM_NOTES = 1000


def next_name(kind: str) -> str:
    """A name for the next compiled graph: 'graph 3 (inference)'."""
    return f"graph {next(_numbers)} ({kind})"


def add(graph: CompiledGraph) -> None:
    _graphs.add(graph)
    _keep(graph.report)


def live() -> list[CompiledGraph]:
    """Those that there are now."""
    return list(_graphs)


def add_fallback(name: str, reason: str, device: str, operator: str | None = None) -> None:
    """Notes a compiled graph that runs without any of our machinery."""
    graph = GraphReport(name, FALLBACK, device, reason, operator)
    if len(_plain) < _MAXIMUM_NOTES:
        _plain.append(graph)
    _keep(graph)


@contextlib.contextmanager
def kept() -> Iterator[list[GraphReport]]:
    """Collects the reports of what is compiled meanwhile. They stay when their graphs go; report()
    brings the counters of those that are there up to date."""
    reports: list[GraphReport] = []
    _keepers.append(reports)
    try:
        yield reports
    finally:
        _keepers[:] = [each for each in _keepers if each is not reports]


def _keep(report: GraphReport) -> None:
    for each in _keepers:
        each.append(report)


def replace(graph: CompiledGraph, reason: str) -> None:
    """Drops a graph in whose place there is another one, or will be. Its report is kept: its code
    may be gone soon."""
    graph.replace(reason)
    _graphs.discard(graph)
    if len(_plain) < _MAXIMUM_NOTES:
        _plain.append(graph.refresh_report())


def info() -> dict[str, Any]:
    """What this process can do: versions, driver, device, tensor access, and the problem
    that keeps graphs off, if any."""
    support = torch_support.support()
    driver = _engine.capabilities()
    return {
        "pygraph": _engine.version,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "driver": driver.library or None,
        "driver_version": driver.version or None,
        "device": _device_name(),
        "tensor_access": support.tensor_access,
        "problem": devices.PLATFORMS["cuda"].problem(),
    }


def _device_name() -> str | None:
    if not torch.cuda.is_available() or is_in_bad_fork():
        return None  # a forked child must not ask
    return str(torch.cuda.get_device_name())


def report() -> Report:
    """What became of every compiled graph so far."""
    live = [graph.refresh_report() for graph in list(_graphs)]
    return Report(
        graphs=sorted([*live, *_plain], key=_number), environment=info(), events=list(notes.events)
    )


def served() -> tuple[int, int]:
    """Calls of all graphs that programs have served so far, and those that none has."""
    dispatchers = [graph.dispatcher for graph in list(_graphs)]
    replays = sum(each.replays for each in dispatchers)
    return replays, sum(each.calls for each in dispatchers) - replays


def _number(graph: GraphReport) -> int:
    return int(graph.name.split()[1])


def _at_exit() -> None:
    """Graphs go while the driver is still there; Dynamo's caches live longer than that."""
    for graph in list(_graphs):
        graph.release()
    devices.release()


def _in_forked_child() -> None:
    """CUDA cannot be used in a forked child: its graphs are dropped, and nothing of the driver is
    called (the engine's owners know). Calls run the callable, which says what torch says."""
    for graph in list(_graphs):
        graph.abandon(devices.FORKED)


def _when_a_group_ends(group: Any) -> None:
    """Its communicators wait for the graphs that have its collectives (NCCL, commReclaim), and a
    graph must not be launched without them."""
    for graph in list(_graphs):
        if any(each is group for each in graph.collectives.groups):
            graph.end("the process group of its collectives has ended")


atexit.register(_at_exit)
agreement.when_a_group_ends(_when_a_group_ends)
os.register_at_fork(after_in_child=_in_forked_child)


@contextlib.contextmanager
def without_graphs() -> Iterator[None]:
    """While on, no graph is used and none is made: every compiled callable runs as it is, with the
    very kernels that its graph has. For comparing the two. Holds for all threads, and for the
    graphs that there are when it begins."""
    held = list(_graphs)
    for graph in held:
        graph.hold(True)
    try:
        yield
    finally:
        for graph in held:
            graph.hold(False)


def reset() -> None:
    """Drops every graph, its memory and the report. Compiled models go on, uncaptured; call
    torch._dynamo.reset() too to have them compiled and captured anew."""
    for graph in list(_graphs):
        graph.release()
    _graphs.clear()
    _plain.clear()
    notes.events.clear()
    BUDGET.clear()
    CULPRITS.clear()
    calling_thread.leave()
    devices.release()
