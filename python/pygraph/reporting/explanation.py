"""What an explanation holds: how much of a program runs inside of graphs, and what does not."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pygraph.reporting.model import Report

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass
class Blocker:
    """Something that keeps work outside of graphs, and what helps."""

    what: str
    """What it is."""
    graph: str | None = None
    """The compiled graphs that it concerns, as the report names them."""
    operator: str | None = None
    """The operator, as torch has it, if one is to blame."""
    source: str | None = None
    """The user's line, as "file.py:123", if known."""
    code: str | None = None
    """That line's text."""
    remedy: str = ""
    """What to change in the program; empty where nothing is known."""


@dataclass
class OutsideKernel:
    """Kernels of one name that no graph has launched."""

    name: str
    """As torch's profiler has it."""
    count: float
    """How many, in one call of a function, or in the run of a script."""
    us: float
    """Their time on the GPU together, in microseconds."""


@dataclass
class Explanation:
    """How much of a program runs inside of graphs, what does not, and why."""

    name: str
    """The program's."""
    counted: str = "calls of graphs"
    """What `inside` and `outside` count: "kernels", as torch's profiler has seen them on the GPU
    (of a function, in one call), or "calls of graphs", replayed and not."""
    inside: float = 0.0
    """Of what is counted, how much graphs have run."""
    outside: float = 0.0
    """Of what is counted, how much ran outside of them."""
    kernels_outside: list[OutsideKernel] = field(default_factory=list)
    """With a profile, the kernels outside of graphs; those that took longest first."""
    blockers: list[Blocker] = field(default_factory=list)
    """What stands in the way; empty where all is as it can be."""
    compiled: list[str] = field(default_factory=list)
    """Functions that Dynamo compiled meanwhile, and the guard that made it compile one again."""
    report: Report = field(default_factory=Report)
    """The report of the graphs that were called. Their counters go back to their first call."""
    notes: list[str] = field(default_factory=list)
    """What is to be known of the explanation itself."""
    seconds: float = 0.0
    """How long the calls took, compilation and linking among them."""
    error: str | None = None
    """How the program ended, if it raised."""

    @property
    def coverage(self) -> float:
        """The share of what is counted that ran inside of graphs; 0 where nothing is counted."""
        total = self.inside + self.outside
        return self.inside / total if total else 0.0

    @property
    def build_ms(self) -> float:
        """What linking all graphs took: captures, and the proof behind them."""
        return sum(
            graph.timings_ms.get(step, 0.0)
            for graph in self.report.graphs
            for step in ("link", "proof")
        )

    def to_dict(self) -> dict[str, Any]:
        """The explanation for JSON, with the coverage."""
        fields = {**asdict(self), "report": self.report.to_dict()}
        return {**fields, "coverage": self.coverage, "build_ms": self.build_ms}

    def to_html(self) -> str:
        """One page that needs nothing else."""
        from pygraph.reporting.html import page

        return page(self)

    def save(self, path: str | Path) -> None:
        """Writes it as JSON, as a page or as text, by the file's suffix: .json, .html or .txt.
        Raises ValueError for another one."""
        path = Path(path)
        if path.suffix == ".json":
            text = json.dumps(self.to_dict(), indent=1) + "\n"
        elif path.suffix == ".html":
            text = self.to_html()
        elif path.suffix == ".txt":
            text = f"{self}\n"
        else:
            raise ValueError(f"{path} ends in {path.suffix!r}; needed: .json, .html or .txt")
        path.write_text(text, encoding="utf-8")

    def __str__(self) -> str:
        from pygraph.reporting.explained import as_text

        return as_text(self)

    def __rich__(self) -> RenderableType:
        from pygraph.reporting.explained import as_rich

        return as_rich(self)
