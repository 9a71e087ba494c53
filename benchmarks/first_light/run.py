"""One model in all modes: prepare, check, weigh, time.

All modes of a model are prepared before any is timed, and they stay alive together, so that the
rounds of the clocks can visit each in turn. Memory is weighed right after a mode was prepared, as
growth over what was there before it, so that modes do not count for each other. Both readings are
taken when all garbage is gone and cuBLAS's workspaces with it: what frees those in between
(capturing does) would otherwise seem to need less than nothing.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.harness import compare, measure, modes
from benchmarks.harness.device import MIB, Device, Memory, nbytes, young_heap
from benchmarks.harness.record import Record
from pygraph.demo.models import Unavailable, Workload
from pygraph.reporting import Report

log = logging.getLogger(__name__)

ROTATED = 16
"""Inputs that the timed loops rotate through."""
CHECKED = 4
"""Inputs that correctness is checked on, other ones than those."""
WEIGHED_CALLS = 5
ROUGHLY_NONE = 1.0
"""MiB that a reading may be off, by rounding and small blocks."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    effort: measure.Effort
    modes: Sequence[str]
    cold: bool = False
    """Compile each mode without Inductor's caches, so that compile times can be compared."""


def run_workload(
    workload: Workload,
    device: Device,
    options: Options,
    progress: Progress = lambda _: None,
    phases: measure.Phases | None = None,
) -> list[Record]:
    """Never raises for what a model or a mode does: that is recorded, and the next one tried.

    `phases` is told where the time went; what is a mode's alone is in its record's `extra` too.
    """
    phases = measure.Phases() if phases is None else phases
    records = {
        mode: Record(workload.name, workload.batch, mode, correct=False) for mode in options.modes
    }
    try:
        with torch.no_grad():
            _run(workload, device, options, records, progress, phases)
    except Exception as error:
        _fail([record for record in records.values() if not record.timed], error)
    finally:
        with phases.time("clear"):
            _clear(device)
    return list(records.values())


def _run(
    workload: Workload,
    device: Device,
    options: Options,
    records: dict[str, Record],
    progress: Progress,
    phases: measure.Phases,
) -> None:
    progress("model")
    torch._dynamo.reset()
    with phases.time("model"):
        model = workload.make_model(device.torch)
        device.synchronize()
    with phases.time("inputs"):
        inputs = [workload.make_inputs(1000 + n, device.torch) for n in range(ROTATED)]
        fresh = [workload.make_inputs(n, device.torch) for n in range(CHECKED)]
    bench = modes.Bench(model, inputs, device)
    with young_heap():
        with phases.time("reference"):
            expected = compare.expect(bench, fresh)
            device.synchronize()
        for place, mode in enumerate(options.modes):
            progress(mode)
            # A mode that went well was followed by a full collection when it was weighed.
            settled = 0 < place == len(bench.runners)
            own = measure.Phases()
            _prepare(records[mode], bench, expected, options, own, settled)
            records[mode].extra["phases"] = dict(own)
            for name, seconds in own.items():
                phases.add(name, seconds)
        progress("timing")
        with phases.time("timing"):
            _time(records, bench, options)


def _prepare(
    record: Record,
    bench: modes.Bench,
    expected: compare.Expected,
    options: Options,
    phases: measure.Phases,
    settled: bool,
) -> None:
    try:
        with phases.time("weigh"):
            bench.device.tidy(1 if settled else 2)
            before = bench.device.memory()
        with phases.time("prepare"), _caches(options.cold):
            runner = modes.prepare(record.mode, bench)
        record.compile_s = runner.compile_s
        with phases.time("weigh"):
            weigh(record, runner, bench, before)
        with phases.time("check"):
            verdict = compare.check(runner, expected)
        record.correct, record.error = verdict.correct, verdict.reason
        record.relative_error, record.fresh = verdict.relative_error, verdict.fresh
        record.bit_equal_to_default = verdict.bit_equal_to_default
        record.max_difference_to_default = verdict.max_difference_to_default
        record.default_spread = expected.default_spread if expected.default else None
        record.extra |= runner.extra
        record.extra |= {"tolerance": expected.tolerance, "eager_error": expected.eager_error}
    except Exception as error:
        _fail([record], error)
    if not record.correct:
        bench.runners.pop(record.mode, None)


