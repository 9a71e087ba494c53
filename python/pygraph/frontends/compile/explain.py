"""How much of a program runs inside of graphs, what does not, and why: `pygraph.explain()`.

A program is watched while it runs. Its graphs are told by the report, breaks and compilations by
Dynamo, and what stands in the way inside of a graph by the operators that it was compiled from
(compilations.py). On a GPU torch's profiler tells which kernels a graph launched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pygraph.frontends.compile import breaks, compilations
from pygraph.frontends.compile.compilations import Compilation
from pygraph.planning import KINDS, Break
from pygraph.reporting import (
    FALLBACK,
    WARMING,
    Blocker,
    Explanation,
    GraphReport,
    OutsideKernel,
    Report,
)
from pygraph.reporting.text import first_line
from pygraph.runtime import kernels, registry
from pygraph.runtime.devices import PLATFORMS
from pygraph.torch_private import aot, dynamo

LOOKS = 3
"""Calls that are looked at, behind those that compile and link."""


def explain(
    fn: Callable[..., Any],
    *args: Any,
    options: Mapping[str, Any] | None = None,
    calls: int = 4,
    **kwargs: Any,
) -> Explanation:
    """Call `fn(*args, **kwargs)` a few times and say which of its work runs inside of graphs.

    `fn` is what `torch.compile(..., backend="pygraph")` has returned; anything else is compiled
    with the backend, and with `options`, first. It is called `calls` times, which must be enough to
    make its graphs (2, or `capture_at`), and then three times more to be looked at. Whatever it
    does, it does so often: to explain training, give a function that makes a step.

    On a GPU torch's profiler counts kernels, inside of graphs and outside. On the twin calls of
    graphs are counted, replayed or not. What `fn` raises is raised.
    """
    if dynamo.is_compiled(fn):
        if options is not None:
            raise ValueError("options are for a function that is not compiled yet; this one is")
        compiled = fn
    else:
        compiled = torch.compile(fn, backend="pygraph", options=dict(options or {}))
    with observed(name_of(fn)) as seen:
        for _ in range(max(calls, 0)):
            compiled(*args, **kwargs)
        seen.begin()
        with seen.profiled(LOOKS):
            for _ in range(LOOKS):
                compiled(*args, **kwargs)
    return seen.explanation


@dataclass
class Observation:
    """A program while it is watched."""

    explanation: Explanation
    kept: list[GraphReport]
    """Of what is compiled meanwhile."""
    calls: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each graph that there was: calls and replays when the look began."""
    touched: set[str] = field(default_factory=set)
    """Graphs that were called before it began."""

    def begin(self) -> None:
        """What is counted begins here; graphs that were called before are shown as well."""
        before, self.calls = self.calls, self._counted()
        self.touched = {name for name, now in self.calls.items() if now != before.get(name)}

    @contextmanager
    def profiled(self, times: int) -> Iterator[None]:
        """Has torch's profiler count the kernels of what is done meanwhile, `times` times over;
        nothing without a GPU."""
        if not torch.cuda.is_available():
            yield
            return
        with kernels.recorded() as events:
            yield
        self._take(kernels.summarize(events, times))

    def _take(self, launched: kernels.Launched) -> None:
        found = self.explanation
        if not launched.kernels:
            found.notes.append("torch's profiler has seen no kernel: calls of graphs are counted")
            return
        found.counted = "kernels"
        found.inside = launched.kernels_in_graphs
        found.outside = launched.kernels - launched.kernels_in_graphs
        found.kernels_outside = [OutsideKernel(*each) for each in launched.outside]

    def _counted(self) -> dict[str, tuple[int, int]]:
        live = registry.report().graphs
        return {graph.name: (graph.calls, graph.replays) for graph in [*self.kept, *live]}

    def graphs(self) -> list[GraphReport]:
        """Those that were called or compiled meanwhile, in their order."""
        live = {graph.name: graph for graph in registry.report().graphs}
        new = {graph.name: graph for graph in self.kept}
        called = {
            name: graph
            for name, graph in live.items()
            if name in self.touched or (graph.calls, graph.replays) != self.calls.get(name)
        }
        return sorted({**called, **new}.values(), key=lambda graph: int(graph.name.split()[1]))

    def count_calls(self) -> None:
        """Of graphs, where no profiler has counted kernels."""
        found = self.explanation
        if found.counted == "kernels":
            return
        for graph in found.report.graphs:
            calls, replays = self.calls.get(graph.name, (0, 0))
            found.inside += graph.replays - replays
            found.outside += (graph.calls - calls) - (graph.replays - replays)


