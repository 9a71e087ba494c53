#!/usr/bin/env python3
"""Where the seconds of a workload's first calls go: benchmarks/first_calls.py TEFD --out FILE

One of the paper's workloads, compiled in one mode; its first four calls, until the GPU is idle.
Another thread looks at the calling thread's stack every few milliseconds, and what has passed since
the last look is put down to what it finds: to the innermost function of PyGraph's, and to the
innermost of all. Where a step holds the interpreter, that is the place where it ends.
"""

from __future__ import annotations

import collections
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for benchmarks/, from anywhere

from benchmarks.harness import record
from benchmarks.harness.device import Device, young_heap
from benchmarks.harness.environment import environment
from benchmarks.harness.modes import first_call
from benchmarks.paper import modes
from benchmarks.paper.run import build
from benchmarks.paper.workloads import catalogue
from pygraph.demo.models import Unavailable

INTERVAL = 0.003
LEAST = 0.05
"""Seconds, to be listed."""
CALLS = 4
MODES = ("pygraph", "pygraph-copies")
"""They find their caches where reduce-overhead leaves them."""


def place(frame: FrameType) -> str:
    """The function, in a file as it is known: from the last package on."""
    name = frame.f_code.co_filename.split("site-packages/")[-1].split("/python/")[-1]
    return f"{name if not name.startswith('/') else Path(name).name}:{frame.f_code.co_name}"


class Sampler(threading.Thread):
    """Of the thread that makes it, as long as the context lasts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._watched = threading.get_ident()
        self._over = threading.Event()
        self.ours: collections.Counter[str] = collections.Counter()
        self.innermost: collections.Counter[str] = collections.Counter()

    def run(self) -> None:
        last = time.perf_counter()
        while not self._over.wait(INTERVAL):
            frame = sys._current_frames().get(self._watched)
            now = time.perf_counter()
            if frame is not None:
                self._note(frame, now - last)
            last = now

    def _note(self, frame: FrameType, seconds: float) -> None:
        self.innermost[place(frame)] += seconds
        outer: FrameType | None = frame
        while outer is not None:
            found = place(outer)
            if found.startswith("pygraph/") and not found.startswith("benchmarks/"):
                self.ours[found] += seconds
                return
            outer = outer.f_back

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def most(counter: collections.Counter[str]) -> dict[str, float]:
    return {name: round(s, 3) for name, s in counter.most_common(12) if s >= LEAST}


def main(
    workload: Annotated[str, typer.Argument(help="By its name in the benchmark.")],
    out: Annotated[Path, typer.Option(help="The record.")],
    mode: str = "pygraph",
    device: str = "cuda",
    tiny: Annotated[bool, typer.Option(help="A tiny version, to try the command.")] = False,
) -> None:
    """Measure."""
    if mode not in MODES:
        raise typer.BadParameter(f"no mode {mode!r} here: there are {', '.join(MODES)}")
    (found,) = catalogue.find(workload)
    torch._dynamo.config.recompile_limit = modes.RECOMPILES
    calls: list[dict[str, Any]] = []
    with torch.set_grad_enabled(found.training), found.settings(), young_heap():
        try:
            bench = build(found, Device(device), tiny)
        except Unavailable as reason:
            raise typer.BadParameter(str(reason)) from None
        if bench.device.is_cuda:  # of Inductor's caches, so that the first call finds them
            modes.compile_cold("reduce-overhead", bench)
        iteration = modes.MODES[mode](bench)
        for number in range(CALLS):
            with Sampler() as sampler:
                first_call(iteration, bench)
            seconds = iteration.first_calls_s[-1]
            calls.append(
                {"s": seconds, "ours": most(sampler.ours), "innermost": most(sampler.innermost)}
            )
            print(f"call {number + 1}: {seconds:.2f} s", *calls[-1]["ours"].items(), sep="\n  ")
    graphs = [{"name": g.name, "timings_ms": g.timings_ms} for g in iteration.reports()]
    command = f"benchmarks/first_calls.py {workload} --mode {mode}"
    record.write(out, {"env": environment(), "command": command, "calls": calls, "graphs": graphs})


if __name__ == "__main__":
    typer.run(main)
