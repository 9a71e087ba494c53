"""One rank: prepares all modes of a workload, checks them, and times them in turn.

    python -m benchmarks.gpus.rank WORKLOAD --out FILE ...

All ranks do the same in the same order, so how often a loop runs is said by rank 0. Iterations
begin together, behind a barrier on the host, and what each rank's clock says is stored: the run
takes the slowest of each iteration.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer

from benchmarks.gpus.workloads import WORKLOADS, Program, Workload, places_of, reference
from benchmarks.harness import compare, floor, modes
from benchmarks.harness.record import message
from benchmarks.harness.reports import read_report
from pygraph.capturing.collection import nothing_collected
from pygraph.reporting.text import graph_lines

MODES = ("eager", "default", "reduce-overhead", "pygraph", "capture", "floor")
"""Those of the other benchmarks, and capture: pygraph.capture of a whole training step, whose model
is compiled as default's. DDP's steps cannot be captured so."""
CAPTURED = ("fsdp2", "stages")
OURS = ("pygraph", "capture")
WARM_UP = 30
"""Calls: graphs are made, and DDP has put its buckets in their order."""
CHECKED = 4
ROUNDS = 5
TOLERANCE = 5e-2
"""Of a bf16 result, relative to the whole model's on one GPU: the ranks' parts are summed up in
another order. Two inputs' results are more than 10 times as far apart."""
LOSS_TOLERANCE = 2e-3
"""Of a loss, relative to eager's: TF32 in both, other kernels."""


@dataclass
class Found:
    """One mode on one rank."""

    mode: str
    correct: bool = False
    error: str | None = None
    relative_error: float | None = None
    compile_s: float | None = None
    peak_mib: float | None = None
    reserved_mib: float | None = None
    bytes_copied: float | None = None
    latency_us: list[float] = field(default_factory=list)
    host_us: list[float] = field(default_factory=list)
    pipelined_us: list[float] = field(default_factory=list)
    calls: int = 0
    """pygraph: of graphs, in the timed part; and those of them that were replays."""
    replays: int = 0
    fallbacks: list[str] = field(default_factory=list)
    """What is reported of graphs that serve less than half of their calls."""


@dataclass
class Ready:
    program: Program
    found: Found
    before: Any = None
    load: Any = None
    others: frozenset[str] = frozenset()

    def run(self, inputs: tuple[Any, ...]) -> Any:
        if self.load is not None:
            self.load(inputs)
        if self.before is not None:
            self.before()
        return self.program.step(*inputs)

    def graphs(self) -> list[Any]:
        if self.found.mode not in OURS:
            return []
        return [each for each in read_report().graphs if each.name not in self.others]


