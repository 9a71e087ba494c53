#!/usr/bin/env python3
"""Threads that share one compiled model, as in a server: benchmarks/threads.py --out FILE

1, 2, 4 and 8 threads call the model with inputs of their own and wait for each result. They share
a stream, or have one each. The model is warmed up by one thread. Before it is timed each thread
checks its results against eager's: those of another thread's input are as wrong as any. A mode has
a process for each kind of streams, and begins another one behind a row that failed: what several
threads cannot use may leave a process that is of no use any more. The row has its reason.

What counts is what the threads get done together, and how long a call takes in each. A call that
runs without a graph beside others is not seen in its result, so `replayed` has the share of
PyGraph's calls in the timed part that were replays.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for benchmarks/, from anywhere

from benchmarks.harness import compare, modes, record
from benchmarks.harness.device import Device
from benchmarks.harness.environment import environment
from benchmarks.harness.measure import percentile
from benchmarks.harness.modes import Bench, Runner, Tensors
from benchmarks.layers import Stack

MODES = ("default", "reduce-overhead", "pygraph")
THREADS = (1, 2, 4, 8)
STREAMS = ("shared", "own")
INPUTS = 4
"""Of each thread."""
TOLERANCE = 5e-2
"""Relative, of a result: bf16. Results of two inputs are more than 10 times as far apart."""
TIMEOUT_S = 600


@dataclass
class Row:
    threads: int
    streams: str
    mode: str
    correct: bool = False
    reason: str | None = None
    """Why it was not timed."""
    calls_per_s: float | None = None
    """Of all threads together."""
    latency_us: float | None = None
    """Of a call, until its result is there: the median."""
    latency_p99_us: float | None = None
    replayed: float | None = None
    """pygraph: of the timed calls, 0 to 1."""


@dataclass(frozen=True)
class Clocking:
    """How rows are measured."""

    device: str
    tiny: bool
    seconds: float
    """Of the clocks, per row."""

    @property
    def on(self) -> Device:
        return Device(self.device)


class Worker:
    """What one thread does."""

    def __init__(self, runner: Runner, inputs: Sequence[Tensors], device: Device, own: bool):
        self.runner = runner
        self.inputs = inputs
        self.stream = torch.cuda.Stream() if own and device.is_cuda else None
        self.is_cuda = device.is_cuda
        self.spent_us: list[float] = []

    def call(self, inputs: Tensors) -> Tensors:
        if self.runner.before is not None:
            self.runner.before()
        results = self.runner.step(*inputs)
        if self.is_cuda:
            torch.cuda.current_stream().synchronize()
        return results

    def inside(self, work: Callable[[], None]) -> None:
        """Without gradients, and on the thread's stream: both are a thread's own."""
        with ExitStack() as around:
            around.enter_context(torch.no_grad())
            if self.stream is not None:
                around.enter_context(torch.cuda.stream(self.stream))
            work()

    def check(self, expected: Sequence[Tensors]) -> None:
        for n in compare.there_and_back(len(self.inputs)) * 5:
            found = tuple(each.clone() for each in self.call(self.inputs[n]))
            if self.is_cuda:
                torch.cuda.current_stream().synchronize()
            error = compare.relative_error(found, expected[n])
            if not error <= TOLERANCE:
                raise ArithmeticError(f"a result is wrong: relative error {error:.2g}")

    def spend(self, seconds: float) -> None:
        until = time.perf_counter() + seconds
        while (started := time.perf_counter()) < until:
            self.call(self.inputs[len(self.spent_us) % len(self.inputs)])
            self.spent_us.append(1e6 * (time.perf_counter() - started))


def together(works: Sequence[Callable[[], None]]) -> float:
    """Each in a thread, at once; how long it took. Raises what one of them raised."""
    raised: list[BaseException] = []
    all_there = threading.Barrier(len(works) + 1)

    def guarded(work: Callable[[], None]) -> None:
        all_there.wait()
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    all_there.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
    return time.perf_counter() - started


@dataclass
class Prepared:
    """One mode, warmed up, and what each thread calls it with."""

    runner: Runner
    given: list[list[Tensors]]
    expected: list[list[Tensors]]


def prepare(mode: str, most: int, device: Device, tiny: bool) -> Prepared:
    """`most`: threads."""
    layers, width, heads, length = (1, 32, 2, 8) if tiny else (6, 256, 4, 64)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.is_cuda else torch.float32
    with torch.device(device.torch):
        model = Stack(layers, width, heads).to(dtype).eval()
        given = [
            [(torch.randn(1, length, width, dtype=dtype),) for _ in range(INPUTS)]
            for _ in range(most)
        ]
    bench = Bench(model, given[0], device)
    with torch.no_grad():
        expected = [[model(*inputs) for inputs in own] for own in given]
        device.synchronize()
        runner = modes.warm_up(modes.MODES[mode](bench), bench)
        device.synchronize()
    return Prepared(runner, given, expected)


def measure(row: Row, prepared: Prepared, device: Device, seconds: float) -> None:
    runner, expected = prepared.runner, prepared.expected
    workers = [
        Worker(runner, own, device, row.streams == "own") for own in prepared.given[: row.threads]
    ]

    def all_do(work: Callable[[Worker, int], None]) -> float:
        return together(
            [
                lambda worker=worker, n=n: worker.inside(lambda: work(worker, n))
                for n, worker in enumerate(workers)
            ]
        )

    all_do(lambda worker, n: worker.check(expected[n]))
    row.correct = True
    calls, replays = runner.counted("calls"), runner.counted("replays")
    took = all_do(lambda worker, _: worker.spend(seconds))
    calls, replays = runner.counted("calls") - calls, runner.counted("replays") - replays
    spent = [each for worker in workers for each in worker.spent_us]
    row.calls_per_s = len(spent) / took
    row.latency_us, row.latency_p99_us = percentile(spent, 50), percentile(spent, 99)
    row.replayed = replays / calls if calls else None


def rows_here(rows: Sequence[Row], given: Clocking, out: Path) -> None:
    """Those of one mode and one kind of streams, up to one that fails, into the file `out`."""
    done: list[dict[str, Any]] = []
    try:
        most = max(row.threads for row in rows)
        prepared = prepare(rows[0].mode, most, given.on, given.tiny)
        for row in rows:
            measure(row, prepared, given.on, given.seconds)
            done.append(asdict(row))
            record.write(out, done)
    except Exception as error:  # of the mode's, in one of the threads
        row = rows[len(done)]
        row.reason = record.message(error)
        record.write(out, [*done, asdict(row)])


def rows_elsewhere(rows: Sequence[Row], given: Clocking) -> list[dict[str, Any]]:
    """The same rows, each in a process that was good for those before."""
    found: list[dict[str, Any]] = []
    while rows:
        threads = ",".join(str(row.threads) for row in rows)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "rows.json")
            options = ["--threads", threads, "--streams", rows[0].streams, "--mode", rows[0].mode]
            options += ["--device", given.device, "--seconds", str(given.seconds)]
            options += ["--out", str(out), *(["--tiny"] if given.tiny else [])]
            why = "its process ended"
            try:
                subprocess.run([sys.executable, __file__, *options], timeout=TIMEOUT_S, check=True)
            except subprocess.SubprocessError as error:  # a thread ended the process, or hung
                why = record.message(error)
            more = list(json.loads(out.read_text())) if out.exists() else []
        if not more or (more[-1]["reason"] is None and len(more) < len(rows)):
            row = rows[len(more)]
            row.reason = why
            more.append(asdict(row))
        for each in more:
            print(each)
        found, rows = [*found, *more], rows[len(more) :]
    return found


def main(
    out: Annotated[Path, typer.Option(help="The record.")],
    device: Annotated[str, typer.Option(help="cpu: to try the command; means nothing.")] = "cuda",
    tiny: Annotated[bool, typer.Option(help="A small model, for a moment.")] = False,
    seconds: Annotated[float, typer.Option(help="For the clocks, per row.")] = 8.0,
    threads: Annotated[str | None, typer.Option(help="Some rows alone, in this process.")] = None,
    streams: Annotated[str, typer.Option(help="Of those rows: shared, or own.")] = "shared",
    mode: Annotated[str | None, typer.Option(help="The mode of those rows.")] = None,
) -> None:
    """Measure."""
    given = Clocking(device, tiny, seconds)
    if threads is not None and mode is not None:
        rows_here([Row(int(each), streams, mode) for each in threads.split(",")], given, out)
        return
    wanted = [mode for mode in MODES if device == "cuda" or mode != "reduce-overhead"]
    command = f"python benchmarks/threads.py --out {out.name} --seconds {seconds:g}"
    rows: list[dict[str, Any]] = []
    for own in STREAMS if device == "cuda" else STREAMS[:1]:
        for each in wanted:
            rows += rows_elsewhere([Row(count, own, each) for count in THREADS], given)
            record.write(out, {"env": environment(), "command": command, "rows": rows})
    good = all(row["correct"] for row in rows if row["mode"] != "reduce-overhead")
    raise typer.Exit(0 if good else 1)


if __name__ == "__main__":
    typer.run(main)
