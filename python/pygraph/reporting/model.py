"""The report's data: one record per compiled graph, and what is true for all of them.

The records are plain numbers and strings: a report can be stored as JSON, read back by a later
process and compared, and holding one keeps no tensor and no graph alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

WARMING = "warming"
GRAPHED = "graphed"
PARTLY = "graphed, partly copied"
FALLBACK = "fallback"
REPLACED = "replaced"
STATES = (WARMING, GRAPHED, PARTLY, FALLBACK, REPLACED)


@dataclass(frozen=True)
class Applied:
    """A pass that changed a graph before it was compiled, so that more of it can be captured."""

    name: str
    """The pass, in a word."""
    what: str
    """What it has done, as a sentence without a full stop."""
    source: str | None = None
    """The user's line that it was done for, as "file.py:123", if known."""

    def __str__(self) -> str:
        return f"{self.name}: {self.what}" + (f" ({self.source})" if self.source else "")


#: What each clock of a call shows, in words.
_CLOCKS = {
    "host": "until the call returned",
    "device": "on the device",
    "caller": "as the caller pays for it",
    "latency": "until the device was idle",
}


#: The two ways of serving a call, by what it is about.
_WAYS = {
    "callable": ("with it", "without"),
    "copies": ("patched", "copied"),
    "past": ("past the guards", "before them"),
    "early": ("before the guards", "behind them"),
    "lanes": ("side by side", "in a row"),
}


@dataclass(frozen=True)
class Selected:
    """How calls of some sizes are served, of two ways, and what that follows from."""

    sizes: str
    """The dynamic sizes, as "16x128"; empty where there are none."""
    graph: bool
    """False: they are served the other way (`what`)."""
    by: str
    """The clock that was asked: "host", "device", or "caller", which is the longer of the time from
    one call to the next and the device's. "latency": until the device was idle, of lanes, of which
    "pipelined" is looked at, too. "nothing": none told them apart.
    "proof": what the proof's runs took on the device. "model": a prediction of the host's time."""
    pairs: int
    """Calls that were clocked either way."""
    with_us: dict[str, float] = field(default_factory=dict)
    """With the graph as it is, in us, medians by clock."""
    without_us: dict[str, float] = field(default_factory=dict)
    """The other way."""
    what: str = "callable"
    """What the other way is: "callable": the callable as it is. "copies": some arguments are copied
    instead of patched. "past": not past Dynamo's guards, but before them. "early": not before them,
    but behind them. "lanes": nodes run in the order of the capture, not side by side."""
    about: str = ""
    """Those arguments: "2 arguments of 1.5 KiB, mentioned by 80 nodes". What was tried of lanes."""

    def __str__(self) -> str:
        clock = {"proof": "device", "model": "host", "nothing": "caller"}.get(self.by, self.by)
        if clock not in self.with_us:
            clock = next(iter(self.with_us), clock)
        of = f"sizes {self.sizes}: " if self.sizes else ""
        if self.what == "lanes" and not self.with_us:  # something ruled them out
            return of + self.about
        one, other = _WAYS[self.what]
        times = (
            f"{self.with_us[clock]:,.1f} us {one}, {self.without_us[clock]:,.1f} us {other}"
            if clock in self.with_us
            else "no clock has run"
        )
        how = {
            "proof": "in its proof, on the device",
            "model": "of host time, predicted",
            "nothing": f"{_CLOCKS[clock]}, which tells nothing, medians of {self.pairs} calls each",
        }.get(self.by, f"{_CLOCKS[clock]}, medians of {self.pairs} calls each")
        what = f"{self.about}: " if self.about else ""
        return f"{of}{what}{times} ({how})"


