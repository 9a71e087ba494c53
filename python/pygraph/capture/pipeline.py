"""The linker, from a callable and one real call of it to a proven program.

`link()` is the pipeline; it is read from top to bottom, in the order in which it runs. `find()`
makes the attempts (attempts.py) one after the other until a program is proven (proof.py). Nothing
of the caller's is touched by either: a capture executes nothing, and a proof rewinds what it runs.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.capture import (
    arguments,
    attempts,
    blocks,
    foreign,
    generators,
    numbers,
    outputs,
    proof,
    record,
    space,
)
from pygraph.capture.attempts import Attempt, Setback
from pygraph.capture.device import CaptureFailed, is_strided
from pygraph.capture.proof import Verdict
from pygraph.capture.record import Capture
from pygraph.capture.regions import Regions, name_regions
from pygraph.capture.request import Request

#: Bytes that everything in an arena takes a multiple of (include/pygraph/layout.h).
_ARENA_STEP = 512


@dataclasses.dataclass(frozen=True)
class LinkedProgram:
    """A program ready to be proven and called, with the figures for the report."""

    program: _engine.TensorProgram
    attempt: Attempt
    figures: Mapping[str, int]
    keep: Sequence[Any]  #: memory that the graph addresses where it was captured
    timings_ms: Mapping[str, float]  #: "capture": both captures; "compare": reading to layout
    #: Words that look like phantom addresses are left; the callable may count from the start of a
    #: storage, and then a proof fails unless the offsets are kept.
    doubtful: bool


class CapturesDiffer(CaptureFailed):
    """The callable was captured, but not a second time, or not alike, with other storage offsets.
    `places`: how many differ; 0 where there was nothing to compare."""

    def __init__(self, error: CaptureFailed, because: str, places: int = 0) -> None:
        super().__init__(str(error), error.operator, error.source)
        self.because = because
        self.places = places

    def smaller(self, other: CapturesDiffer | None) -> CapturesDiffer:
        """The one of two where less differs."""
        return other if other is not None and 0 < other.places <= self.places else self


def link(request: Request, attempt: Attempt) -> LinkedProgram:
    """Captures the callable twice and links it. Reads and writes none of the arguments' memory.
    Raises CaptureFailed, UnsupportedGraph or DriverError; leaves nothing behind then."""
    device = request.device

    # A graph takes tensors and generators of its device, integers, and numbers on the host.
    arguments.require_served(request)

    # What the attempt does not relocate is captured in place.
    stand_ins = arguments.stand_ins(request, attempt.policy)

    # Capture twice. Every region stands elsewhere in the second capture, so what moved is an
    # address. Nothing is executed, and nothing but nodes is allocated.
    device.space()  # whose memory is the device's, not this capture's
    free = device.driver_free_bytes()
    started = time.perf_counter()
    a, b = _capture_twice(request, attempt, stand_ins)
    captured = time.perf_counter()

    # Each output is written where the caller gets it, copied out of scratch, or kept.
    planned = outputs.plan(a, b, request.reference.outputs, device, attempt.policy.private_scratch)

    # Each range of memory that a node can address is an argument, an output, scratch or a state.
    regions = name_regions(a, b, request, planned)

    # Read both graphs, compare them, relocate what moved, lay out the scratch, cut where memory
    # changes hands (src/link/link.cpp has these passes).
    linked = _link(a, b, request, attempt, regions, planned)
    _require_same_nodes(linked)
    taken = free - device.driver_free_bytes()
    compared = time.perf_counter()

    # Words that no region explains stay; the callable's own tensors among them are kept alive.
    owned, unknown = foreign.explain(request.holdings, linked.foreign_words)

    # How each argument reaches the graph, and each generator.
    specs = arguments.specifications(request, attempt, a, regions, stand_ins, guarded=bool(unknown))
    draws = generators.draws(
        regions.of_generator,
        request.reference.random_before,
        request.reference.random_after,
        device,
    )

    # Build. The program refers to nothing real until a call binds it.
    drawn_from = draws or generators.among(request.arguments, device)
    program = _engine.TensorProgram.make(
        linked=linked,
        twin=device.twin,
        device_index=device.index,
        arguments=specs,
        blocks=regions.blocks(planned, linked.copy_regions[0]),
        results=planned.results,
        draws=draws,
        generator=device.default_generator() if drawn_from else None,
        unwritten=_unwritten(a, planned, regions, linked, explained=not unknown),
    )
    blocks.merge(program, dict.fromkeys(request.gradients, blocks.GivenUp(0, 0)))

    figures = _figures(linked, a, planned) | {
        "regions": len(regions.places),
        "capture_bytes": taken,
        "private_pool_bytes": space.pool_bytes(a.pool) if attempt.policy.private_scratch else 0,
        "foreign_words": len(linked.foreign_words),
        "unknown_words": len(unknown),
    }
    return LinkedProgram(
        program=program,
        attempt=attempt,
        figures=figures,
        keep=[*stand_ins.values(), *owned, *_captured_memory(request, attempt, a)],
        timings_ms={
            "capture": 1e3 * (captured - started),
            "compare": 1e3 * (compared - captured),
        },
        doubtful=bool(linked.strays),
    )


@dataclasses.dataclass(frozen=True)
class Failure:
    """What ended the attempts, if it was no failed proof."""

    reason: str
    memory_short: bool = False
    operator: str | None = None  #: the guilty one, where it is known
    source: str | None = None
    unexpected: Exception | None = None  #: a fault of ours


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the attempts came to."""

    linked: LinkedProgram | None  #: the proven program
    verdict: Verdict | None  #: of the last proof; None: there was none
    faults: tuple[str, ...]  #: why rungs of the ladder were left
    failure: Failure | None
    offsets_kept: (
        str  #: why the program serves only calls with the offsets of the linked one; or ""
    )
    alignment_doubted: bool  #: a proof failed with arguments captured as the least aligned
    timings_ms: Mapping[str, float]

    @property
    def reasons(self) -> str:
        """Why there is no program, or none on an earlier rung."""
        ended = [self.failure.reason] if self.failure is not None else []
        return "; ".join([*self.faults, *ended])


