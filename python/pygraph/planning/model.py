"""The plan's data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pygraph.planning.kinds import KINDS
from pygraph.planning.text import as_rich, as_text
from pygraph.reporting import Applied

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass
class Finding:
    """One line of the program that stands in the way, or needs care."""

    kind: str
    """A key of `pygraph.planning.KINDS`, such as "host value"."""
    operator: str
    """The operator's name, as torch has it, such as "aten._local_scalar_dense.default"."""
    source: str | None = None
    """ "file.py:123", the innermost line of the program."""
    code: str | None = None
    """That line's text."""
    count: int = 1
    """How many operators of the graph came from that line."""
    taken_away_by: list[str] = field(default_factory=list)
    """The passes that take it out of the way, by name; empty where it stays, or some of it."""

    @property
    def splits(self) -> bool:
        """Whether the graph ends there and another begins."""
        return KINDS[self.kind].splits


@dataclass
class Break:
    """A place where Dynamo gave up on one graph and began another."""

    reason: str
    """Dynamo's, in one line."""
    explanation: str | None = None
    """Dynamo's, if it has one."""
    source: str | None = None
    """As Finding.source."""
    code: str | None = None
    """That line's text."""


@dataclass
class Argument:
    """A tensor that goes into a graph or comes out of it."""

    name: str
    """In the traced graph."""
    dtype: str
    """As torch names it, without "torch."."""
    shape: tuple[int | str, ...]
    """Its sizes; a dynamic one is a name."""
    device: str
    """The device's type."""
    nbytes: int
    """Bytes of its elements; a dynamic size counts as 1."""

    def __str__(self) -> str:
        sizes = " x ".join(str(size) for size in self.shape) or "scalar"
        return f"{self.name}: {self.dtype} {sizes}"


@dataclass
class GraphPlan:
    """One graph as the compiler would see it."""

    name: str
    """For a reader, e.g. "graph 0 (inference)"."""
    operators: int = 0
    """Operators of ATen, before any fusion."""
    views: int = 0
    """How many of these only look at memory in another way, and launch nothing."""
    constants: list[Argument] = field(default_factory=list)
    """Parameters and buffers: they stay where they are."""
    patched: list[Argument] = field(default_factory=list)
    """Inputs that each call may bring at another address."""
    host_inputs: list[Argument] = field(default_factory=list)
    """Inputs on the CPU."""
    scalars: list[str] = field(default_factory=list)
    """Inputs that are numbers."""
    outputs: list[Argument] = field(default_factory=list)
    """Tensors that the graph returns."""
    mutated: int = 0
    """Inputs that the graph writes to."""
    findings: list[Finding] = field(default_factory=list)
    """What stands in the way of the graph as it was traced, or needs care; the most serious
    first."""
    passes: list[Applied] = field(default_factory=list)
    """What passes change in it before it is compiled, in the order of the changes."""
    remaining: list[Finding] = field(default_factory=list)
    """What stands in the way of what is left of it then, or needs care."""

    @property
    def whole(self) -> bool:
        """Whether nothing that remains would take this graph apart."""
        return not any(finding.splits for finding in self.remaining)

    @property
    def taken_away(self) -> list[Finding]:
        """Findings that passes take out of the way."""
        return [finding for finding in self.findings if finding.taken_away_by]

    @property
    def cover(self) -> str:
        """How it runs as CUDA graphs: "wholly", "in part" or "not at all"."""
        on_host = self.host_inputs and not self.constants and not self.patched
        if on_host and not self.passes:
            return "not at all"
        if {finding.kind for finding in self.remaining if finding.splits} == {"library state"}:
            return "not at all"
        return "wholly" if self.whole else "in part"


@dataclass
class Plan:
    """What was found out about one program."""

    name: str
    """The program's."""
    graphs: list[GraphPlan] = field(default_factory=list)
    """In the order of their compilation."""
    breaks: list[Break] = field(default_factory=list)
    """Between two graphs Python runs."""
    scalars: list[str] = field(default_factory=list)
    """Numbers among the arguments: compiled in as constants, another value compiles again."""
    notes: list[str] = field(default_factory=list)
    """What the trace had to assume."""
    device: str = ""
    """The device that the trace used in place of the GPU."""
    seconds: float = 0.0
    """How long the trace took."""
    error: str | None = None
    """Why the trace ended early, if it did: what is listed then is only what came before."""

    @property
    def operators(self) -> int:
        """Operators of all graphs."""
        return sum(graph.operators for graph in self.graphs)

    @property
    def findings(self) -> list[Finding]:
        """Findings of all graphs, as they were traced."""
        return [finding for graph in self.graphs for finding in graph.findings]

    @property
    def remaining(self) -> list[Finding]:
        """What remains of all graphs' findings behind the passes."""
        return [finding for graph in self.graphs for finding in graph.remaining]

    @property
    def capturable(self) -> bool:
        """Whether the whole program would run as one graph with nothing in its way."""
        return (
            self.error is None
            and not self.breaks
            and len(self.graphs) == 1
            and self.graphs[0].whole
        )

    def to_dict(self) -> dict[str, Any]:
        """The plan for JSON, with `capturable`."""
        return {**asdict(self), "capturable": self.capturable}

    def __str__(self) -> str:
        return as_text(self)

    def __rich__(self) -> RenderableType:
        return as_rich(self)
