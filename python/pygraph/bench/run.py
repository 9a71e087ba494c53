"""One model in all modes: prepare, check, weigh, time.

All modes of a model are prepared before any is timed, and they stay alive together, so that the
rounds of the clocks can visit each in turn. Memory is weighed right after a mode was prepared, as
growth over what was there before it, so that modes do not count for each other.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from pygraph.bench import compare, measure, modes
from pygraph.bench.device import MIB, Device, Memory, nbytes
from pygraph.bench.models import Unavailable, Workload
from pygraph.bench.record import Record
from pygraph.reporting import Report

log = logging.getLogger(__name__)

ROTATED = 16
"""Inputs that the timed loops rotate through."""
CHECKED = 4
"""Inputs that correctness is checked on, other ones than those."""
WEIGHED_CALLS = 5

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    effort: measure.Effort
    modes: Sequence[str]
    cold: bool = False
    """Compile each mode without Inductor's caches, so that compile times can be compared."""


def run_workload(
    workload: Workload, device: Device, options: Options, progress: Progress = lambda _: None
) -> list[Record]:
    """Never raises for what a model or a mode does: that is recorded, and the next one tried."""
    records = {
        mode: Record(workload.name, workload.batch, mode, correct=False) for mode in options.modes
    }
    bench: modes.Bench | None = None
    try:
        with torch.no_grad():
            torch._dynamo.reset()
            progress("model")
            model = workload.make_model().to(device.torch)
            inputs = [workload.make_inputs(1000 + n, device.torch) for n in range(ROTATED)]
            bench = modes.Bench(model, inputs, device)
            fresh = [workload.make_inputs(n, device.torch) for n in range(CHECKED)]
            expected = compare.expect(bench, fresh)
            for mode in options.modes:
                progress(mode)
                _prepare(records[mode], bench, expected, options)
            progress("timing")
            _time(records, bench, options)
    except Exception as error:
        _fail([record for record in records.values() if not record.timed], error)
    finally:
        bench = None
        _clear(device)
    return list(records.values())


def _prepare(
    record: Record, bench: modes.Bench, expected: compare.Expected, options: Options
) -> None:
    try:
        bench.device.tidy()
        before = bench.device.memory()
        with _caches(options.cold):
            runner = modes.prepare(record.mode, bench)
        record.compile_s = runner.compile_s
        verdict = compare.check(runner, expected)
        record.correct, record.error = verdict.correct, verdict.reason
        record.relative_error, record.fresh = verdict.relative_error, verdict.fresh
        record.bit_equal_to_default = verdict.bit_equal_to_default
        record.max_difference_to_default = verdict.max_difference_to_default
        record.default_spread = expected.default_spread if expected.default else None
        record.extra |= runner.extra
        record.extra |= {"tolerance": expected.tolerance, "eager_error": expected.eager_error}
        _weigh(record, runner, bench, before)
        if record.mode == "default":
            _leave_out(record, expected)
    except Exception as error:
        _fail([record], error)
    if not record.correct:
        bench.runners.pop(record.mode, None)


def _weigh(record: Record, runner: modes.Runner, bench: modes.Bench, before: Memory) -> None:
    """Peaks of some calls in the steady state: the model, its inputs and what this mode added."""
    bench.device.tidy()
    bench.device.restart_peaks()
    for n in range(WEIGHED_CALLS):
        if runner.before is not None:
            runner.before()
        runner.step(*bench.inputs[n])
        bench.device.synchronize()
    after = bench.device.memory()
    own = _own_memory(bench)
    record.peak_mib = own + after.peak_allocated - before.allocated
    record.reserved_mib = own + after.peak_reserved - before.reserved
    record.extra["driver_mib"] = own + after.in_use - before.in_use


def _leave_out(record: Record, expected: compare.Expected) -> None:
    """The results of default that the check keeps were made while default was weighed."""
    kept = sum(nbytes(outputs) for outputs in expected.default) / MIB
    record.peak_mib = (record.peak_mib or 0.0) - kept
    record.reserved_mib = (record.reserved_mib or 0.0) - kept
    record.extra["driver_mib"] -= kept


def _own_memory(bench: modes.Bench) -> float:
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
    from pygraph.adapter.registry import report

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