def find(request: Request, todo: Sequence[Attempt]) -> Outcome:
    """Links and proves, one attempt after the other, until a program is proven or none is left."""
    left = tuple(todo)
    faults: dict[attempts.Policy, Verdict] = {}
    timings: dict[str, float] = collections.defaultdict(float)
    linked: LinkedProgram | None = None
    verdict: Verdict | None = None
    failure: Failure | None = None
    differ: CapturesDiffer | None = None
    because, doubted = "", False
    while left and linked is None:
        attempt, later = left[0], left[1:]
        try:
            made, found = _link_and_prove(request, attempt, timings)
        except (torch.OutOfMemoryError, MemoryError) as error:
            left = attempts.remaining(later, attempt, Setback.MEMORY_SHORT)
            if not left:
                said = f"memory ran out: {str(error).splitlines()[0]}"
                failure = Failure(said, memory_short=True)
            continue
        except CapturesDiffer as error:
            left = attempts.remaining(later, attempt, Setback.CAPTURES_DIFFER)
            if not left:
                failure = _failure(error.smaller(differ))
            differ, because = error, error.because
            continue
        except Exception as error:  # whatever it is, the program goes on
            failure = _failure(error)
            break  # less relocation does not help a callable that cannot be captured
        if found.passed:
            linked, verdict = made, found
            faults.pop(attempt.policy, None)
            continue
        doubted = doubted or attempt.least_aligned
        if not attempt.keep_offsets or attempt.policy not in faults:
            faults[attempt.policy] = verdict = found
        doubtful = made.doubtful and not attempt.keep_offsets and not attempt.least_aligned
        setback = Setback.OFFSETS_DOUBTFUL if doubtful else Setback.PROOF_FAILED
        left = attempts.remaining(later, attempt, setback)
        because = "with other ones a proof failed"
    return Outcome(
        linked=linked,
        verdict=verdict,
        faults=tuple(f"{policy}: {fault}" for policy, fault in faults.items()),
        failure=failure,
        offsets_kept=because if linked is not None and linked.attempt.keep_offsets else "",
        alignment_doubted=doubted,
        timings_ms=timings,
    )


def _link_and_prove(
    request: Request, attempt: Attempt, timings_ms: dict[str, float]
) -> tuple[LinkedProgram, Verdict]:
    started = time.perf_counter()
    try:
        linked = link(request, attempt)
    finally:
        timings_ms["link"] += 1e3 * (time.perf_counter() - started)
    for step, took in linked.timings_ms.items():
        timings_ms[step] += took
    started = time.perf_counter()
    verdict = proof.prove(linked.program, request.reference)
    timings_ms["proof_runs"] += verdict.runs_ms
    timings_ms["proof"] += 1e3 * (time.perf_counter() - started)
    return linked, verdict


