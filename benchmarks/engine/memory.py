"""What one mode does to the GPU's memory. Meant for a process of its own: nothing else counts then.

Readings, in MiB, each by torch's allocator and by the driver:

before    the model and its inputs are on the GPU, nothing has run
first     the first calls: compiling, warming up, capturing, linking, proving
steady    the peak of calls when all of that is over
rest      between calls, no output alive
emptied   the same after torch.cuda.empty_cache(): what that gives back, others can have
idle      the same after all of `Device.tidy()`

While a capture is on, torch counts phantom segments as if they were memory, so its peaks of the
first calls mean nothing for pygraph. `first_driver_mib` is the driver's word, seen by a thread.
"""

from __future__ import annotations

import gc
import hashlib
import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.harness import modes
from benchmarks.harness.build import make_model
from benchmarks.harness.device import MIB, Device, Memory
from benchmarks.harness.reports import read_report
from benchmarks.harness.weigh import WEIGHED_CALLS, Peaks, own_memory, weigh
from pygraph.demo.models import Workload

INPUTS = WEIGHED_CALLS
LARGE_BLOCK_MIB = 20.0
"""Below, torch's allocator takes more from the driver than it was asked for."""


@dataclass
class Figures:
    """One model in one mode; MiB unless the name says otherwise."""

    workload: str
    batch: int
    mode: str
    own_mib: float = 0.0
    """The model and all inputs."""
    peak_mib: float | None = None
    """In the steady state, `own_mib` included; private pools count whole (harness/weigh.py)."""
    reserved_mib: float | None = None
    torch_peak_mib: float = 0.0
    """torch.cuda.max_memory_allocated() of the same calls."""
    torch_reserved_mib: float = 0.0
    """torch.cuda.max_memory_reserved() of the same calls."""
    first_peak_mib: float = 0.0
    first_reserved_mib: float = 0.0
    first_driver_mib: float = 0.0
    """Most of the driver's memory that the first calls took, over what was in use before."""
    call_mib: float = 0.0
    """What a call needs above what is allocated when idle; cuBLAS's workspaces included."""
    workspace_mib: float = 0.0
    """The part of `call_mib` that stays allocated between calls until somebody tidies up."""
    held_mib: float = 0.0
    """Gone from the driver's free memory since before compiling, when the compiled model is idle
    and everything that can be given back is: what no other program can have."""
    private_mib: float | None = None
    freed_mib: float = 0.0
    """Given back between calls by torch.cuda.empty_cache()."""
    freed_is_usable: bool | None = None
    """Whether another tensor of `freed_mib` was given memory while torch was allowed no more than
    it had reserved. None where too little was freed to tell."""
    same_after: bool | None = None
    """Whether the model computed the same bits after that."""
    digest: str | None = None
    """Of the outputs for the first input."""
    compile_s: float = 0.0
    graphs: list[dict[str, Any]] = field(default_factory=list)
    """pygraph's report of each compiled graph."""
    note: str | None = None


class LeastFree:
    """The least free memory of the device while on, by the driver, seen every `period_s`."""

    def __init__(self, device: Device, period_s: float = 0.002) -> None:
        self.least: int | None = None
        self._device = device
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _look(self) -> None:
        free = torch.cuda.mem_get_info(self._device.torch)[0]
        self.least = free if self.least is None else min(self.least, free)

    def _watch(self) -> None:
        while not self._stop.wait(self._period_s):
            self._look()

    def __enter__(self) -> LeastFree:
        if self._device.is_cuda:
            self._look()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._look()


def digest(outputs: Any) -> str:
    """Of the bits of all outputs, their types and sizes."""
    total = hashlib.sha256()
    for tensor in outputs:
        total.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        plain = tensor.detach().contiguous().cpu().view(-1)
        if plain.numel():
            total.update(plain.view(torch.uint8).numpy())
    return total.hexdigest()


