#!/usr/bin/env python3
"""How long the slowest of 100,000 calls take: python benchmarks/jitter.py --out FILE

A small model in its steady state, in each mode, and beside them a *control*, which calls an empty
function with the same timer: what the control has of slow calls is the machine's, and what a mode
has beyond that is its own, such as work that comes round every so many calls. Modes and control
take turns in blocks, so that all see the same machine. The collector of garbage runs, as in
programs, but leaves out what lived before.

Of the latency, until the GPU is idle, and of the host's time, until the call returns: median, p99,
p99.9, worst, how many calls took more than three times the median, and which were the slowest (the
number of the call, counted from 0, and its time).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for benchmarks/, from anywhere

from benchmarks.harness import record
from benchmarks.harness.device import Device, young_heap
from benchmarks.harness.environment import environment
from benchmarks.harness.measure import Samples, percentile, time_calls
from benchmarks.harness.modes import Bench, Runner, begin
from benchmarks.harness.shown import microseconds
from benchmarks.harness.table import Column, made, words
from benchmarks.selection.catalogue import find
from benchmarks.selection.modes import available, maker
from benchmarks.selection.record import Record
from benchmarks.selection.run import expect, ready
from pygraph.demo.models import chosen
from pygraph.demo.output import terminal

MODES = "default,reduce-overhead,pygraph"
CONTROL = "control"
SLOW = 3.0
"""Times the median, from which a call counts as slow."""
SLOWEST = 50
SETTLING = 20
"""Calls in front of each block, which do not count."""
FIGURES = ("median", "p99", "p99.9", "worst")


def distribution(values: Sequence[float]) -> dict[str, Any]:
    """Of microseconds, in the order of the calls."""
    median = percentile(values, 50)
    by_time = sorted(range(len(values)), key=lambda call: -values[call])
    return {
        "median": median,
        "p99": percentile(values, 99),
        "p99.9": percentile(values, 99.9),
        "worst": values[by_time[0]],
        "slow": sum(each > SLOW * median for each in values),
        "slowest": [[call, values[call]] for call in by_time[:SLOWEST]],
    }


def prepared(modes: Sequence[str], bench: Bench) -> dict[str, Record]:
    """Their runners are the bench's, settled; raises where one is wrong."""
    expected = expect(bench)
    records = {mode: Record(bench.workload.name, 1, mode) for mode in modes}
    for mode, each in records.items():
        bench.memory[mode] = bench.device.memory()
        bench.runners[mode] = begin(maker(mode, {}), bench)
        ready(bench.runners[mode], bench, each, expected)
        assert each.correct, f"{mode}: {each.error}"
        each.take_reports(bench.runners[mode].reports())
    return records


def timed(runners: Sequence[Runner], bench: Bench, calls: int, blocks: int) -> dict[str, Samples]:
    found = {runner.mode: Samples() for runner in runners}
    for block in range(blocks):
        first = block % len(runners)
        for runner in [*runners[first:], *runners[:first]]:
            time_calls(runner, bench.inputs, SETTLING, bench.device, Samples())
            time_calls(runner, bench.inputs, calls // blocks, bench.device, found[runner.mode])
    return found


def main(
    out: Annotated[Path, typer.Option(help="The record.")],
    calls: Annotated[int, typer.Option(min=100, help="Of each mode.")] = 100_000,
    blocks: Annotated[int, typer.Option(min=1, help="That they are made in.")] = 20,
    modes: Annotated[str, typer.Option(help="Those of ./run bench-selection.")] = MODES,
    scenario: Annotated[str, typer.Option(help="One of ./run bench-selection.")] = "twenty_kernels",
    device: Annotated[str, typer.Option(help="cpu: to try the command; means nothing.")] = "cuda",
) -> None:
    """Measure."""
    where = Device(device)
    if not where.is_cuda:
        torch.set_num_threads(1)  # threads that wait for a core would be all there is to see
    (given,) = find(scenario, tiny=not where.is_cuda)
    there = [mode for mode in modes.split(",") if where.is_cuda or mode != "reduce-overhead"]
    wanted = chosen(",".join(there), available(where), "mode")
    with torch.set_grad_enabled(given.training or given.gradients):
        model = given.build(where.torch)
        bench = Bench(model, given.pool(where.torch), where, workload=given)
        records = prepared(wanted, bench)
        control = Runner(CONTROL, lambda *inputs: ())
        with young_heap():
            samples = timed([*bench.runners.values(), control], bench, calls, blocks)
    rows = []
    for mode, own in samples.items():
        known = records.get(mode)
        rows.append(
            {
                "mode": mode,
                "calls": len(own.latency),
                "latency_us": distribution(own.latency),
                "host_us": distribution(own.host),
                "settled": known.settled if known else None,
                "selection": known.selection if known else [],
            }
        )
    command = (
        f"python benchmarks/jitter.py --out {out.name} --calls {calls} --blocks {blocks} "
        f"--modes {modes} --scenario {scenario} --device {device}"
    )
    content = {"env": environment(), "command": command, "about": given.about, "rows": rows}
    record.write(out, content)
    show(rows)


def show(rows: Sequence[dict[str, Any]]) -> None:
    columns = [words("mode", lambda row: row["mode"])]
    for clock in ("latency_us", "host_us"):
        short = clock.removesuffix("_us")
        columns += [
            Column(f"{short} {name}", lambda row, c=clock, n=name: microseconds(row[c][n]))  # type: ignore[misc]
            for name in FIGURES
        ]
        columns.append(Column("slow", lambda row, c=clock: f"{row[c]['slow']:,}"))  # type: ignore[misc]
    many = rows[0]["calls"]
    title = f"us, of {many:,} calls each; slow: how many took over {SLOW:g} times the median"
    terminal().print(made(rows, columns, title=title))


if __name__ == "__main__":
    typer.run(main)
