"""One scenario in all modes: compile, settle, check, time.

All modes are ready before any is timed, and live together, so that the rounds of the clocks visit
each in turn. What goes by its own clocks is no more than compiled while other processes prepare:
it is called until it has decided, and checked, once this process is alone on the machine, by a
caller that behaves as the scenario's does. That is pygraph, and of streams of sizes each mode: what
a replay saves decides how soon the next size gets a graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.harness import measure
from benchmarks.harness.compare import Expected, check, same_bits
from benchmarks.harness.device import Device, young_heap
from benchmarks.harness.figures import NOT_CACHED
from benchmarks.harness.modes import Bench, begin, noting_inductor
from benchmarks.harness.program import compiled_frames
from benchmarks.harness.record import costs_itself
from benchmarks.harness.reports import undecided
from benchmarks.harness.weigh import weigh
from benchmarks.harness.worker import Options
from benchmarks.selection.modes import OWN, ScenarioRunner, maker
from benchmarks.selection.record import Record
from benchmarks.selection.scenario import Scenario
from pygraph.decide import budget
from pygraph.reporting import GraphReport

CHECKED = 4
"""Inputs that are compared, which no other call has; in order and in reverse."""
LEAST_CALLS = 16
"""Between two looks at the report."""
STEADY_PASSES = 3
LOST_PATIENCE_S, LOST_PATIENCE_CALLS = 2.0, 2000
SIZES_S = 30.0
"""Patience with a stream of sizes, of which there are up to 120: a link of 7 ms is followed by
three times as long without one, and the trials of all may take a hundredth of the time."""
BETWEEN_WAITS = 50
RECOMPILES = 128
"""Dynamo's limit per function: behind a graph break modes may share functions."""
ROUNDS = 40
OWN_SHARE = 0.85
"""Of the seconds of the clocks, what the caller's own behaviour has."""


def run_scenario(
    scenario: Scenario, device: Device, options: Options, phases: measure.Phases | None = None
) -> list[Record]:
    """Never raises for what a mode does: that is recorded, and the next one tried."""
    phases = measure.Phases() if phases is None else phases
    by_clocks = [mode for mode in options.modes if mode == OWN or scenario.dynamic]
    records = {
        mode: Record(scenario.name, 1, mode, caller=scenario.behaviour) for mode in options.modes
    }
    torch._dynamo.reset()
    gradients = torch.set_grad_enabled(scenario.training or scenario.gradients)
    with gradients, torch._dynamo.config.patch(recompile_limit=RECOMPILES):
        inputs = scenario.pool(device.torch)
        bench = Bench(
            scenario.build(device.torch), inputs, device, workload=scenario, clock=options.clock
        )
        with young_heap():
            expected = expect(bench)
            for mode, record in records.items():
                with costs_itself(record, bench), phases.time(mode):
                    device.tidy()
                    bench.memory[mode] = device.memory()
                    runner = begin(maker(mode, options.pygraph), bench)
                    bench.runners[mode] = runner
                    if mode not in by_clocks:
                        ready(runner, bench, record, expected)
            with phases.alone(options.alone):
                for mode in filter(bench.runners.__contains__, by_clocks):
                    with costs_itself(records[mode], bench), phases.time("settle"):
                        ready(bench.runners[mode], bench, records[mode], expected)
                right = [each for mode, each in bench.runners.items() if records[mode].correct]
                with phases.time("time"):
                    _time(right, bench, records, options.seconds)
                options.timed()
    return list(records.values())


def expect(bench: Bench) -> Expected:
    """What eager computes."""
    scenario: Scenario = bench.workload
    inputs = [scenario.inputs(scenario.buffers + n, bench.device.torch) for n in range(CHECKED)]
    eager = maker("eager", {})(bench)
    outputs = [eager.compute(each) for each in inputs]
    eager.forget()
    distinct = not any(same_bits(a, b) for n, a in enumerate(outputs) for b in outputs[:n])
    return Expected(inputs, outputs, scenario.tolerance, distinct=distinct)