@dataclass
class GraphReport:
    """One compiled graph: how it runs, why, and what that costs."""

    name: str
    """For a reader, e.g. "graph 3 (forward, partition 1)"."""
    state: str
    """ "warming": it was not called often enough yet. "graphed": its calls are replayed. "graphed,
    partly copied": so they are, and inputs are copied into place or memory is kept. "fallback": it
    runs without a graph. "replaced": it was compiled or captured once more, and others serve its
    calls."""
    device: str = "cuda"
    """What it is compiled for, as the option `device` names it: "cuda" or "twin"."""
    reason: str | None = None
    """Why it does not run as a graph, or not fully."""
    operator: str | None = None
    """The operator that is to blame, if known."""
    source: str | None = None
    """The user's line that called it, as "file.py:123", if known."""
    culprits: list[str] = field(default_factory=list)
    """Operators that it was compiled without, because captures had failed in them: they run between
    graphs, as "mylib::foo"."""
    not_repeated: list[str] = field(default_factory=list)
    """What the callable does besides computing, and a replay does not: "print()"."""
    host_numbers: list[str] = field(default_factory=list)
    """Python numbers of which each call may have others: "optimizer.param_groups[0]['lr']"."""
    compared: int = 0
    """Calls that a replay and the callable have served side by side, with debug="compare"."""
    differed: int = 0
    """Those of them in which a replay was further from the callable than that is from itself."""
    differences: list[str] = field(default_factory=list)
    """What was found in them, each place once: "call 7: a replay is not what the callable does:
    result[0]: ..."."""
    compiled_again_s: float = 0.0
    """Seconds that compiling it once more took, without them; 0 if they were known beforehand."""

    nodes: int = 0
    """Nodes of the captured graph: kernels, copies, fills and events."""
    kernels: int = 0
    """Nodes that launch a kernel."""
    copy_nodes: int = 0
    """Nodes that copy memory."""
    fill_nodes: int = 0
    """Nodes that fill memory."""
    edges: int = 0
    """Dependencies between nodes."""
    lanes: int = 1
    """Chains of nodes that run side by side."""
    regions: int = 0
    """Ranges of memory that the capture addresses: arguments, outputs, scratch."""

    inputs: int = 0
    """Tensors that another call may bring at another address."""
    constants: int = 0
    """Parameters and buffers."""
    outputs: int = 0
    """Tensors that a call returns."""
    outputs_direct: int = 0
    """Written by the graph into fresh memory of the call."""
    outputs_copied: int = 0
    """Copied into fresh memory of the call, by a node at the graph's end or behind the launch."""
    outputs_kept: int = 0
    """Tensors of the callable's own, the same in every call."""
    outputs_aliased: int = 0
    """Arguments, views of arguments, and outputs that are there twice."""

    relocations: int = 0
    """Words that hold an address of a region, proven by the probe."""
    coincidences: int = 0
    """Words that look like an address and did not move with it: left alone."""
    noise: int = 0
    """Words that differ between two captures for no reason that the probe explains."""
    foreign_words: int = 0
    """Addresses of device memory outside every region (tensors that the callable holds)."""
    unknown_words: int = 0
    """Foreign words that no tensor of the callable explains: constants must then stay in place."""

    arena_bytes: int = 0
    """The arena: scratch memory that a call takes, packed by lifetime."""
    arena_pieces: int = 0
    """Blocks that the arena is taken in: one, unless no block of its size was free."""
    parts: int = 1
    """Launches that a call takes, so that memory can change hands between them."""
    arena_lower_bound: int = 0
    """The most scratch of the arena that must be live at one node: no layout is smaller."""
    scratch_in_outputs: int = 0
    """Pieces of scratch that stand in an output until it is written, and not in the arena."""
    scratch_bytes: int = 0
    """All scratch of the capture, were no memory used twice."""
    output_bytes: int = 0
    """Memory of the outputs that the graph writes, taken anew in each call."""
    private_pool_bytes: int = 0
    """Memory of torch's allocator that the graph holds, because its scratch must stay in place."""
    capture_bytes: int = 0
    """GPU memory that the capture took: free before it less free after it."""

    proof: str = "not run"
    """ "bit-equal", "within run-to-run spread" or "failed: ..."; the last one's."""
    proof_passed: bool | None = None
    """Of the last proof that ran; None before any."""
    proofs: int = 0
    """How often a program of this graph was proven."""
    programs: int = 0
    """Sets of sizes that have a program now."""
    evictions: int = 0
    """Programs that made room for others."""
    limit: str | None = None
    """Why a further program needs the room of one of them, if it does."""
    waiting: str | None = None
    """How many sizes have no program yet for want of time, and what that takes."""
    offsets_kept: str | None = None
    """Why it serves only calls whose arguments have the storage offsets of the linked one."""
    relinks: int = 0
    """Programs dropped because something that had to stay in place moved."""

    collectives: str | None = None
    """Its collective operators, and the groups of ranks that they are of. All ranks have a program
    for it, or none."""

    peers: str | None = None
    """Other GPUs of this process that it works on."""

    calls: int = 0
    """Calls of the compiled callable, with a graph and without."""
    replays: int = 0
    """Calls that the graph served."""
    bytes_copied: int = 0
    """Bytes copied in all calls together, in front of and behind the graph."""
    bytes_looked_at: int = 0
    """Bytes of indices that the host read before the graph was launched before the guards."""
    bytes_staged: int = 0
    """Bytes that calls brought from the host, for arguments that the caller has there."""
    bytes_fetched: int = 0
    """Bytes of results that callers got on the host."""
    updates: int = 0
    """Nodes that were patched, because what they address has moved."""
    copies: int = 0
    """Copies that `bytes_copied` was copied in."""
    past_wrappers: bool = False
    """Calls go from Dynamo straight to the graph, past wrappers that have nothing to do."""
    past_guards: bool = False
    """Calls like those seen before go past Dynamo, too: the engine compares all that its guards
    look at."""
    before_wrappers: bool = False
    """Calls launch the graph before the wrappers that lead to it run."""
    before_guards: bool = False
    """Calls that look like earlier ones launch the graph before Dynamo has checked its guards,
    where that pays."""
    dropped: int = 0
    """Replays that were launched before the wrappers or the guards for calls that went elsewhere.
    They are not among `calls`."""
    selection: list[Selected] = field(default_factory=list)
    """How its programs serve calls, by sizes; of those that this is decided for."""
    undecided: int = 0
    """Of how many sizes it is being found out how they are served."""
    timings_ms: dict[str, float] = field(default_factory=dict)
    """What building it took, by step."""
    passes: list[Applied] = field(default_factory=list)
    """What was changed in it before it was compiled, in the order of the changes."""

    @property
    def graphed(self) -> bool:
        """Whether its calls are replayed, with or without copies."""
        return self.state in (GRAPHED, PARTLY)

    @property
    def blame(self) -> str:
        """Reason, operator and source line in one line, empty where there is nothing to say."""
        culprit = " at ".join(part for part in (self.operator, self.source) if part)
        return ": ".join(part for part in (self.reason, culprit) if part)

    def take_figures(self, figures: Mapping[str, int]) -> None:
        """Sets the fields that `figures` names; other names are not for the report."""
        known = {each.name for each in fields(self)}
        for name, value in figures.items():
            if name in known:
                setattr(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GraphReport:
        """Read back what to_dict() wrote; names that this version does not know are dropped."""
        made = cls(**_known(cls, data))
        made.passes = [Applied(**_known(Applied, each)) for each in data.get("passes", [])]
        made.selection = [Selected(**_known(Selected, each)) for each in data.get("selection", [])]
        return made


def _known(record: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(record)}
    return {key: value for key, value in data.items() if key in names}


@dataclass
class Report:
    """All compiled graphs of a process, in the order of their compilation."""

    graphs: list[GraphReport] = field(default_factory=list)
    """Those of compiled models that are still there."""
    environment: dict[str, Any] = field(default_factory=dict)
    """What pygraph.info() says: versions, CUDA driver, device, tensor access mode, problem."""
    events: list[str] = field(default_factory=list)
    """What happened outside any single graph, e.g. that a calibration failed."""

    @property
    def calls(self) -> int:
        """Calls of all graphs."""
        return sum(graph.calls for graph in self.graphs)

    @property
    def replays(self) -> int:
        """Calls of all graphs that were replayed."""
        return sum(graph.replays for graph in self.graphs)

    @property
    def bytes_copied(self) -> int:
        """Bytes copied in all calls of all graphs."""
        return sum(graph.bytes_copied for graph in self.graphs)

    def coverage(self) -> float:
        """The share of calls that a replay served, 0 where nothing was called.

        Calls of graphs, not kernel launches: a call that ran without a graph counts once, however
        many kernels it launched.
        """
        return self.replays / self.calls if self.calls else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON, with the coverage."""
        return {
            "environment": dict(self.environment),
            "coverage": self.coverage(),
            "graphs": [graph.to_dict() for graph in self.graphs],
            "events": list(self.events),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """Read back what to_dict() wrote."""
        return cls(
            graphs=[GraphReport.from_dict(graph) for graph in data.get("graphs", [])],
            environment=dict(data.get("environment", {})),
            events=list(data.get("events", [])),
        )

    def __str__(self) -> str:
        from pygraph.reporting.text import as_text

        return as_text(self)

    def __rich__(self) -> RenderableType:
        from pygraph.reporting.tables import as_tables

        return as_tables(self)
