"""One model in all modes: prepare, check, weigh, time.

All modes of a model are prepared before any is timed, and they stay alive together, so that the
rounds of the clocks can visit each in turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.first_light.record import Record
from benchmarks.harness import compare, measure, modes
from benchmarks.harness.build import make_model
from benchmarks.harness.device import Device, young_heap
from benchmarks.harness.record import costs_itself, fail
from benchmarks.harness.reports import read_report
from benchmarks.harness.weigh import weigh
from pygraph.demo.models import Workload

log = logging.getLogger(__name__)

ROTATED = 16
"""Inputs that the timed loops rotate through."""
CHECKED = 4
"""Inputs that correctness is checked on, other ones than those."""

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
        for record in records.values():
            if not record.timed:
                fail(record, error)
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
        model = make_model(workload, device.torch)
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
    with costs_itself(record, bench):
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
    if not record.correct:
        bench.runners.pop(record.mode, None)


def _time(records: dict[str, Record], bench: modes.Bench, options: Options) -> None:
    runners = list(bench.runners.values())
    copied = read_report().bytes_copied if "pygraph" in bench.runners else 0
    samples = measure.measure(runners, bench.inputs, bench.device, options.effort)
    for runner in runners:
        record = records[runner.mode]
        record.take(samples[runner.mode])
        record.bytes_copied = runner.bytes_per_call
        if runner.mode == "pygraph":
            report = read_report()
            record.bytes_copied = (report.bytes_copied - copied) / samples[runner.mode].calls
            record.extra["report"] = report.to_dict()


def _caches(cold: bool) -> AbstractContextManager[Any]:
    if not cold:
        return nullcontext()
    from torch._inductor import utils

    # The name changed between the versions that we support.
    fresh = getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache
    return fresh()


def _clear(device: Device) -> None:
    """Free what the model held; a device that is broken is found out by the next use of it."""
    try:
        torch._dynamo.reset()
        device.tidy()
    except RuntimeError:
        log.debug("could not tidy up", exc_info=True)
