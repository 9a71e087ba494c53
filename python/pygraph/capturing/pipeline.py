"""The linker, from a callable and one real call of it to a proven program.

`link()` is the pipeline; it is read from top to bottom, in the order in which it runs. `find()`
makes the attempts (attempts.py) one after the other until a program is proven. Nothing of the
caller's is touched by either: a capture executes nothing, and a proof rewinds what it runs.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.capturing import (
    arguments,
    attempts,
    blocks,
    foreign,
    generators,
    host_numbers,
    numbers,
    outputs,
    proof,
    record,
    space,
    spreading,
)
from pygraph.capturing.attempts import Attempt, Setback
from pygraph.capturing.consent import Dissent, Objection
from pygraph.capturing.device import CaptureFailed, is_strided
from pygraph.capturing.host_numbers import Computed
from pygraph.capturing.outcome import Failure, LinkedProgram, Outcome, Tried
from pygraph.capturing.record import Capture
from pygraph.capturing.regions import Regions, name_regions
from pygraph.capturing.request import Request
from pygraph.capturing.spreading import NO_SPREAD
from pygraph.operators import collectives
from pygraph.torch_private.distributed import is_handle

log = logging.getLogger(__name__)

#: Bytes that everything in an arena takes a multiple of (include/pygraph/layout.h).
_ARENA_STEP = 512

#: How the engine begins to say which node of a capture it does not support (src/image).
_NODE = re.compile(r"node (\d+)\b")
#: What it says of a copy of memory that no region explains (src/relocate).
_HOST_MEMORY = "host memory"


class CapturesDiffer(CaptureFailed):
    """The callable was captured, but not a second time, or not alike, with other storage offsets.
    `places`: how many differ; 0 where there was nothing to compare."""

    def __init__(self, error: CaptureFailed, because: str, places: int = 0) -> None:
        super().__init__(str(error), error.operator, error.source)
        self.because = because
        self.places = places


def link(request: Request, attempt: Attempt) -> LinkedProgram:
    """Captures the callable twice, links it, and proves what was made of it. Only the proof reads
    and writes the arguments' memory. Raises CaptureFailed, UnsupportedGraph, DriverError, or what
    says that memory ran out; leaves nothing behind then."""
    started = time.perf_counter()
    device = request.device

    # A graph takes tensors and generators of its device, integers, and numbers on the host.
    arguments.require_served(request)

    # What the attempt does not relocate is captured in place.
    stand_ins = arguments.stand_ins(request, attempt.policy)

    # Capture twice. Every region stands elsewhere in the second capture, so what moved is an
    # address. Nothing is executed, and nothing but nodes is allocated.
    device.space()  # whose memory is the device's, not this capture's
    free = device.driver_free_bytes()
    # Before that: torch counts phantom memory as allocated.
    peak_slack = device.peak_slack() if request.cut else None
    capturing = time.perf_counter()
    a, b = _capture_twice(request, attempt, stand_ins)
    captured = time.perf_counter()

    # Each output is written where the caller gets it, copied out of scratch, or kept.
    planned = outputs.plan(a, b, request.reference.outputs, device, attempt.policy.private_scratch)

    # Each range of memory that a node can address is an argument, an output, scratch or a state.
    regions = name_regions(a, b, request, planned)

    # Read both graphs, compare them, relocate what moved, lay out the scratch, cut where memory
    # changes hands (src/link/link.cpp has these passes).
    computed = host_numbers.pairs(a.computed, b.computed)
    linked = _link(
        a, b, request, attempt, regions, planned, computed=computed, peak_slack=peak_slack
    )
    _require_same_nodes(a, linked)
    _require_known_collectives(request, linked)
    taken = free - device.driver_free_bytes()
    compared = time.perf_counter()

    # Words that no region explains stay; the callable's own tensors among them are kept alive.
    # Where they are in a constant argument, it must stay, too; all constants must while a word that
    # nobody knows may lead to one.
    left = foreign.without_leftovers(request, a, linked.foreign_words)
    stays = foreign.require_allowed(request, left)
    owned, unknown = foreign.explain(request.holdings, left)
    unknown = foreign.unexplained(a, linked.foreign_words, unknown)
    unknown = foreign.that_lead(request, unknown)

    # How each argument reaches the graph, and each generator.
    specs = arguments.specifications(
        request, attempt, a, regions, stand_ins, stays or bool(unknown)
    )
    draws = generators.draws(
        regions.of_generator,
        request.reference.random_before,
        request.reference.random_after,
        device,
    )

    # Build. The program refers to nothing real until a call binds it.
    drawn_from = draws or generators.among(request.arguments, device)
    instantiate = functools.partial(
        _engine.TensorProgram.make,
        twin=device.twin,
        device_index=device.index,
        peers=list(device.peers),
        arguments=specs,
        blocks=regions.blocks(planned, linked.copy_regions[0]),
        results=planned.results,
        fetched=outputs.fetched(a.outputs, request.fetched),
        draws=draws,
        numbers=[number.source for number, _ in computed],
        generator=device.default_generator() if drawn_from else None,
        unwritten=_unwritten(a, planned, regions, linked, explained=not unknown),
    )

    def make(linked: _engine.Linked) -> _engine.TensorProgram:
        made: _engine.TensorProgram = instantiate(linked=linked)
        blocks.merge(made, dict.fromkeys(request.gradients, blocks.GivenUp(0, 0)))
        return made

    chain = linked.clone() if request.spreads(attempt) else None
    program = make(linked)

    figures = _figures(linked, a, planned) | {
        "regions": len(regions.places),
        "capture_bytes": taken,
        "private_pool_bytes": space.pool_bytes(a.pool) if attempt.policy.private_scratch else 0,
        "foreign_words": len(linked.foreign_words),
        "unknown_words": len(unknown),
    }
    keep = [*stand_ins.values(), *owned, *_captured_memory(request, attempt, a)]
    doubtful, asked = bool(linked.strays), a.asked
    built = time.perf_counter()

    # Prove. Runs at other addresses, with everything poisoned that must not be read, compute what
    # the callable computes. Phantom memory that the program does not need is given back before.
    del a, b, planned, regions, linked
    verdict = _prove(program, request)
    proven = time.perf_counter()

    # Where nodes may run side by side, and that pays, the same in lanes.
    spread = NO_SPREAD
    if chain is not None and verdict.passed:
        spread = spreading.spread(program, chain, request, make=make, prove=_prove)
    if spread.found is not None:
        program, verdict = spread.found.program, spread.found.verdict
        figures |= _figures_of_order(spread.found.linked)
    spent = time.perf_counter()
    return LinkedProgram(
        program=program,
        attempt=attempt,
        figures=figures,
        keep=keep,
        timings_ms={
            "link": 1e3 * (built - started),
            "capture": 1e3 * (captured - capturing),
            "compare": 1e3 * (compared - captured),
            "proof_runs": verdict.runs_ms,
            "proof": 1e3 * (proven - built),
            **({} if chain is None else {"lanes": 1e3 * (spent - proven)}),
        },
        spread=spread,
        doubtful=doubtful,
        asked=asked,
        verdict=verdict,
    )


def find(request: Request, todo: Sequence[Attempt]) -> Outcome:
    """Makes one attempt after the other, until a program is proven or none is left."""
    left = tuple(todo)
    tried: list[Tried] = []
    while left:
        last = _together(request, left[0])
        tried.append(last)
        log.debug("%s: %s", last.attempt, last.failure.reason if last.failure else last.verdict)
        left = attempts.remaining(left[1:], last.attempt, last.setback) if last.setback else ()
    return Outcome(tried)


def refused(attempt: Attempt, objection: Objection) -> Outcome:
    """What comes of attempts of which the first is not made."""
    return Outcome([Tried(attempt, {}, dissent=True, **_objected(objection))])


def _together(request: Request, attempt: Attempt) -> Tried:
    """An attempt that succeeds where it does so on all ranks that the callable's collectives are
    with; else it has the same setback on all of them."""
    request.consent.begin(attempt)
    tried = _try(request, attempt)
    if tried.linked is not None or tried.dissent:
        return tried
    own = Objection(
        reason=tried.failure.reason if tried.failure else str(tried.verdict),
        setback=tried.setback,
        memory_short=tried.failure is not None and tried.failure.memory_short,
        operator=tried.failure.operator if tried.failure else None,
    )
    counts = request.consent.object(own)
    return tried if counts == own else dataclasses.replace(tried, **_objected(counts))


def _objected(objection: Objection) -> dict[str, Any]:
    failure = Failure(objection.reason, objection.memory_short, objection.operator)
    return {"failure": failure, "setback": objection.setback}


def _try(request: Request, attempt: Attempt) -> Tried:
    started = time.perf_counter()
    places, because, setback = 0, "", None
    try:
        return _judge(link(request, attempt), attempt)
    except (torch.OutOfMemoryError, MemoryError) as error:
        said = next(iter(str(error).splitlines()), "")
        failure = Failure(f"memory ran out: {said}", memory_short=True)
        setback = Setback.MEMORY_SHORT
    except Dissent as error:
        timings = {"link": 1e3 * (time.perf_counter() - started)}
        return Tried(attempt, timings, dissent=True, **_objected(error.objection))
    except CapturesDiffer as error:
        failure, places, because = _failure(error), error.places, error.because
        setback = Setback.CAPTURES_DIFFER
    except Exception as error:  # whatever it is, the program goes on
        failure = _failure(error)  # less relocation does not help what cannot be captured
        if not attempt.told:
            failure = dataclasses.replace(
                failure, reason=f"told that it is not captured: {failure.reason}"
            )
            setback = Setback.NOT_CAPTURED
    return Tried(
        attempt,
        {"link": 1e3 * (time.perf_counter() - started)},
        failure=failure,
        places=places,
        because=because,
        setback=setback,
    )


def _judge(linked: LinkedProgram, attempt: Attempt) -> Tried:
    if linked.verdict.passed:
        return Tried(attempt, linked.timings_ms, linked=linked, verdict=linked.verdict)
    setback = Setback.PROOF_FAILED
    if linked.asked and attempt.told:
        setback = Setback.ASKED
    elif linked.doubtful and not attempt.keep_offsets and not attempt.least_aligned:
        setback = Setback.OFFSETS_DOUBTFUL
    return Tried(
        attempt,
        linked.timings_ms,
        verdict=linked.verdict,
        because="with other ones a proof failed",
        setback=setback,
    )


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
    *,
    computed: Sequence[tuple[Computed, Computed]],
    peak_slack: int | None,
) -> _engine.Linked:
    """`peak_slack`: None if the graph is not to be cut into parts."""
    device, phantom = request.device, request.device.space()
    try:
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
            **({} if peak_slack is None else {"peak_slack": peak_slack}),
            numbers=list(map(host_numbers.of_engine, computed)),
            known=list(a.known),
            independence=request.spreads(attempt),
            devices=[device.index, *device.peers] if device.peers else [],
            twin=device.twin,
        )
    except _engine.UnsupportedGraph as error:
        raise CaptureFailed(str(error), _operator_of(a, str(error))) from error


def _prove(program: _engine.TensorProgram, request: Request) -> proof.Verdict:
    """Raises CaptureFailed where the program serves this call, and not one with other numbers."""
    verdict = proof.prove(program, request.reference, consent=request.consent)
    if verdict.passed and request.numbers.arguments:
        _prove_with_other_numbers(program, request)
    return verdict


def _prove_with_other_numbers(program: _engine.TensorProgram, request: Request) -> None:
    """Raises CaptureFailed where the program does not compute the same as the callable of others:
    what the callable computes of its numbers where nobody sees it has no formula."""
    others = request.numbers.in_proof(request.arguments)
    try:
        verdict = proof.prove_with_others(program, request.reference, others, request.consent)
    except (torch.OutOfMemoryError, MemoryError, _engine.DriverError, Dissent):
        raise
    except Exception as error:
        raise CaptureFailed(f"with other numbers it raises {error!r}") from error
    if not verdict.passed:
        raise CaptureFailed(f"with other numbers a proof failed: {verdict}")


def _operator_of(a: Capture, problem: str) -> str | None:
    """The operator that launched the node which the engine has a problem with."""
    node = _NODE.match(problem)
    return a.operator_of(int(node[1])) if node else None


def _require_same_nodes(a: Capture, linked: _engine.Linked) -> None:
    problems = list(map(str, linked.problems))
    if not problems:
        return
    # What copies host memory that is not the caller's does so by itself. Other differences may
    # have come from any operator before.
    culprit = _operator_of(a, problems[0]) if _HOST_MEMORY in problems[0] else None
    error = CaptureFailed(
        f"two captures of the same call differ in {len(problems)} places; the first: {problems[0]}",
        culprit,
    )
    raise CapturesDiffer(error, because=problems[0], places=len(problems))


def _require_known_collectives(request: Request, linked: _engine.Linked) -> None:
    """Raises CaptureFailed for a collective that no operator of torch's has launched: other ranks
    would have to run it as often as a proof does, and nobody knows which those are."""
    if request.collectives:
        return
    kernel = collectives.kernel_among(map(linked.node_name, range(linked.nodes)))
    if kernel is not None:
        raise CaptureFailed(f"{kernel} is a collective of a group that is not known")


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
    states = [
        position
        for position, output in enumerate(a.outputs)
        if is_strided(output) and output.numel() and output.data_ptr() in a.unwritten
    ]
    known = explained and not linked.strays
    return sorted({*planned.standing_in(unaddressed if known else ()), *states})


def _captured_memory(request: Request, attempt: Attempt, a: Capture) -> list[Any]:
    """What the capture made and the program needs for as long as it lives."""
    kept: list[Any] = [a.inputs[i] for i in numbers.among(request.arguments, request.device)]
    kept += filter(is_handle, request.arguments)
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
        "relocations": linked.relocations,
        "coincidences": linked.coincidences,
        "noise": linked.noise,
        "scratch_bytes": sum(
            -(-segment.used // _ARENA_STEP) * _ARENA_STEP
            for index, segment in enumerate(a.segments)
            if index not in planned.direct
        ),
        "parts": linked.parts,
        "output_bytes": planned.bytes,
        "outputs": len(planned.results),
        "segments": len(a.segments),
        **{f"outputs_{name}": count for name, count in planned.counts.items()},
        **_figures_of_order(linked),
    }


def _figures_of_order(linked: _engine.Linked) -> dict[str, int]:
    """Those that follow from the order of the nodes."""
    return {
        "edges": linked.edges,
        "lanes": linked.lanes,
        "arena_bytes": linked.arena_bytes,
        "arena_pieces": len(linked.arena_pieces),
        "scratch_in_outputs": linked.lent,
        "arena_lower_bound": linked.lower_bound,
    }
