"""The life of one compiled graph: warm it, link it, prove it, replay it, or run it as it is.

`Graphed.dispatcher` is what Inductor calls in place of the compiled callable. It is C++ and serves
every call that a proven graph accepts; the rest arrives in `_miss`. The first call of a signature
runs the callable for real, which loads modules and creates library handles (a capture must not);
the second runs it for real again, captures, links and proves, and gives the caller the real run's
result, whatever became of the capture.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.adapter.uncaptured import Uncaptured
from pygraph.capture import linker, proof, reference, space
from pygraph.capture.policy import LADDER, Policy
from pygraph.capture.record import CaptureFailed
from pygraph.reporting import FALLBACK, GRAPHED, PARTLY, WARMING, GraphReport

log = logging.getLogger("pygraph")

#: Calls of one signature that run uncaptured before it is captured.
WARM_UP_CALLS = 1
#: Signatures (tuples of integer arguments) of one compiled graph that get a graph of their own.
MAXIMUM_SIGNATURES = 8

_EXPECTED = (CaptureFailed, _engine.UnsupportedGraph, _engine.DriverError)

SourceFinder = Callable[[str | None], str | None]


@dataclasses.dataclass
class _Signature:
    calls: int = 0
    settled: bool = False  #: captured, or given up: _miss only runs the callable from now on
    keep: Any = None


class Graphed:
    """One compiled graph. Guarded by the GIL for calls and by capture_lock for captures."""

    def __init__(
        self,
        function: Callable[[list[Any]], Any],
        *,
        name: str,
        static: Sequence[int],
        mutated: Sequence[int],
        device: int,
        find_source: SourceFinder = lambda operator: None,
    ) -> None:
        self.static = frozenset(static)
        self.mutated = frozenset(mutated)
        self.device = device
        #: Told the arguments and results of the call that deployed a graph.
        self.on_deploy: Callable[[Sequence[Any], Sequence[Any]], None] | None = None
        self.uncaptured = Uncaptured(function, self.mutated)
        self.report = GraphReport(name=name, state=WARMING)
        self._find_source = find_source
        self._signatures: dict[tuple[int, ...], _Signature] = {}
        self._calls: list[_engine.GraphCall] = []
        self.dispatcher = _engine.Dispatcher(self._miss, self._failed)

    def entry(self) -> Callable[[list[Any]], Any]:
        """What Inductor calls. Keeps this object alive."""
        return self.dispatcher

    def refresh_report(self) -> GraphReport:
        """The report with the counters of this moment."""
        self.report.calls = self.dispatcher.calls
        self.report.replays = sum(call.replays for call in self._calls)
        self.report.bytes_copied = sum(call.bytes_copied for call in self._calls)
        self.report.copies = sum(call.copies for call in self._calls)
        return self.report

    def release(self) -> None:
        """Drops every graph and its memory; calls run uncaptured from now on."""
        self.dispatcher.clear()
        self._calls.clear()
        for signature in self._signatures.values():
            signature.settled, signature.keep = True, None

    # ------------------------------------------------------------------ the slow path

    def _miss(self, arguments: list[Any]) -> Any:
        key = tuple(argument for argument in arguments if type(argument) is int)
        signature = self._signatures.get(key)
        if signature is None:
            if len(self._signatures) >= MAXIMUM_SIGNATURES:
                self._note_limit()
                return self.uncaptured(arguments)
            signature = self._signatures[key] = _Signature()
        if signature.settled or torch.cuda.is_current_stream_capturing():
            return self.uncaptured(arguments)
        signature.calls += 1
        if signature.calls <= WARM_UP_CALLS:
            return self._warm_up(signature, arguments)
        # The arguments are needed after the call, whose contract is to clear the list.
        kept = list(arguments)
        arguments.clear()
        signature.settled = True
        return self._deploy(signature, kept)

    def _failed(self, arguments: list[Any], message: str) -> Any:
        """A proven graph failed at run time (the driver refused, memory ran out)."""
        self._give_up(f"a replay failed: {message}")
        return self.uncaptured(arguments)

    def _warm_up(self, signature: _Signature, arguments: list[Any]) -> Any:
        generator = torch.cuda.default_generators[self.device]
        before = generator.get_offset()
        result = self.uncaptured(arguments)
        if generator.get_offset() != before:
            signature.settled = True
            self._give_up("it draws random numbers on the GPU, which graphs do not serve yet")
        return result

    def _deploy(self, signature: _Signature, arguments: list[Any]) -> Any:
        """Runs the callable once for the caller, and then tries to get a proven graph."""
        changing = [i for i in range(len(arguments)) if i not in self.static]
        run = reference.take(self.uncaptured, arguments, changing, self.mutated)
        reasons: list[str] = []
        with space.capture_lock:
            for policy in LADDER:
                try:
                    linked, verdict = self._link_and_prove(run, changing, policy)
                except Exception as error:  # whatever it is, the program goes on
                    self._note_failure(error)
                    reasons.append(str(error) if isinstance(error, _EXPECTED) else repr(error))
                    break  # less relocation does not help a callable that cannot be captured
                self.report.proof = verdict
                if not verdict.startswith("failed"):
                    self._adopt(signature, linked, arguments, reasons)
                    if self.on_deploy is not None:
                        self.on_deploy(arguments, run.outputs)
                    return run.outputs
                reasons.append(f"{policy}: {verdict}")
        self._give_up("; ".join(reasons))
        return run.outputs

    def _link_and_prove(
        self, run: reference.Reference, changing: Sequence[int], policy: Policy
    ) -> tuple[linker.LinkedCall, str]:
        started = time.perf_counter()
        linked = linker.link(
            self.uncaptured.function, run.arguments, changing, run.mutated, self.device, policy
        )
        self._time("link", started)
        started = time.perf_counter()
        verdict = proof.prove(
            linked.call, self.uncaptured, run, changing, space.space_of(self.device)
        )
        self._time("proof", started)
        return linked, verdict

    # ------------------------------------------------------------------ bookkeeping

    def _adopt(
        self,
        signature: _Signature,
        linked: linker.LinkedCall,
        arguments: Sequence[Any],
        reasons: list[str],
    ) -> None:
        signature.keep = linked.keep
        self._calls.append(linked.call)
        report = self.report
        report.state = GRAPHED if linked.policy == LADDER[0] else PARTLY
        report.reason = "; ".join(reasons) or None
        figures = linked.figures
        for field in (
            "nodes",
            "kernels",
            "edges",
            "relocations",
            "coincidences",
            "noise",
            "outputs",
            "arena_bytes",
            "output_bytes",
            "private_pool_bytes",
            "capture_bytes",
        ):
            setattr(report, field, figures[field])
        tensor_count = sum(isinstance(argument, torch.Tensor) for argument in arguments)
        report.constants = sum(isinstance(arguments[i], torch.Tensor) for i in self.static)
        report.inputs = tensor_count - report.constants
        linked.call.reset_statistics()  # the proof's runs are not the program's
        self.dispatcher.add(linked.call)
        log.info("%s: %d nodes linked, %s", report.name, report.nodes, report.proof)

    def _give_up(self, reason: str) -> None:
        self.dispatcher.clear()
        self.report.state = FALLBACK
        self.report.reason = reason
        log.warning("%s runs without a CUDA graph: %s", self.report.name, reason)

    def _note_failure(self, error: Exception) -> None:
        if not isinstance(error, _EXPECTED):
            log.error("%s: unexpected failure while linking", self.report.name, exc_info=error)
        operator = getattr(error, "operator", None)
        self.report.operator = operator
        self.report.source = self._find_source(operator) or getattr(error, "source", None)

    def _note_limit(self) -> None:
        self.report.reason = (
            f"more than {MAXIMUM_SIGNATURES} sets of sizes were seen; the later ones run "
            "without a graph"
        )

    def _time(self, step: str, started: float) -> None:
        elapsed = 1e3 * (time.perf_counter() - started)
        self.report.timings_ms[step] = self.report.timings_ms.get(step, 0.0) + elapsed
