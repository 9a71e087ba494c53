"""One training program in all modes: prepare, check, time.

First every mode takes its first step, default first, so that all kernels are compiled and tuned;
then every mode goes on until its graphs are captured; then all are checked, and those that are
right are timed in rounds that visit each in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from benchmarks.harness import floor, measure
from benchmarks.harness.device import Device, young_heap
from benchmarks.harness.modes import COMPILED, Bench, available, begin, warm_up
from benchmarks.harness.profile import profile
from benchmarks.harness.record import costs_itself, fail, message
from benchmarks.harness.reports import Counts, fallbacks, read_report
from benchmarks.training.check import (
    STEPS,
    Reference,
    Verdict,
    judge,
    learn_default,
    learn_eager,
    learn_pygraph,
)
from benchmarks.training.compiling import Spent
from benchmarks.training.models import Training
from benchmarks.training.modes import INPUTS, MODES
from benchmarks.training.record import Result
from benchmarks.training.tracks import copied, take
from pygraph.reporting import Report

GENERATOR_LOST = "torch's generator was replaced: earlier graphs may draw other random numbers"


def run_training(
    training: Training,
    device: Device,
    effort: measure.Effort,
    modes: Sequence[str] | None = None,
    alone: measure.Alone = nullcontext,
) -> tuple[list[Result], dict[str, Any]]:
    """A result per mode, and what is true for the model. Never raises for what a mode does."""
    names = available(device, MODES) if modes is None else list(modes)
    results = {mode: Result(training.name, training.batch, mode) for mode in names}
    phases = measure.Phases()
    about: dict[str, Any] = {
        "batch": training.batch,
        "precision": training.precision,
        "about": training.about,
        "phases": phases,
    }
    try:
        bench = _build(training, device, phases)
        with young_heap():
            _prepare(bench, results, phases)
            with phases.time("check"):
                about["check"] = check(bench, results)
            breaks = torch._dynamo.utils.counters["graph_break"]  # none, with one graph
            about["graph_breaks"] = [str(why).splitlines()[0] for why in breaks]
            with phases.alone(alone), phases.time("clocks"):
                _time(bench, results, effort)
    except Exception as error:
        for result in results.values():
            if not result.timed:
                fail(result, error)
    return list(results.values()), about


def _build(training: Training, device: Device, phases: measure.Phases) -> Bench:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with phases.time("model"):
        program = training.make_program(device.torch)
        inputs = [training.make_inputs(1000 + n, device.torch) for n in range(INPUTS)]
        device.synchronize()
    return Bench(program, inputs, device, workload=training)


def _prepare(bench: Bench, results: dict[str, Result], phases: measure.Phases) -> None:
    for stage in (_begin, _finish):
        for mode, result in results.items():
            if result.error is not None:
                continue
            spent = Spent.now()
            with costs_itself(result, bench):
                with phases.time(f"prepare {mode}"):
                    stage(mode, bench)
                if stage is _begin and mode in COMPILED:
                    result.extra["compiling"] = Spent.now().since(spent)
    for mode, trainer in bench.runners.items():
        results[mode].compile_s = trainer.compile_s
        results[mode].first_steps_s = trainer.first_calls_s
        if mode == "reduce-overhead":
            results[mode].extra |= trainer.extra


def _begin(mode: str, bench: Bench) -> None:
    if mode != "floor":  # it captures what default runs by the end of all compiling
        bench.runners[mode] = begin(MODES[mode], bench)


def _finish(mode: str, bench: Bench) -> None:
    if mode != "floor":
        warm_up(bench.runners[mode], bench)
        return
    try:
        bench.runners[mode] = begin(MODES[mode], bench)
    except Exception as error:
        if bench.device.is_cuda and floor.heal_random_numbers():
            error.add_note(GENERATOR_LOST)
        raise


def check(bench: Bench, results: dict[str, Result]) -> dict[str, Any]:
    """Takes the modes that are wrong out of the bench; returns how the others were compared."""
    training, device = bench.workload, bench.device
    inputs = [training.make_inputs(n, device.torch) for n in range(STEPS)]
    reference = Reference(copied(bench.model))
    for mode in list(bench.runners):
        with costs_itself(results[mode], bench):
            verdict = _verdict(mode, bench, reference, inputs)
            results[mode].take_verdict(verdict)
            if not verdict.correct:
                bench.runners.pop(mode)
                if mode == "default":
                    reference.default = None
    for trainer in bench.runners.values():
        trainer.restore(reference.start)
    return reference.to_dict()


def _verdict(mode: str, bench: Bench, reference: Reference, inputs: Sequence[Any]) -> Verdict:
    track = None
    if mode == "eager":
        learn_eager(reference, bench, inputs)
        track = reference.eager
    elif mode == "default":
        learn_default(reference, bench, inputs)
        track = reference.default.first if reference.default is not None else None
    elif mode == "pygraph":
        track = learn_pygraph(reference, bench, inputs)
    if track is None:
        track = take(bench.runners[mode], reference.start, inputs)
    return judge(mode, track, reference, bench.workload.random)


def _time(bench: Bench, results: dict[str, Result], effort: measure.Effort) -> None:
    trainers = list(bench.runners.values())
    bench.device.tidy()
    before = Counts.of(read_report()) if "pygraph" in bench.runners else None
    samples = measure.measure(trainers, bench.inputs, bench.device, effort)
    for trainer in trainers:
        result = results[trainer.mode]
        result.take(samples[trainer.mode])
        result.bytes_copied = trainer.bytes_per_call
        if before is not None and trainer.mode == "pygraph":
            note_graphs(result, before, read_report(), samples["pygraph"].calls)
    limit = results.get("floor")
    if limit is not None and not limit.timed and "default" in bench.runners:
        try:
            limit.take_bound(profile(bench.runners["default"], bench.inputs).kernel_us)
        except Exception as error:
            limit.extra["no_bound"] = message(error)


def note_graphs(result: Result, before: Counts, after: Report, steps: int) -> None:
    """What pygraph's report says of the steps since `before`."""
    result.graphs = sum(graph.graphed for graph in after.graphs)
    result.fallbacks = fallbacks(after.graphs)
    result.bytes_copied = (after.bytes_copied - before.bytes_copied) / steps
    result.bytes_copied_before = before.bytes_copied
    calls = after.calls - before.calls
    result.coverage = (after.replays - before.replays) / calls if calls else 0.0
    result.extra["report"] = after.to_dict()
