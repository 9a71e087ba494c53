"""One workload in all modes: compile, and then, alone on the machine, capture, weigh, check, time.

All modes are compiled while other processes compile theirs. Captures come behind that, since the
mode parallel measures lanes in them. All modes are ready before any is timed, and live together, so
that the rounds of the clocks visit each in turn. The profiler comes last: what it leaves behind in
the driver could slow the clocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.harness import measure
from benchmarks.harness.device import Device, young_heap
from benchmarks.harness.modes import Bench
from benchmarks.harness.record import costs_itself, fail, message
from benchmarks.harness.weigh import weigh
from benchmarks.harness.worker import Options
from benchmarks.parallel import timeline
from benchmarks.parallel.check import CHECKED, Reference, judge, learn_eager
from benchmarks.parallel.modes import (
    FLOOR,
    LANES,
    OWN,
    PARALLEL,
    SERIAL,
    STREAMS,
    FloorImpossible,
    LaneRunner,
    captured_floor,
    compiled,
    settle,
    taken,
)
from benchmarks.parallel.record import Record
from benchmarks.parallel.workloads import Workload

ROUNDS, LEAST = 8, 7
"""Of the clocks; iterations per mode and round, however long one takes."""
RECOMPILES = 128
"""Dynamo's limit per function: behind a graph break all modes share functions."""
ORDER = (FLOOR, SERIAL, *LANES, STREAMS)
"""In which modes are prepared."""
DRAWN = (SERIAL, PARALLEL)


def run_workload(
    workload: Workload,
    device: Device,
    options: Options,
    phases: measure.Phases | None = None,
    *,
    tiny: bool = False,
    drawn: bool = False,
) -> list[Record]:
    """`drawn`: timelines are taken, and are in `extra`. Raises modes.FloorImpossible; what else a
    mode does is recorded, and the next one tried."""
    phases = measure.Phases() if phases is None else phases
    records = {
        mode: Record(workload.name, workload.batch, mode, extra=_about(workload))
        for mode in taken(workload, tuple(options.modes))
    }
    torch._dynamo.reset()
    limit = torch._dynamo.config.patch(recompile_limit=RECOMPILES)
    with torch.set_grad_enabled(workload.trains), limit:
        bench, reference = _build(workload, device, options, tiny, phases)
        with young_heap():
            _compile(bench, records, phases)
            with phases.alone(options.alone):
                _prepare(bench, records, reference, phases)
                with phases.time("time"):
                    _time(bench, records, options.seconds)
                if drawn and device.is_cuda:
                    with phases.time("timelines"):
                        _draw(bench, records)
                options.timed()
    return list(records.values())


def _about(workload: Workload) -> dict[str, str]:
    return {name: getattr(workload, name) for name in ("kind", "about", "precision")}


def _build(
    workload: Workload, device: Device, options: Options, tiny: bool, phases: measure.Phases
) -> tuple[Bench, Reference]:
    with phases.time("model"):
        model = workload.make_program(device.torch, tiny)
        inputs = [
            workload.make_inputs(1000 + n, device.torch, tiny) for n in range(workload.inputs)
        ]
        checked = [workload.make_inputs(n, device.torch, tiny) for n in range(CHECKED)]
        bench = Bench(model, inputs, device, workload=workload, clock=options.clock)
        return bench, learn_eager(bench, checked)


def _ordered(records: dict[str, Record]) -> list[Record]:
    return sorted(records.values(), key=lambda record: ORDER.index(record.mode))


def _note_memory(bench: Bench, mode: str) -> None:
    """What there was before this mode took any."""
    bench.device.tidy()
    bench.memory[mode] = bench.device.memory()


def _compile(bench: Bench, records: dict[str, Record], phases: measure.Phases) -> None:
    for record in _ordered(records):
        with phases.time(f"compile {record.mode}"):
            if record.mode == FLOOR:
                _compile_floor(bench, record)
                continue
            with costs_itself(record, bench):
                bench.runners[record.mode] = compiled(record.mode, bench)


def _compile_floor(bench: Bench, record: Record) -> None:
    if bench.workload.without_floor is not None:
        record.extra["not_run"] = bench.workload.without_floor
        return
    _note_memory(bench, FLOOR)
    try:
        bench.runners[FLOOR] = captured_floor(bench)
    except FloorImpossible:
        raise
    except Exception as error:
        fail(record, error)


def _prepare(
    bench: Bench, records: dict[str, Record], reference: Reference, phases: measure.Phases
) -> None:
    for record in _ordered(records):
        if record.mode not in bench.runners:
            continue
        runner = bench.runners[record.mode]
        with costs_itself(record, bench):
            with phases.time("weigh"):
                if record.mode not in bench.memory:
                    _note_memory(bench, record.mode)
            with phases.time(f"capture {record.mode}"):
                settle(runner, bench)
            with phases.time("weigh"):
                weigh(record, runner, bench, bench.memory[record.mode])
                runner.forget()
            with phases.time("check"):
                _check(record, runner, reference, bench)
            record.compile_s = runner.compile_s
            record.extra |= runner.extra
        if not record.correct:
            bench.runners.pop(record.mode, None)


def _check(record: Record, runner: LaneRunner, reference: Reference, bench: Bench) -> None:
    with runner.noting_graphs():
        verdict = judge(record.mode, runner, reference, bench)
    record.correct, record.error = verdict.correct, verdict.reason
    record.relative_error, record.fresh = verdict.relative_error, verdict.fresh
    record.extra |= {"tolerance": reference.tolerance, "rounding": reference.rounding}
    record.extra |= verdict.noted()
    if record.mode == SERIAL:
        record.extra["repeats_its_bits"] = reference.serial_repeats
    if record.mode in OWN:
        record.take_reports(runner.reports())


def _time(bench: Bench, records: dict[str, Record], seconds: float) -> None:
    runners: Sequence[LaneRunner] = list(bench.runners.values())
    bench.device.tidy()
    before = {mode: _counted(runner) for mode, runner in bench.runners.items()}
    effort = measure.Effort(seconds, ROUNDS, least=LEAST)
    samples = measure.measure(runners, bench.inputs, bench.device, effort)
    for mode, runner in bench.runners.items():
        record = records[mode]
        runner.forget()
        record.take(samples[runner.mode])
        if mode in OWN:
            # Once more: more calls can have decided more.
            record.take_reports(runner.reports())
            replays, calls, copied = (
                now - then for now, then in zip(_counted(runner), before[mode], strict=True)
            )
            record.extra["replayed"] = replays / calls if calls else None
            record.bytes_copied = copied / samples[runner.mode].calls


def _counted(runner: LaneRunner) -> tuple[int, int, int]:
    replays, calls, copied = map(runner.counted, ("replays", "calls", "bytes_copied"))
    return replays, calls, copied


def _draw(bench: Bench, records: dict[str, Record]) -> None:
    for mode in DRAWN:
        if mode not in bench.runners:
            continue
        try:
            records[mode].extra["timeline"] = timeline.observed(bench.runners[mode], bench.inputs)
            bench.runners[mode].forget()
        except Exception as error:
            records[mode].extra["no_timeline"] = message(error)