def _failure(error: Exception) -> Failure:
    expected = isinstance(error, (CaptureFailed, _engine.UnsupportedGraph, _engine.DriverError))
    return Failure(
        str(error) if expected else repr(error),
        operator=getattr(error, "operator", None),
        source=getattr(error, "source", None),
        unexpected=None if expected else error,
    )


# ------------------------------------------------------------------------------ steps of link()


def _capture_twice(
    request: Request, attempt: Attempt, stand_ins: Mapping[int, torch.Tensor]
) -> tuple[Capture, Capture]:
    # The twin's generator is the host's.
    draws = request.reference.drew_on_host and not request.device.twin
    with record.generator_kept_on_failure(draws):
        a = record.record(request, attempt, stand_ins, _engine.Placement.A)
        try:
            b = record.record(request, attempt, stand_ins, _engine.Placement.B)
            record.require_alike(a, b)
        except CaptureFailed as error:
            if attempt.keep_offsets:
                raise
            raise CapturesDiffer(error, because=str(error)) from error
        if draws and a.drew_on_host and b.drew_on_host:  # else another thread drew
            raise CaptureFailed("it draws random numbers on the host, which a graph does not do")
    return a, b


def _link(
    a: Capture,
    b: Capture,
    request: Request,
    attempt: Attempt,
    regions: Regions,
    planned: outputs.Outputs,
) -> _engine.Linked:
    device, phantom = request.device, request.device.space()
    return _engine.link(
        a=a.graph.handle,
        b=b.graph.handle,
        regions=list(regions.places),
        phantom_begin=phantom.base,
        phantom_end=phantom.base + phantom.reserved_bytes,
        copies=regions.copies(planned),
        operators=a.operators,
        share_scratch=not attempt.policy.scratch_apart,
        arena_in_pieces=attempt.arena_in_pieces,
        smallest_loan=device.smallest_loan,
        **({"peak_slack": device.peak_slack()} if request.cut else {}),
        twin=device.twin,
    )


def _require_same_nodes(linked: _engine.Linked) -> None:
    problems = linked.problems
    if not problems:
        return
    error = CaptureFailed(
        f"two captures of the same call differ in {len(problems)} places; the first: {problems[0]}"
    )
    raise CapturesDiffer(error, because=str(problems[0]), places=len(problems))


def _unwritten(
    a: Capture,
    planned: outputs.Outputs,
    regions: Regions,
    linked: _engine.Linked,
    explained: bool,
) -> list[int]:
    """The results that nobody writes: what is there stays what it was, captured or not. Idle states
    of attention, and what stands in segments that no node has an address of and that were allocated
    for one thing each, where every word is explained."""
    unaddressed = [
        segment
        for segment in planned.direct
        if a.segments[segment].buffers == 1 and not linked.mentions[regions.of_segment[segment]]
    ]
    idle = [
        position
        for position, output in enumerate(a.outputs)
        if is_strided(output) and output.numel() and output.data_ptr() in a.idle
    ]
    known = explained and not linked.strays
    return sorted({*planned.standing_in(unaddressed if known else ()), *idle})


def _captured_memory(request: Request, attempt: Attempt, a: Capture) -> list[Any]:
    """What the capture made and the program needs for as long as it lives."""
    kept: list[Any] = [a.inputs[i] for i in numbers.among(request.arguments, request.device)]
    if request.device.twin:  # constants that only the capture holds; a GPU's are phantom buffers
        kept += a.keep
    if attempt.policy.private_scratch:
        kept += [a.pool, a.keep, a.outputs]
    return kept


def _figures(linked: _engine.Linked, a: Capture, planned: outputs.Outputs) -> dict[str, int]:
    return {
        "nodes": linked.nodes,
        "kernels": linked.kernels,
        "copy_nodes": linked.copies,
        "fill_nodes": linked.fills,
        "edges": linked.edges,
        "relocations": linked.relocations,
        "coincidences": linked.coincidences,
        "noise": linked.noise,
        "scratch_bytes": sum(
            -(-segment.used // _ARENA_STEP) * _ARENA_STEP
            for index, segment in enumerate(a.segments)
            if index not in planned.direct
        ),
        "arena_bytes": linked.arena_bytes,
        "arena_pieces": len(linked.arena_pieces),
        "parts": linked.parts,
        "scratch_in_outputs": linked.lent,
        "arena_lower_bound": linked.lower_bound,
        "output_bytes": planned.bytes,
        "outputs": len(planned.results),
        "segments": len(a.segments),
        **{f"outputs_{name}": count for name, count in planned.counts.items()},
    }
