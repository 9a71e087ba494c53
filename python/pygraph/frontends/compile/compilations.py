"""What is known of each graph of ATen operators that was compiled: what stands in the way of a
capture, what became of it, and which of its work runs outside of compiled graphs."""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pygraph import frames
from pygraph.frontends.compile.generated import work_outside, works
from pygraph.operators.obstacles import is_operator
from pygraph.planning import KINDS, Finding
from pygraph.planning.inspect import findings, is_view
from pygraph.reporting import GraphReport
from pygraph.reporting.text import first_line
from pygraph.runtime.requirement import RequirementNotMet
from pygraph.torch_private import inductor
from pygraph.torch_private.dispatch import tree_leaves

log = logging.getLogger(__name__)

#: Of the process, so that a graph which was compiled earlier can be explained.
_kept: collections.deque[Compilation] = collections.deque(maxlen=1000)
LEFT_OUT = "Inductor keeps this code out of CUDA graphs"
CUT = "Inductor cuts the graph, and this runs outside of CUDA graphs"


@dataclasses.dataclass
class Compilation:
    """One graph of ATen operators."""

    backward: bool = False
    works: bool = False
    """Whether an operator of it makes something on the device."""
    findings: list[Finding] = dataclasses.field(default_factory=list)
    """What stands in the way of a capture, or needs care."""
    graphs: list[str] = dataclasses.field(default_factory=list)
    """The compiled graphs that became of it, by their names in the report."""
    outside: list[str] = dataclasses.field(default_factory=list)
    """Statements of the generated code that work outside of these."""
    reasons: list[str] = dataclasses.field(default_factory=list)
    """Why Inductor keeps it out of CUDA graphs, as far as it says."""

    @property
    def left_out(self) -> bool:
        """Whether it works on the device and no compiled graph became of it."""
        return self.works and not self.graphs

    @property
    def in_the_way(self) -> list[Finding]:
        """Findings that take the graph apart."""
        return [finding for finding in self.findings if finding.splits]

    def finding_of(self, operator: str | None) -> Finding | None:
        """What was found of an operator, as captures and traces name it."""
        return next(
            (each for each in self.findings if operator and each.operator == operator), None
        )

    def problem(self) -> RequirementNotMet | None:
        """What of its work runs outside of compiled graphs, if some does."""
        if not self.left_out and not self.outside:
            return None
        graph = ", ".join(self.graphs) or ("a backward" if self.backward else "a graph")
        reason = CUT if self.outside else LEFT_OUT
        if self.in_the_way:
            found = self.in_the_way[0]
            kind = KINDS[found.kind]
            reason = f"{reason}: {kind.title}"
            return RequirementNotMet(reason, graph, found.operator, found.source, kind.remedy)
        said = [self.outside[0]] if self.outside else [first_line(each) for each in self.reasons]
        places = (frames.of_text(each) for each in self.reasons)
        place = next((str(each) for each in places if each is not None), None)
        return RequirementNotMet(": ".join([reason, *said[:1]]), graph, None, place)

    def refusal(self, report: GraphReport) -> RequirementNotMet:
        """Why one of its graphs runs without a CUDA graph."""
        finding = self.finding_of(report.operator)
        return RequirementNotMet(
            report.reason or "it runs without a CUDA graph",
            report.name,
            report.operator,
            report.source or (finding.source if finding else None),
            KINDS[finding.kind].remedy if finding else None,
        )


def look(graph_module: Any, backward: bool, on_host: Callable[[torch.Tensor], bool]) -> Compilation:
    """Before it is compiled. `on_host`: of a tensor, whether it is not in memory of the device."""
    made = Compilation(backward)
    _kept.append(made)
    try:
        made.works = any(_works(node, on_host) for node in graph_module.graph.nodes)
        made.findings = findings(graph_module.graph, on_host)
    except Exception:  # it is compiled whatever is found
        log.debug("a graph could not be looked at", exc_info=True)
    return made


def conclude(made: Compilation, models: Sequence[Any], compiled: Any) -> None:
    """Afterwards. `models`: what was handed over for graphs; `compiled`: what the compiler gave."""
    if models:
        made.outside = work_outside(models[0])
        return
    made.reasons = inductor.reasons_against_graphs(compiled)
    if works(inductor.callable_within(compiled)) is False:
        made.works = False  # nothing is left of its operators


def of_graph(name: str) -> Compilation | None:
    """That of a compiled graph; None where it is not known: torch had it in its cache."""
    return next((each for each in reversed(_kept) if name in each.graphs), None)


def after(mark: Compilation | None) -> list[Compilation]:
    """Those since `last()` gave the mark."""
    listed = list(_kept)
    places = [place for place, each in enumerate(listed) if each is mark]
    return listed[places[0] + 1 :] if places else listed


def last() -> Compilation | None:
    return _kept[-1] if _kept else None


def _works(node: Any, on_host: Callable[[torch.Tensor], bool]) -> bool:
    if not is_operator(node) or is_view(node):
        return False
    made = [each for each in tree_leaves(node.meta.get("val")) if isinstance(each, torch.Tensor)]
    return any(not on_host(each) and not _is_empty(each) for each in made)


def _is_empty(tensor: torch.Tensor) -> bool:
    return any(type(size) is int and size == 0 for size in tensor.shape)  # no question to a guard
