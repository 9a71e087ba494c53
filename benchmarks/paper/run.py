"""One workload in all modes: prepare, check, weigh, time, profile.

All modes are prepared before any is timed (prepare.py), and stay alive together, so that the rounds
of the clocks can visit each in turn. From the captures on it is alone on the machine, for captures
choose by clocks of their own. Only modes whose results were right are timed. The profiler
comes last: what it leaves behind in the driver could slow the clocks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import load, measure
from benchmarks.harness.device import Device, nbytes, young_heap
from benchmarks.harness.modes import Bench, Tensors
from benchmarks.harness.profile import Launched, profile
from benchmarks.harness.record import costs_itself, message
from benchmarks.harness.reports import fallbacks
from benchmarks.paper import modes
from benchmarks.paper.check import Reference, judge, learn_eager
from benchmarks.paper.modes import Iteration
from benchmarks.paper.prepare import FloorImpossible, Options, capture_all, compile_all
from benchmarks.paper.record import Result, Row
from benchmarks.paper.workloads.workload import Workload
from pygraph.demo.models import Unavailable

log = logging.getLogger(__name__)

BUFFERS = 8
"""Different inputs that iterations go around."""
LEAST_BUFFERS = 2
CHECKED = {True: 2, False: 3}
"""Further inputs that results are compared on, in training and in inference."""
COUNTED = ("bytes_copied", "bytes_looked_at")
ABOUT = ("model", "suite", "training", "batch", "precision", "source", "deviation", "random")
SHARE = 0.45
"""Of the GPU's memory, for inputs at most."""


def run_workload(workload: Workload, device: Device, options: Options) -> Row:
    """Raises FloorImpossible, and nothing else for what a model or a mode does: that is recorded,
    and the next mode tried."""
    row = Row(workload.name, about_of(workload))
    phases = measure.Phases()
    results = {mode: Result(workload.name, workload.batch, mode) for mode in options.modes}
    try:
        with torch.set_grad_enabled(workload.training), workload.settings():
            _run(workload, device, options, results, row, phases)
    except FloorImpossible:
        raise
    except Unavailable as reason:
        row.error = str(reason).replace(str(Path.home()), "~")  # a record is to be shared
    except Exception as error:
        log.warning("%s", workload.name, exc_info=True)
        row.error = message(error)
    row.phases = {name: round(seconds, 2) for name, seconds in phases.items()}
    row.records = [] if row.error else list(results.values())
    return row


def about_of(workload: Workload) -> dict[str, Any]:
    return {name: getattr(workload, name) for name in ABOUT} | {"inductor": dict(workload.inductor)}


def _run(
    workload: Workload,
    device: Device,
    options: Options,
    results: dict[str, Result],
    row: Row,
    phases: measure.Phases,
) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.config.recompile_limit = modes.RECOMPILES
    options.tell("model")
    with phases.time("model"):
        bench = build(workload, device, options.tiny)
        bench.clock = options.clock
        reference = Reference(_checked(bench, options.tiny))
    row.about["buffers"] = len(bench.inputs)
    row.about["input_bytes"] = nbytes(bench.inputs[0])
    with young_heap():
        compile_all(bench, results, options, phases)
        with phases.alone(options.alone):
            capture_all(bench, results, options, phases)
            for mode in [mode for mode in results if mode in bench.runners]:
                options.tell(f"check {mode}")
                with phases.time("check"):
                    _check(results[mode], reference, bench)
            breaks = torch._dynamo.utils.counters["graph_break"]
            row.about["check"] = reference.to_dict()
            row.about["graph_breaks"] = sorted({str(why).splitlines()[0][:160] for why in breaks})
            options.tell("time")
            with phases.time("time"), load.watch() as seen:
                _time(bench, results, options.effort)
            row.about["load"] = seen.to_dict()
            options.tell("profile")
            with phases.time("profile"):
                _profile(bench, results)
    options.tell("done")