class Rank:
    """What this process measures."""

    def __init__(self, workload: Workload, tiny: bool, seconds: float) -> None:
        self.workload, self.tiny, self.seconds = workload, tiny, seconds
        self.rank = dist.get_rank()
        on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda", self.rank) if on_gpu else torch.device("cpu")
        self.host = dist.new_group(backend="gloo")
        self.inputs = workload.inputs(self.device, tiny)

    @property
    def gpus(self) -> list[torch.device]:
        """That this process uses."""
        if self.device.type != "cuda":
            return []
        return places_of(self.device) if self.workload.parallel == "stages" else [self.device]

    def synchronize(self) -> None:
        for gpu in self.gpus:
            torch.cuda.synchronize(gpu)

    def together(self) -> None:
        self.synchronize()
        dist.barrier(self.host)

    def agreed(self, count: int) -> int:
        """What rank 0 says."""
        said = torch.tensor([count])
        dist.broadcast(said, 0, self.host)
        return int(said.item())

    def prepare(self, mode: str) -> Ready:
        found = Found(mode)
        before = self._memory()
        started = time.perf_counter()
        others = frozenset(each.name for each in read_report().graphs)
        plain = "default" if mode == "floor" else mode
        with self._stream_of(mode):
            program = self.workload.program(plain, self.device, self.tiny)
        ready = Ready(program, found, modes.before(mode), others=others)
        # Weights are compared with eager's before they have changed: in training by first losses.
        with self._grad():
            self._check(ready)
            if mode == "floor":
                self._capture(ready)
            for call in range(WARM_UP):
                ready.run(self.inputs[call % len(self.inputs)])
        self.together()
        found.compile_s = time.perf_counter() - started
        self._weigh(ready, before)
        return ready

    def _stream_of(self, mode: str) -> Any:
        """DDP's own nodes of the autograd graph run on the stream that it is made on, and a capture
        must not meet the default one (torch, "Usage with DistributedDataParallel", CUDA graphs)."""
        if mode == "floor" and self.device.type == "cuda":
            return torch.cuda.stream(torch.cuda.Stream())
        return contextlib.nullcontext()

    def _grad(self) -> Any:
        return contextlib.nullcontext() if self.workload.trains else torch.no_grad()

    def _memory(self) -> tuple[float, float]:
        self.synchronize()
        counts = torch.cuda.memory_allocated, torch.cuda.memory_reserved
        allocated, reserved = (sum(map(count, self.gpus)) / 2**20 for count in counts)
        return allocated, reserved

    def _weigh(self, ready: Ready, before: tuple[float, float]) -> None:
        if self.device.type != "cuda":
            return
        for gpu in self.gpus:
            torch.cuda.reset_peak_memory_stats(gpu)
        with self._grad():
            for inputs in self.inputs[:3]:
                ready.run(inputs)
        self.synchronize()
        peak = sum(map(torch.cuda.max_memory_allocated, self.gpus)) / 2**20
        ready.found.peak_mib = peak - before[0]
        ready.found.reserved_mib = self._memory()[1] - before[1]

    def _capture(self, ready: Ready) -> None:
        """A whole step in one graph, once it is compiled and DDP's buckets are made."""
        program = ready.program
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for call in range(12):
                program.step(*self.inputs[call % len(self.inputs)])
        torch.cuda.current_stream().wait_stream(side)
        self.together()
        others = self.gpus[1:]
        captured = floor.capture(
            floor.on_several(program.step, others),
            self.inputs[0],
            around=functools.partial(floor.pools, others),
            error_mode="thread_local",
        )
        ready.program.step, ready.load = captured.step, captured.load

    def _check(self, ready: Ready) -> None:
        """Raises ArithmeticError where a mode is wrong."""
        found, worst = ready.found, 0.0
        for inputs, expected in zip(self.inputs[:CHECKED], self.expected, strict=False):
            for _ in range(1 if self.workload.trains else 3):
                result = ready.run(inputs).float().cpu()
                worst = max(worst, compare.relative_error((result,), (expected,)))
        found.relative_error = worst
        limit = LOSS_TOLERANCE if self.workload.trains else TOLERANCE
        if not worst <= limit:
            raise ArithmeticError(f"relative error {worst:.2g}")
        found.correct = True

    def expect(self) -> None:
        """Of inference what the whole model computes; of training eager's losses."""
        with self._grad():
            if self.workload.trains:
                step = self.workload.program("eager", self.device, self.tiny).step
            else:
                step = reference(self.workload, self.device, self.tiny)
            self.expected = [step(*each).float().cpu() for each in self.inputs[:CHECKED]]

    def side_by_side(self, steps: int, wanted: Sequence[str]) -> dict[str, Any]:
        """So many training steps with PyGraph and of the same compiled code without graphs, on the
        same batches: by mode, losses that differ in a bit; and what memory has grown by since a
        tenth. Attention that is only warned of adds up in any order where others use the GPU."""
        torch.use_deterministic_algorithms(True)
        programs = {
            mode: self.workload.program(mode, self.device, self.tiny)
            for mode in ("default", *OURS)
            if mode in wanted
        }
        begun, losses = (0.0, 0.0), []
        for step in range(steps):
            inputs = self.inputs[step % len(self.inputs)]
            losses.append([program.step(*inputs).item() for program in programs.values()])
            if step == steps // 10:
                begun = self._memory()
        now = self._memory()
        graphs = read_report().graphs
        captured = [each for each in graphs if "capture of" in each.name]
        own = {"pygraph": [each for each in graphs if each not in captured], "capture": captured}
        found: dict[str, Any] = {
            "steps": steps,
            "allocated_grown_mib": now[0] - begun[0],
            "reserved_grown_mib": now[1] - begun[1],
        }
        for number, mode in enumerate(programs):
            differ = [step for step, each in enumerate(losses) if each[number] != each[0]]
            calls, replays = _counted(own.get(mode, []))
            found[mode] = {
                "differ": len(differ),
                "first_that_differs": differ[0] if differ else None,
                "largest_difference": max(abs(each[0] - each[number]) / each[0] for each in losses),
                "last_loss": losses[-1][number],
                "calls": calls,
                "replays": replays,
                "fallbacks": [each.reason for each in own.get(mode, []) if each.reason],
            }
        return found

    def time(self, everyone: list[Ready]) -> None:
        with self._grad(), nothing_collected():
            for ready in everyone:
                self._time_calls(ready, 3, None)
            each_us = [statistics.median(self._time_calls(r, 5, None)) for r in everyone]
            share = 1e6 * self.seconds / ROUNDS / 2
            count = self.agreed(max(10, min(100, int(share / sum(each_us)))))
            for turn in range(ROUNDS):
                first = turn % len(everyone)
                for ready in [*everyone[first:], *everyone[:first]]:
                    calls, replays = _counted(ready.graphs())
                    self._time_calls(ready, 2, None)
                    self._time_calls(ready, count, ready.found)
                    self._time_in_a_row(ready, count)
                    now = _counted(ready.graphs())
                    ready.found.calls += now[0] - calls
                    ready.found.replays += now[1] - replays
                    ready.found.bytes_copied = self._bytes_copied(ready)
        for ready in everyone:
            ready.found.fallbacks = [
                "\n".join(graph_lines(each))
                for each in ready.graphs()
                if 2 * each.replays < each.calls
            ]

    def _bytes_copied(self, ready: Ready) -> float | None:
        if ready.found.mode == "reduce-overhead":
            return float(sum(each.nbytes for each in self.inputs[0]))
        graphs = ready.graphs()
        calls = sum(each.calls for each in graphs)
        return sum(each.bytes_copied for each in graphs) / calls if calls else 0.0

    def _time_calls(self, ready: Ready, count: int, found: Found | None) -> list[float]:
        spent: list[float] = []
        for call in range(count):
            inputs = self.inputs[call % len(self.inputs)]
            if ready.load is not None:
                ready.load(inputs)
            if ready.before is not None:
                ready.before()
            self.together()
            started = time.perf_counter_ns()
            ready.program.step(*inputs)
            returned = time.perf_counter_ns()
            self.synchronize()
            done = time.perf_counter_ns()
            spent.append((done - started) / 1000)
            if found is not None:
                found.host_us.append((returned - started) / 1000)
        if found is not None:
            found.latency_us += spent
        return spent

    def _time_in_a_row(self, ready: Ready, count: int) -> None:
        self.together()
        started = time.perf_counter_ns()
        for call in range(count):
            if ready.before is not None:
                ready.before()
            ready.program.step(*self.inputs[call % len(self.inputs)])
        self.synchronize()
        ready.found.pipelined_us.append((time.perf_counter_ns() - started) / 1000 / count)


