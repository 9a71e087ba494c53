"""Linking a call under a policy, and proving what was linked.

Three retreats are tried here, before the ladder of policies goes down a rung: an arena in pieces
where memory runs out, and where a proof fails the alignment that the arguments have (other kernels
may round differently), and the storage offsets of the linked call kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.capture import linker, proof, reference
from pygraph.capture.device import Device, Function
from pygraph.capture.policy import Policy
from pygraph.capture.request import Request
from pygraph.reporting import GraphReport


class Prover:
    """Of one compiled graph. `changing` says which arguments differ from call to call; what it
    takes is added up in the report."""

    def __init__(
        self,
        function: Function,
        changing: Callable[[Sequence[Any]], list[int]],
        device: Device,
        report: GraphReport,
    ) -> None:
        self._function = function
        self._changing = changing
        self._device = device
        self._report = report
        #: Of the graph proven last, until the device is idle. What it poisons is in it.
        self.seconds_per_run = 0.0

    def attempt(
        self, request: Request, run: reference.Reference, policy: Policy
    ) -> tuple[linker.LinkedProgram, str]:
        """Where memory runs out, tries once more with an arena that needs no more of it in one
        piece than the callable does."""
        try:
            return self._link(request, run, policy)
        except (torch.OutOfMemoryError, MemoryError):
            if request.arena_in_pieces:
                raise
            request.arena_in_pieces = True
        return self._link(request, run, policy)

    def _link(
        self, request: Request, run: reference.Reference, policy: Policy
    ) -> tuple[linker.LinkedProgram, str]:
        linked, verdict = self._link_once(request, run, policy)
        if verdict.startswith(proof.FAILED) and request.alignments:
            request.alignments.clear()
            linked, verdict = self._link_once(request, run, policy)
        if verdict.startswith(proof.FAILED) and linked.doubtful and not request.keep_offsets:
            request.keep_offsets = True
            try:
                again, second = self._link_once(request, run, policy)
            finally:
                request.keep_offsets = False
            if not second.startswith(proof.FAILED):
                return again, second
        return linked, verdict

    def _link_once(
        self, request: Request, run: reference.Reference, policy: Policy
    ) -> tuple[linker.LinkedProgram, str]:
        started = time.perf_counter()
        linked = linker.link(request, policy)
        self._time("link", started)
        for step, elapsed in linked.timings_ms.items():
            self._add_time(step, elapsed)
        started = time.perf_counter()
        verdict = self.prove(linked.call, run)
        self._time("proof", started)
        return linked, verdict

    def prove(self, call: _engine.TensorProgram, run: reference.Reference) -> str:
        changing = self._changing(run.arguments)
        timings = self._report.timings_ms
        before = timings.get("proof_runs", 0.0)
        verdict = proof.prove(call, self._function, run, changing, self._device, timings)
        spent = timings.get("proof_runs", 0.0) - before
        self.seconds_per_run = 1e-3 * spent / len(proof.RUNS)
        return verdict

    def _time(self, step: str, started: float) -> None:
        self._add_time(step, 1e3 * (time.perf_counter() - started))

    def _add_time(self, step: str, elapsed_ms: float) -> None:
        self._report.timings_ms[step] = self._report.timings_ms.get(step, 0.0) + elapsed_ms