def measure_memory(workload: Workload, mode: str, device: Device) -> Figures:
    """All figures of one mode. Raises what the model or the mode raises."""
    model = make_model(workload, device.torch)
    inputs = [workload.make_inputs(1000 + n, device.torch) for n in range(INPUTS)]
    bench = modes.Bench(model, inputs, device)
    found = Figures(workload.name, workload.batch, mode, own_mib=own_memory(bench))
    with torch.no_grad():
        device.tidy()
        device.restart_peaks()
        before = device.memory()
        with LeastFree(device) as least:
            runner = modes.prepare(mode, bench)
        _note_first(found, before, device.memory(), least)
        found.compile_s = runner.compile_s
        _note_steady(found, runner, bench, before)
        steady = device.memory()
        found.digest = digest(_call(runner, bench, 0))
        gc.collect()
        rest = device.memory()
        _empty_cache(device)
        emptied = device.memory()
        found.freed_mib = rest.reserved - emptied.reserved
        _check_freed(found, runner, bench, emptied)
        device.tidy()
        _note_idle(found, before, steady, rest, device.memory())
    if mode == "pygraph":
        found.graphs = [graph.to_dict() for graph in read_report().graphs]
    return found


def _call(runner: modes.Runner, bench: modes.Bench, n: int) -> modes.Tensors:
    if runner.before is not None:
        runner.before()
    outputs = runner.step(*bench.inputs[n])
    bench.device.synchronize()
    return outputs


def _empty_cache(device: Device) -> None:
    if device.is_cuda:
        torch.cuda.empty_cache()


def _note_first(found: Figures, before: Memory, first: Memory, least: LeastFree) -> None:
    found.first_peak_mib = first.peak_allocated
    found.first_reserved_mib = first.peak_reserved
    if least.least is not None:
        total = torch.cuda.mem_get_info()[1]
        found.first_driver_mib = (total - least.least) / MIB - before.in_use


def _note_steady(found: Figures, runner: modes.Runner, bench: modes.Bench, before: Memory) -> None:
    peaks = Peaks()
    weigh(peaks, runner, bench, before)
    found.peak_mib, found.reserved_mib = peaks.peak_mib, peaks.reserved_mib
    found.private_mib = peaks.extra.get("private_mib")
    found.note = peaks.extra.get("memory_note")


def _note_idle(found: Figures, before: Memory, steady: Memory, rest: Memory, idle: Memory) -> None:
    found.torch_peak_mib = steady.peak_allocated
    found.torch_reserved_mib = steady.peak_reserved
    found.call_mib = steady.peak_allocated - idle.allocated
    found.workspace_mib = rest.allocated - idle.allocated
    found.held_mib = idle.in_use - before.in_use


def _check_freed(found: Figures, runner: modes.Runner, bench: modes.Bench, emptied: Memory) -> None:
    """Let another tensor have what is free between calls, with no memory but what torch has."""
    device = bench.device
    for n in range(2):
        _call(runner, bench, n)  # dropped at once, as is right between calls
    now = device.memory()
    size = int((now.reserved - emptied.reserved) * MIB)
    if not device.is_cuda or size < LARGE_BLOCK_MIB * MIB:
        return
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, (now.reserved + 1) * MIB / total))
    try:
        other = torch.empty(size, dtype=torch.uint8, device=device.torch)
        other.fill_(0x5A)
        found.freed_is_usable = True
        del other
    except torch.cuda.OutOfMemoryError:
        found.freed_is_usable = False
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    found.same_after = digest(_call(runner, bench, 0)) == found.digest


def packing(default: Figures, pygraph: Figures) -> dict[str, float | None]:
    """How well scratch is packed: the arena and the outputs beside what torch's allocator takes for
    the same call, and beside the least that any layout needs. MiB and ratios; None where a report
    does not tell."""
    graphs = [graph for graph in pygraph.graphs if graph.get("arena_bytes")]
    arena = sum(graph["arena_bytes"] for graph in graphs) / MIB
    outputs = sum(graph.get("output_bytes", 0) for graph in pygraph.graphs) / MIB
    bounds = [graph.get("arena_lower_bound") for graph in graphs]
    # 0: a report from before the field was filled. A graph with an arena has a bound above that.
    known = [bound for bound in bounds if bound]
    bound = sum(known) / MIB if graphs and len(known) == len(bounds) else None
    return {
        "arena_mib": arena,
        "outputs_mib": outputs,
        "allocator_mib": default.call_mib,
        "lower_bound_mib": bound,
        "over_allocator": (arena + outputs) / default.call_mib if default.call_mib else None,
        "over_lower_bound": arena / bound if bound else None,
    }
