"""The plan's data, and the table of what can stand in the way of a capture."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Kind:
    """A kind of obstacle: what it is, and whether it takes the graph apart."""

    title: str
    splits: bool
    effect: str


KINDS = {
    "host value": Kind(
        "the host reads a value of the GPU", True, "the host waits, so the graph ends there"
    ),
    "data-dependent shape": Kind(
        "a shape depends on values", True, "sizes are known only once the graph has run"
    ),
    "control flow": Kind(
        "a branch or loop on a tensor", True, "runs between two parts of the graph"
    ),
    "cpu operator": Kind(
        "an operator computes on the CPU", True, "runs between two parts of the graph"
    ),
    "host to device": Kind(
        "a copy from the CPU to the GPU", True, "has to happen in front of the graph"
    ),
    "device to host": Kind(
        "a copy from the GPU to the CPU", True, "has to happen behind the graph"
    ),
    "cpu input": Kind(
        "an input lives on the CPU", True, "its value has to reach the kernels on every call"
    ),
    "collective": Kind(
        "a collective operation", False, "its peers' addresses stay as they were captured"
    ),
    "random numbers": Kind(
        "draws random numbers", False, "seed and offset are set before each replay"
    ),
}
"""Each `Finding.kind`, the most serious first."""


@dataclass
class Finding:
    """One line of the program that stands in the way, or needs care."""

    kind: str
    """A key of KINDS."""
    operator: str
    source: str | None = None
    """ "file.py:123", the innermost line of the program."""
    code: str | None = None
    """That line's text."""
    count: int = 1
    """How many operators of the graph came from that line."""

    @property
    def splits(self) -> bool:
        return KINDS[self.kind].splits


@dataclass
class Break:
    """A place where Dynamo gave up on one graph and began another."""

    reason: str
    explanation: str | None = None
    source: str | None = None
    code: str | None = None


@dataclass
class Argument:
    """A tensor that goes into a graph or comes out of it."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    device: str
    nbytes: int

    def __str__(self) -> str:
        sizes = " x ".join(str(size) for size in self.shape) or "scalar"
        return f"{self.name}: {self.dtype} {sizes}"


@dataclass
class GraphPlan:
    """One graph as the compiler would see it."""

    name: str
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
    mutated: int = 0
    """Inputs that the graph writes to."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether nothing that was found would take this graph apart."""
        return not any(finding.splits for finding in self.findings)


@dataclass
class Plan:
    """What was found out about one program."""

    name: str
    graphs: list[GraphPlan] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    scalars: list[str] = field(default_factory=list)
    """Numbers among the arguments: compiled in as constants, another value compiles again."""
    notes: list[str] = field(default_factory=list)
    """What the trace had to assume."""
    device: str = ""
    """The device that the trace used in place of the GPU."""
    seconds: float = 0.0
    error: str | None = None
    """Why the trace ended early, if it did: what is listed then is only what came before."""

    @property
    def operators(self) -> int:
        return sum(graph.operators for graph in self.graphs)

    @property
    def findings(self) -> list[Finding]:
        return [finding for graph in self.graphs for finding in graph.findings]

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
        return {**asdict(self), "capturable": self.capturable}

    def __str__(self) -> str:
        from pygraph.planning.text import as_text

        return as_text(self)

    def __rich__(self) -> RenderableType:
        from pygraph.planning.text import as_rich

        return as_rich(self)
