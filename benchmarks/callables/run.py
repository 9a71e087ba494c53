"""One row in all modes: prepare, weigh, check, time, and ask the profiler what ran.

All modes of a row are prepared before any is timed, and stay alive together, so that the rounds of
the clocks can visit each in turn. The profiler comes last: what it leaves behind in the driver
could slow the clocks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.callables.check import (
    STEPS,
    Reference,
    Track,
    judge,
    learn_eager,
    take,
    take_runs,
)
from benchmarks.callables.modes import MODES, OWN, Caller, why_not
from benchmarks.callables.program import Row
from benchmarks.callables.record import Record
from benchmarks.callables.timeline import observed
from benchmarks.harness import floor, measure
from benchmarks.harness.device import Device, young_heap
from benchmarks.harness.modes import Bench, begin, warm_up
from benchmarks.harness.profile import profile
from benchmarks.harness.record import costs_itself, message
from benchmarks.harness.weigh import WEIGHED_CALLS, note_memory, steady
from pygraph.demo.models import Unavailable

log = logging.getLogger(__name__)

POOL = 16
"""Inputs that the timed calls go around."""
POOL_SEED = 1000
GENERATOR_LOST = "torch's generator was replaced: graphs from before draw from the old one"
NOT_SERVED = "its graphs served none of the calls that were compared"
TIMELINES = ("eager", "default", "reduce-overhead", OWN)


def run_row(
    row: Row, device: Device, effort: measure.Effort, modes: Sequence[str]
) -> tuple[list[Record], dict[str, Any]]:
    """A record per mode, eager first, and what is true for the row. Never raises for what a mode
    does: that is recorded, and the next one tried."""
    records = {mode: Record(row.name, row.batch, mode) for mode in modes}
    phases = measure.Phases()
    about: dict[str, Any] = {"about": row.about, "batch": row.batch, "phases": phases}
    torch._dynamo.reset()
    with torch.set_grad_enabled(row.training):
        bench = Bench(None, row.inputs(POOL, device.torch, POOL_SEED), device, workload=row)
        try:
            _rehearse(bench, phases)
        except Unavailable as error:
            for record in records.values():
                record.skipped = str(error)
            return list(records.values()), about
        with young_heap():
            _prepare(bench, records, phases)
            with phases.time("check"):
                about["check"] = check(bench, records)
            with phases.time("clocks"):
                begun = measure.loop_step_ns()
                _time(bench, records, effort)
                about["loop_step_ns"] = [begun, measure.loop_step_ns()]
            with phases.time("profile"):
                about["timelines"] = _profile(bench, records)
    return list(records.values()), about


def _rehearse(bench: Bench, phases: measure.Phases) -> None:
    """Calls that load kernels and libraries, which are no mode's in particular."""
    with phases.time("rehearse"):
        caller = MODES["eager"](bench)
        for inputs in bench.inputs[:2]:
            caller.run(inputs)
        bench.device.synchronize()


def _prepare(bench: Bench, records: dict[str, Record], phases: measure.Phases) -> None:
    """Each mode to its steady state, and what it holds then."""
    for mode, record in records.items():
        record.skipped = why_not(mode, bench.workload, bench.device.is_cuda)
        if record.skipped is not None:
            continue
        with costs_itself(record, bench), phases.time(mode):
            try:
                _prepare_mode(bench, record)
            except Unavailable as error:
                record.skipped = str(error)
            except Exception as error:
                if bench.device.is_cuda and floor.heal_random_numbers():
                    error.add_note(GENERATOR_LOST)
                raise


def _prepare_mode(bench: Bench, record: Record) -> None:
    bench.device.tidy()
    before = bench.device.memory()
    caller = warm_up(begin(MODES[record.mode], bench), bench)
    bench.runners[record.mode] = caller
    record.prepare_s = caller.compile_s
    record.extra |= caller.extra
    if bench.device.is_cuda:
        # The program was made since, so that its own memory is in the growth.
        note_memory(record, before, steady(caller, bench, WEIGHED_CALLS), own=0.0)
        bench.device.tidy()
        record.take_held(before, bench.device.memory())


def check(bench: Bench, records: dict[str, Record]) -> dict[str, Any]:
    """Takes the modes that are wrong out of the bench; returns how the others were compared."""
    row, device = bench.workload, bench.device
    inputs = row.inputs(STEPS, device.torch)
    start = row.make(device.torch).copied()
    reference = None
    for mode, caller in list(bench.runners.items()):
        record = records[mode]
        with costs_itself(record, bench):
            if mode == "eager":
                reference = learn_eager(start, caller, inputs, row, device.is_cuda)
            if reference is None:
                raise RuntimeError("eager failed, which all modes are compared with")
            before = caller.counted("replays")
            verdict = judge(mode, _track(caller, reference, inputs, device), reference)
            record.replays_checked = caller.counted("replays") - before
            if not record.replays_checked and any(each.graphed for each in caller.reports()):
                verdict.correct, verdict.reason = False, NOT_SERVED
            record.correct, record.error = verdict.correct, verdict.reason
            record.verdict = asdict(verdict)
        if not record.correct:
            bench.runners.pop(mode, None)
            if mode == "default" and reference is not None:
                reference.default = None
    return {} if reference is None else reference.to_dict()


def _track(caller: Caller, reference: Reference, inputs: Sequence[Any], device: Device) -> Track:
    if caller.mode == "eager":
        return reference.eager.first
    if caller.mode == "default":
        reference.default = take_runs(caller, reference.start, inputs, device.is_cuda)
        return reference.default.first
    return take(caller, reference.start, inputs)


def _time(bench: Bench, records: dict[str, Record], effort: measure.Effort) -> None:
    callers = list(bench.runners.values())
    bench.device.tidy()
    samples = measure.measure(callers, bench.inputs, bench.device, effort)
    for caller in callers:
        record = records[caller.mode]
        record.take(samples[caller.mode])
        record.bytes_copied = caller.bytes_per_call
        record.take_reports(caller.reports())


def _profile(bench: Bench, records: dict[str, Record]) -> dict[str, Any]:
    """The kernels and graphs of a call, and, where the row has them, the timelines by mode."""
    timelines: dict[str, Any] = {}
    if not bench.device.is_cuda:
        return timelines
    for mode, caller in bench.runners.items():
        try:
            records[mode].take_launched(profile(caller, bench.inputs))
            if bench.workload.timeline and mode in TIMELINES:
                timelines[mode] = asdict(observed(caller, bench.inputs))
        except Exception as error:
            log.debug("%s was not profiled", mode, exc_info=True)
            records[mode].extra["no_profile"] = message(error)
    return timelines