def weigh(record: Record, runner: modes.Runner, bench: modes.Bench, before: Memory) -> None:
    """Peaks of some calls in the steady state: the model, its inputs and what this mode added."""
    device = bench.device
    device.tidy()
    device.restart_peaks()
    for n in range(WEIGHED_CALLS):
        if runner.before is not None:
            runner.before()
        outputs = runner.step(*bench.inputs[n])
        device.synchronize()
        if n + 1 < WEIGHED_CALLS:
            outputs = ()
    # Read while the outputs live: in a private pool they are not idle, and not counted twice.
    after = device.memory()
    del outputs
    note_memory(record, before, after, own_memory(bench))


def note_memory(record: Record, before: Memory, after: Memory, own: float) -> None:
    """From the readings to the figures; what cannot be is left out, with a note."""
    peak = after.peak_allocated - before.allocated
    reserved = max(peak, after.peak_reserved - before.reserved)
    driver = after.in_use - before.in_use
    note = None
    if before.idle is None or after.idle is None or before.private is None or after.private is None:
        note = "no peak: this torch does not tell what private pools hold"
    else:
        peak += max(0.0, after.idle - before.idle)
        reserved = max(peak, reserved)
        record.extra["private_mib"] = max(0.0, after.private - before.private)
        if peak < -ROUGHLY_NONE:
            note = f"no peak: {-peak:.0f} MiB less than before this mode, something else was freed"
    record.peak_mib = own + max(0.0, peak) if note is None else None
    record.reserved_mib = own + max(0.0, reserved) if reserved >= -ROUGHLY_NONE else None
    record.extra["driver_mib"] = own + driver if driver >= -ROUGHLY_NONE else None
    if note:
        record.extra["memory_note"] = note


def own_memory(bench: modes.Bench) -> float:
    tensors = [*bench.model.parameters(), *bench.model.buffers()]
    tensors += [tensor for inputs in bench.inputs for tensor in inputs]
    return nbytes(tensors) / MIB


def _time(records: dict[str, Record], bench: modes.Bench, options: Options) -> None:
    runners = list(bench.runners.values())
    copied = _report().bytes_copied if "pygraph" in bench.runners else 0
    samples = measure.measure(runners, bench.inputs, bench.device, options.effort)
    for runner in runners:
        record = records[runner.mode]
        record.take(samples[runner.mode])
        record.bytes_copied = runner.bytes_per_call
        if runner.mode == "pygraph":
            report = _report()
            record.bytes_copied = (report.bytes_copied - copied) / samples[runner.mode].calls
            record.extra["report"] = report.to_dict()


def _report() -> Report:
    from pygraph.runtime.registry import report

    return report()


def _caches(cold: bool) -> AbstractContextManager[Any]:
    if not cold:
        return nullcontext()
    from torch._inductor import utils

    # The name changed between the versions that we support.
    fresh = getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache
    return fresh()


def _fail(records: Sequence[Record], error: Exception) -> None:
    log.debug("%s", "".join(traceback.format_exception(error)))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = ": ".join([type(error).__name__, *lines[:1]])
    if isinstance(error, Unavailable):
        message = str(error)
    for record in records:
        record.correct = False
        record.error = record.error or message


def _clear(device: Device) -> None:
    """Free what the model held; a device that is broken is found out by the next use of it."""
    try:
        torch._dynamo.reset()
        device.tidy()
    except RuntimeError:
        log.debug("could not tidy up", exc_info=True)