@contextmanager
def observed(name: str) -> Iterator[Observation]:
    """Watches what runs meanwhile, whatever comes of it."""
    found = Explanation(name)
    broken, mark = breaks.count(), compilations.last()
    frames = dynamo.compiled_frames()[1]
    started = time.perf_counter()
    with registry.kept() as kept, aot.without_cache():
        seen = Observation(found, kept)
        seen.begin()
        seen.touched = set()
        try:
            yield seen
        finally:
            found.seconds = time.perf_counter() - started
            found.report = Report(seen.graphs(), registry.info())
            seen.count_calls()
            found.compiled = list(map(_compiled, dynamo.compiled_frames(frames)[0]))
            graphs = found.report.graphs
            behind = [*compilations.after(mark), *map(compilations.of_graph, _names(graphs))]
            found.blockers = [
                *_of_breaks(breaks.since(broken)),
                *(each for made in _once(behind) for each in _of_compilation(made)),
                *(_of_fallback(graph) for graph in graphs if graph.state == FALLBACK),
            ]
            found.notes += _notes(graphs)
            if found.counted != "kernels":
                found.notes.append("operators that Python runs between graphs are not counted")


def _names(graphs: list[GraphReport]) -> list[str]:
    return [graph.name for graph in graphs]


def _once(given: list[Compilation | None]) -> list[Compilation]:
    return list({id(each): each for each in given if each is not None}.values())


def _of_breaks(found: list[Break]) -> list[Blocker]:
    """A line that breaks each of several compilations is one."""
    blockers = {
        (each.reason, each.source): Blocker(
            what="Dynamo breaks the function into several graphs: "
            + ": ".join(part for part in (each.reason, each.explanation) if part),
            source=each.source,
            code=each.code,
            remedy=breaks.REMEDY,
        )
        for each in found
    }
    return list(blockers.values())


def _of_compilation(made: Compilation) -> list[Blocker]:
    problem = made.problem()
    if problem is None:
        return []
    if not made.in_the_way:
        return [Blocker(problem.reason, problem.graph, source=problem.source)]
    head = compilations.CUT if made.outside else compilations.LEFT_OUT
    return [
        Blocker(
            what=f"{head}: {KINDS[each.kind].title}",
            graph=problem.graph,
            operator=each.operator,
            source=each.source,
            code=each.code,
            remedy=KINDS[each.kind].remedy,
        )
        for each in made.in_the_way
    ]


def _of_fallback(graph: GraphReport) -> Blocker:
    made = compilations.of_graph(graph.name)
    what = graph.reason or "it runs without a graph"
    if made is None:
        advice = "" if graph.calls else PLATFORMS[graph.device].advice()
        return Blocker(what, graph.name, graph.operator, graph.source, remedy=advice)
    refusal, finding = made.refusal(graph), made.finding_of(graph.operator)
    return Blocker(
        what=what,
        graph=graph.name,
        operator=graph.operator,
        source=refusal.source,
        code=finding.code if finding else None,
        remedy=refusal.remedy or "",
    )


def _notes(graphs: list[GraphReport]) -> list[str]:
    notes = []
    if not graphs:
        notes.append(
            "no compiled graph was called: it is compiled with another backend, or not at all"
        )
    warming = [graph.name for graph in graphs if graph.state == WARMING]
    if warming:
        notes.append(f"called too seldom for a graph so far: {', '.join(warming)}")
    cached = [
        graph.name for graph in graphs if graph.calls and compilations.of_graph(graph.name) is None
    ]
    if cached:
        notes.append(
            f"operators of {', '.join(cached)} are not known: torch had the code in its cache"
        )
    return notes


def _compiled(frame: dynamo.CompiledFrame) -> str:
    place = f"{frame.name} ({Path(frame.file).name}:{frame.line})"
    if frame.because is None:
        return place
    return f"{place}, again, for {first_line(frame.because)}"


def name_of(fn: Any) -> str:
    inner = dynamo.module_behind(fn)
    if isinstance(inner, torch.nn.Module):
        return type(inner).__name__
    return getattr(inner, "__name__", type(inner).__name__)