def ready(runner: ScenarioRunner, bench: Bench, record: Record, expected: Expected) -> None:
    """In its steady state, checked and weighed."""
    with noting_inductor(runner.extra):
        settle(runner, bench, record)
    record.compile_s = runner.compile_s
    record.cold = {name: runner.extra[name] for name in NOT_CACHED if name in runner.extra}
    verdict = check(runner, expected)
    record.correct, record.error = verdict.correct, verdict.reason
    record.relative_error, record.fresh = verdict.relative_error, verdict.fresh
    record.bit_equal_to_default = verdict.bit_equal_to_default
    record.max_difference_to_default = verdict.max_difference_to_default
    weigh(record, runner, bench, bench.memory[runner.mode])
    runner.forget()


def settle(runner: ScenarioRunner, bench: Bench, record: Record) -> None:
    """Call as the scenario's caller does, until all passes over the inputs are alike and pygraph
    has nothing to decide any more, and a graph for each size of a stream; or patience ends. Each
    mode may spend on links what a process may that has no other."""
    budget.BUDGET.clear()
    many = max(LEAST_CALLS, len(bench.inputs))
    started, calls, passes = bench.clock(), 0, 0
    others = runner.other_graphs()
    before: dict[str, tuple[int, int]] = {}
    state: Any = None
    settled = False
    while not settled:
        for n in range(calls, calls + many):
            runner.run(bench.inputs[n % len(bench.inputs)])
            if bench.workload.waits or n % BETWEEN_WAITS == BETWEEN_WAITS - 1:
                bench.device.synchronize()
        bench.device.synchronize()
        calls, passes = calls + many, passes + 1
        runner.graphs |= runner.other_graphs() - others
        reports = runner.reports()
        # A graph of sizes that others have taken over is not called any more.
        called = [each for each in reports if each.calls != before.get(each.name, (0, 0))[0]]
        links = bench.workload.dynamic and any(_runs_without(each, before) for each in called)
        before = {each.name: (each.calls, each.replays) for each in reports}
        last, state = state, [(each.name, each.state, each.programs) for each in called]
        settled = passes >= STEADY_PASSES and state == last and not (links or undecided(called))
        elapsed = bench.clock() - started
        if bench.workload.dynamic:
            lost = elapsed > SIZES_S
        else:
            lost = calls >= LOST_PATIENCE_CALLS or elapsed > LOST_PATIENCE_S
        if lost:
            break
    record.settling_calls, record.settling_s = calls, bench.clock() - started
    record.settled = settled if runner.graphs else None


def _runs_without(graph: GraphReport, before: Mapping[str, tuple[int, int]]) -> bool:
    """Whether one that serves has not served all calls since."""
    calls, replays = before.get(graph.name, (0, 0))
    return graph.graphed and graph.replays - replays < graph.calls - calls


def _time(
    runners: Sequence[ScenarioRunner], bench: Bench, records: dict[str, Record], seconds: float
) -> None:
    """As the scenario's caller behaves, which gives the cost, and then otherwise."""
    waits, known = bench.workload.waits, compiled_frames()
    before = {each.mode: _counts(each) for each in runners}
    own = measure.Effort(
        OWN_SHARE * seconds, ROUNDS, least=4, most=1000, in_a_row=0.0 if waits else 1.0, settling=4
    )
    found = measure.measure(runners, bench.inputs, bench.device, own)
    for runner in runners:
        record, (calls, replays, copied) = records[runner.mode], before[runner.mode]
        record.take_cost(found[runner.mode], ROUNDS, waits)
        if runner.graphs:
            all_calls, all_replays, all_copied = _counts(runner)
            record.bytes_copied = (all_copied - copied) / found[runner.mode].calls
            record.replayed = (all_replays - replays) / max(1, all_calls - calls)
            record.take_reports(runner.reports())
    other = measure.Effort(
        (1 - OWN_SHARE) * seconds, rounds=5, least=20, in_a_row=1.0 if waits else 0.0
    )
    more = measure.measure(runners, bench.inputs, bench.device, other)
    for runner in runners:
        samples, further = found[runner.mode], more[runner.mode]
        samples.latency += further.latency
        samples.host += further.host
        samples.pipelined += further.pipelined
        records[runner.mode].take(samples)
        records[runner.mode].compiled_in_clocks = compiled_frames() - known


def _counts(runner: ScenarioRunner) -> tuple[int, ...]:
    return tuple(runner.counted(name) for name in ("calls", "replays", "bytes_copied"))
