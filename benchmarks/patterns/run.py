"""One pattern in all modes: prepare, check, time, profile.

All modes are prepared before any is timed, and stay alive together, so that the rounds of the
clocks can visit each in turn. The profiler comes last: what it leaves behind in the driver could
slow the clocks.
"""

from __future__ import annotations

import logging

import torch

from benchmarks.harness import measure
from benchmarks.harness.device import Device, young_heap
from benchmarks.harness.modes import Bench, begin, warm_up
from benchmarks.harness.profile import profile
from benchmarks.harness.program import compiled_frames, with_code_of_its_own
from benchmarks.harness.record import costs_itself, message
from benchmarks.harness.worker import Options
from benchmarks.patterns.check import Reference, judge, results
from benchmarks.patterns.modes import bench_of, maker
from benchmarks.patterns.pattern import Loaded, Pattern
from benchmarks.patterns.record import Record

log = logging.getLogger(__name__)

ROUNDS, LEAST = 10, 12
"""Of the clocks; calls per mode and round, however long one takes."""


def run_pattern(
    pattern: Pattern, device: Device, options: Options, phases: measure.Phases | None = None
) -> list[Record]:
    """Never raises for what a mode does: that is recorded, and the next one tried."""
    phases = measure.Phases() if phases is None else phases
    records = {mode: Record(pattern.name, 1, mode) for mode in options.modes}
    torch._dynamo.reset()
    with torch.set_grad_enabled(pattern.training):
        bench = Bench(None, (), device, workload=pattern, clock=options.clock)
        with young_heap():
            _prepare(bench, records, options, phases)
            with phases.alone(options.alone):
                with phases.time("time"):
                    _time(bench, records, options.seconds)
                options.timed()
            with phases.time("profile"):
                _profile(bench, records)
    return list(records.values())


def with_own_code(model: Loaded) -> Loaded:
    """The same, but for the code of its forward: what one mode has done to it is no matter of the
    next."""
    kind, own = type(model), with_code_of_its_own(type(model).forward)
    model.__class__ = type(kind.__name__, (kind,), {"forward": own, "__module__": kind.__module__})
    return model


def _prepare(
    bench: Bench, records: dict[str, Record], options: Options, phases: measure.Phases
) -> None:
    """Each mode to its steady state, and whether it is right; one that is not is left out."""
    pattern, device = bench.workload, bench.device
    reference = Reference(pattern)
    for mode, record in records.items():
        if mode in pattern.ends_process:
            record.error, record.not_run = pattern.ends_process[mode], True
            continue
        with costs_itself(record, bench):
            with phases.time(mode):
                model = with_own_code(pattern.build(mode == "clean", device.torch))
                own = bench_of(mode, pattern, model, device)
                own.clock = bench.clock
                runner = begin(maker(mode, options.pygraph), own)
                known = compiled_frames()
                bench.runners[mode] = warm_up(runner, own)
            record.compile_s = runner.compile_s
            record.extra |= runner.extra
            with phases.time("check"):
                found = results(runner, mode, pattern, device)
                record.recompilations = compiled_frames() - known
                verdict = judge(mode, found, reference)
            record.correct, record.error = verdict.correct, verdict.reason
            record.relative_error, record.fresh = verdict.relative_error, verdict.fresh
            record.bit_equal_to_default = verdict.bit_equal_to_default
            record.max_difference_to_default = verdict.max_difference_to_default
        if not record.correct:
            bench.runners.pop(mode, None)


def _time(bench: Bench, records: dict[str, Record], seconds: float) -> None:
    runners, known = bench.runners, compiled_frames()
    calls = {graph.name: graph.calls for each in runners.values() for graph in each.reports()}
    copied = {mode: each.counted("bytes_copied") for mode, each in runners.items()}
    effort = measure.Effort(seconds, ROUNDS, least=LEAST)
    samples = measure.measure(list(runners.values()), (), bench.device, effort)
    for mode, runner in runners.items():
        record, own = records[mode], samples[runner.mode]
        record.take(own)
        record.compiled_in_clocks = compiled_frames() - known
        if runner.graphs:
            record.bytes_copied = (runner.counted("bytes_copied") - copied[mode]) / own.calls
            # A graph of numbers that were the first ones is called once, and then never more.
            reports = [each for each in runner.reports() if each.calls != calls.get(each.name)]
            record.take_reports(reports)


def _profile(bench: Bench, records: dict[str, Record]) -> None:
    if not bench.device.is_cuda:
        return
    for mode, runner in bench.runners.items():
        try:
            records[mode].take_launched(profile(runner, runner.inputs))
        except Exception as error:
            log.debug("%s was not profiled", mode, exc_info=True)
            records[mode].extra["no_profile"] = message(error)