def _counted(graphs: list[Any]) -> tuple[int, int]:
    return sum(each.calls for each in graphs), sum(each.replays for each in graphs)


def main(
    workload: str,
    out: Annotated[Path, typer.Option(help="Where this rank's results go.")],
    wanted: Annotated[str, typer.Option("--modes")] = ",".join(MODES),
    tiny: bool = False,
    seconds: float = 4.0,
    compile_only: Annotated[bool, typer.Option(help="To fill the caches.")] = False,
    steps: Annotated[int, typer.Option(help="So many of default and pygraph side by side.")] = 0,
) -> None:
    """Measure a workload on this rank."""
    rank = int(os.environ["RANK"])
    where: dict[str, Any] = {}
    torch.set_float32_matmul_precision("high")
    if steps:  # as cuBLAS asks for where results are to be the same (torch, "Reproducibility")
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if torch.cuda.is_available():
        torch.cuda.set_device(rank)
        where["device_id"] = torch.device("cuda", rank)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=120), **where)
    chosen = next(each for each in WORKLOADS if each.name == workload)
    here = Rank(chosen, tiny, seconds)
    if steps:
        out.write_text(json.dumps(here.side_by_side(steps, wanted.split(","))))
        here.together()
        os._exit(0)
    found: list[Found] = []

    def store() -> None:
        out.write_text(json.dumps([asdict(each) for each in found]))

    here.expect()
    ready: list[Ready] = []
    for mode in wanted.split(","):
        if mode in ("reduce-overhead", "floor") and not torch.cuda.is_available():
            continue
        if mode == "capture" and (chosen.parallel not in CAPTURED or not chosen.trains):
            continue
        try:
            ready.append(here.prepare(mode))
            found.append(ready[-1].found)
        except Exception as error:
            found.append(Found(mode, error=message(error)))
        store()
    if not compile_only:
        here.time(ready)
    store()
    here.together()
    os._exit(0)  # graphs of torch's would keep a group from ending


if __name__ == "__main__":
    typer.run(main)