def build(workload: Workload, device: Device, tiny: bool, most: int = BUFFERS) -> Bench:
    """The program and as many buffers as the GPU has room for."""
    program = workload.make_program(device.torch, tiny)
    inputs = [workload.make_inputs(1000, device.torch, tiny)]
    many = most
    if device.is_cuda:
        room = SHARE * torch.cuda.get_device_properties(0).total_memory
        many = min(most, max(LEAST_BUFFERS, int(room / max(1, nbytes(inputs[0])))))
    inputs += [workload.make_inputs(1000 + n, device.torch, tiny) for n in range(1, many)]
    device.synchronize()
    return Bench(program, inputs, device, workload=workload)


def _checked(bench: Bench, tiny: bool) -> Sequence[Tensors]:
    """Other inputs than those of the clocks, unless they are so large that these have to do."""
    count = CHECKED[bench.workload.training]
    if nbytes(bench.inputs[0]) > 2**30:
        return bench.inputs[:LEAST_BUFFERS]
    device = bench.device.torch
    return [bench.workload.make_inputs(n, device, tiny) for n in range(count)]


def _check(result: Result, reference: Reference, bench: Bench) -> None:
    prepared = bench.runners[result.mode]
    with costs_itself(result, bench):
        if result.mode == "eager":
            learn_eager(reference, bench)
        verdict = judge(result.mode, reference, bench)
        result.take_verdict(verdict)
    if not result.correct:
        bench.runners.pop(result.mode, None)
        prepared.forget()


def _time(bench: Bench, results: dict[str, Result], effort: measure.Effort) -> None:
    prepared = [bench.runners[mode] for mode in results if mode in bench.runners]
    bench.device.tidy()
    before = {(each.mode, what): each.counted(what) for each in prepared for what in COUNTED}
    samples = measure.measure(prepared, bench.inputs, bench.device, effort)
    for each in prepared:
        result = results[each.mode]
        each.forget()
        result.take(samples[each.mode])
        result.bytes_copied = float(each.bytes_per_call)
        if each.graphs:
            calls = samples[each.mode].calls
            result.bytes_copied, result.extra["indices_read"] = (
                (each.counted(what) - before[each.mode, what]) / calls for what in COUNTED
            )
        _note_graphs(result, each)


def _note_graphs(result: Result, each: Iteration) -> None:
    if "settle_s" in each.extra:
        result.extra["settle_s"] = each.extra["settle_s"]
    if each.mode.startswith("pygraph"):
        reports = each.reports()
        result.graphs_found = len(reports)
        result.graphs_captured = sum(graph.proofs > 0 for graph in reports)
        result.graphs_deployed = sum(graph.graphed for graph in reports)
        result.fallbacks = fallbacks(reports)
        # Without what is zero or empty: a workload can have dozens of graphs.
        whole = [graph.to_dict() for graph in reports]
        result.extra["report"] = [{k: v for k, v in each.items() if v} for each in whole]
    elif each.mode == "reduce-overhead":
        captured = each.extra["captures"]
        result.graphs_captured = result.graphs_deployed = captured
        result.graphs_found = captured + each.extra.get("cudagraph_skips", 0)


def _profile(bench: Bench, results: dict[str, Result]) -> None:
    if not bench.device.is_cuda:
        return
    for mode, result in results.items():
        each = bench.runners.get(mode)
        if each is None:
            continue
        try:
            take_profile(result, profile(each, bench.inputs))
            each.forget()
        except Exception as error:
            result.extra["no_profile"] = message(error)
    _bound(results)


def _bound(results: dict[str, Result]) -> None:
    """Where there is no graph of an iteration."""
    limit, default = results.get("floor"), results.get("default")
    if limit is not None and not limit.timed and default is not None and default.kernel_us:
        limit.take_bound(default.kernel_us)


def take_profile(result: Result, seen: Launched) -> None:
    result.kernel_us, result.busy_us = seen.kernel_us, seen.busy_us
    result.kernels, result.kernels_in_graphs = seen.kernels, seen.kernels_in_graphs
    result.graph_launches = seen.graph_launches
    if result.latency_us:
        result.idle_share = max(0.0, 1.0 - seen.busy_us / result.latency_us)
    if result.mode in ("default", "pygraph"):
        result.extra["slowest_kernels"] = [list(each) for each in seen.slowest]
