"""The plan's data, and the table of what can stand in the way of a capture."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Kind:
    """A kind of obstacle: what it is, whether it takes the graph apart, and what helps."""

    title: str
    splits: bool
    effect: str
    remedy: str = ""
    """What to change in the program; empty where nothing has to be."""


KINDS = {
    "host value": Kind(
        "the host reads a value of the GPU",
        True,
        "the host waits, so the graph ends there",
        "keep the value in a tensor, or read it behind the model",
    ),
    "data-dependent shape": Kind(
        "a shape depends on values",
        True,
        "sizes are known only once the graph has run",
        "keep the size, with torch.where in place of a mask",
    ),
    "control flow": Kind(
        "a branch or loop on a tensor",
        True,
        "runs between two parts of the graph",
        "compute both sides and choose with torch.where, if they are cheap",
    ),
    "cpu operator": Kind(
        "an operator computes on the CPU",
        True,
        "runs between two parts of the graph",
        "make the tensor on the GPU (device=x.device)",
    ),
    "host to device": Kind(
        "a copy from the CPU to the GPU",
        True,
        "has to happen in front of the graph",
        "register the tensor as a buffer, or move it before the model is called",
    ),
    "device to host": Kind(
        "a copy from the GPU to the CPU",
        True,
        "has to happen behind the graph",
        "return the tensor, and move it behind the model",
    ),
    "cpu input": Kind(
        "an input lives on the CPU",
        True,
        "its value has to reach the kernels on every call",
        "pass it on the GPU",
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
    """A key of `pygraph.planning.KINDS`, such as "host value"."""
    operator: str
    """The operator's name, as torch has it, such as "aten._local_scalar_dense.default"."""
    source: str | None = None
    """ "file.py:123", the innermost line of the program."""
    code: str | None = None
    """That line's text."""
    count: int = 1
    """How many operators of the graph came from that line."""

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


COVERS = ("wholly", "in part", "not at all")
"""How a graph runs as CUDA graphs. "in part": what stands in the way runs between two of them, as
torch.compile would run it. "not at all": all of its inputs are on the CPU."""


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
    """What stands in the way, or needs care; the most serious first."""

    @property
    def whole(self) -> bool:
        """Whether nothing that was found would take this graph apart."""
        return not any(finding.splits for finding in self.findings)

    @property
    def cover(self) -> str:
        """How it runs as CUDA graphs: "wholly", "in part" or "not at all"."""
        if self.host_inputs and not self.constants and not self.patched:
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
        """Findings of all graphs."""
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
        """The plan for JSON, with `capturable`."""
        return {**asdict(self), "capturable": self.capturable}

    def __str__(self) -> str:
        from pygraph.planning.text import as_text

        return as_text(self)

    def __rich__(self) -> RenderableType:
        from pygraph.planning.text import as_rich

        return as_rich(self)
