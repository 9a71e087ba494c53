"""Compiling where there is hardly any memory: most of the GPU is taken, and what is left is little
more than what one uncaptured call needs.

Torch's own CUDA graphs need a private pool as large as the call's memory beside what the allocator
holds from the calls before. PyGraph captures into addresses that cost nothing, so it must come
through, and the driver must have as much free memory behind a capture as in front of it.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.engine.memory import LeastFree, digest
from benchmarks.harness import modes
from benchmarks.harness.build import make_model
from benchmarks.harness.device import MIB, Device
from benchmarks.harness.isolate import isolated
from benchmarks.harness.reports import read_report
from pygraph.demo.models import Workload
from pygraph.reporting import GRAPHED, PARTLY

ROOM = 1.5
"""Free memory, as a multiple of what an uncaptured call takes from the driver."""
MOST_ROOM = 1.9
"""The same as a multiple of the activations: they must be more than half of it."""
LEAST_ROOM = 1.1
"""Of what an uncaptured call takes; allocators that waste much need this."""
CALLS = 4
STREAM_MIB = 2.0
"""The first stream that a process makes may take this much from the driver, once."""
GRANULE = 2 << 20


@dataclass
class Tight:
    """What became of it; MiB unless the name says otherwise."""

    workload: str
    batch: int
    mode: str
    need_mib: float = 0.0
    """Taken from the driver by one uncaptured call, when torch holds nothing idle."""
    activations_mib: float = 0.0
    """Allocated by that call at its peak, above the model and the inputs."""
    free_mib: float = 0.0
    """The driver's free memory when compiling began."""
    least_free_mib: float | None = None
    """The least that was seen while compiling, capturing and proving."""
    calls: int = 0
    """That came back, of CALLS."""
    error: str | None = None
    same_bits: bool | None = None
    """As the default mode computed with all the memory there is."""
    graphs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Of the free memory, what the activations need."""
        return self.activations_mib / self.free_mib if self.free_mib else 0.0

    @property
    def captured_for_free(self) -> bool:
        """Every graph is captured, and no capture took memory."""
        return bool(self.graphs) and all(
            graph["state"] in (GRAPHED, PARTLY)
            and abs(graph["capture_bytes"]) <= STREAM_MIB * MIB
            and not graph["private_pool_bytes"]
            for graph in self.graphs
        )


def fill_up(leave_bytes: int, device: torch.device) -> torch.Tensor | None:
    """Takes all memory of the driver but `leave_bytes`, as one tensor; None where that is all."""
    size = (torch.cuda.mem_get_info(device)[0] - leave_bytes) // GRANULE * GRANULE
    if size <= 0:
        return None
    return torch.empty(size, dtype=torch.uint8, device=device)


def room_for(need: float, activations: float) -> float:
    """How much memory to leave, in the unit of both."""
    return max(LEAST_ROOM * need, min(ROOM * need, MOST_ROOM * activations))


def need_of(step: modes.Step, inputs: modes.Tensors, device: Device) -> tuple[float, float]:
    """MiB that a call of a warm `step` takes from the driver and, at its peak, allocates."""
    device.tidy()
    device.restart_peaks()
    before = device.memory()
    step(*inputs)
    device.synchronize()
    after = device.memory()
    return after.peak_reserved - before.reserved, after.peak_allocated - before.allocated


def measure_tight(workload: Workload, mode: str, device: Device) -> Tight:
    """Compile and call in `mode` with ROOM times the memory that a call needs."""
    found = Tight(workload.name, workload.batch, mode)
    model = make_model(workload, device.torch)
    inputs = [workload.make_inputs(1000 + n, device.torch) for n in range(CALLS)]
    with torch.no_grad():
        plain = torch.compile(isolated(model, "plenty"))
        expected = [digest(plain(*each)) for each in inputs]
        found.need_mib, found.activations_mib = need_of(plain, inputs[0], device)
        del plain
        torch._dynamo.reset()
        device.tidy()
        room = room_for(found.need_mib, found.activations_mib)
        ballast = fill_up(int(room * MIB), device.torch)
        found.free_mib = torch.cuda.mem_get_info(device.torch)[0] / MIB
        runner = modes.MODES[mode](modes.Bench(model, inputs, device))
        with LeastFree(device) as least:
            results = _calls(found, runner, inputs, device)
        if least.least is not None:
            found.least_free_mib = least.least / MIB
    found.same_bits = results == expected[: len(results)] if results else None
    if mode == "pygraph":
        found.graphs = [graph.to_dict() for graph in read_report().graphs]
    del ballast
    return found


def _calls(
    found: Tight, runner: modes.Runner, inputs: list[modes.Tensors], device: Device
) -> list[str]:
    results: list[str] = []
    try:
        for each in inputs:
            if runner.before is not None:
                runner.before()
            outputs = runner.step(*each)
            device.synchronize()
            results.append(digest(outputs))
            del outputs
            found.calls += 1
    except RuntimeError as error:  # out of memory, also where a driver says it in its own words
        found.error = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        gc.collect()
    return results
