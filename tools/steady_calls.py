"""Steady calls on the CPU twin, for tools/instructions.py, which runs this under callgrind.

    python tools/steady_calls.py MARKS     (a shared object with `start`, `stop`, `zero` and `dump`)

Each kind of call is warmed up without instrumentation. Then it is made CALLS times and twice as
often, with a dump after each: their difference is that of CALLS calls and of nothing around them.
All of it three times, since once in a while Python has something else to do.
Meanwhile the twin's kernels compute nothing. They would be nearly all that is counted, and what
they allocate would move the memory of the next call.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import pygraph
from pygraph.runtime import devices
from pygraph.runtime.compiled_graph import CompiledGraph
from pygraph.twin.operations import Operation

CALLS = 30
TIMES = 3
WARM = 8
SETTLE = 20
"""Calls under callgrind in front of those that count."""
WIDTH = 16

Call = Callable[[], Any]
Counted = Callable[[], int]


def network(layers: int) -> nn.Sequential:
    return nn.Sequential(
        *(part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))
    )


def compiled(module: Any, launch: str = "after_guards") -> Any:
    """Whether a guess pays is told by the clock, and here decided beforehand."""
    return torch.compile(module, backend="pygraph", options={"device": "twin", "launch": launch})


def inference(layers: int, launch: str = "after_guards") -> Call:
    function, inputs = compiled(network(layers), launch), turns(1)

    @torch.no_grad()
    def call() -> Any:
        return function(*next(inputs))

    return call


def tensor_parallel(layers: int) -> Call:
    """By a group of this process alone. Each parameter is a DTensor."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    module, styles = network(layers), itertools.cycle((ColwiseParallel(), RowwiseParallel()))
    plan = {str(2 * layer): next(styles) for layer in range(layers)}
    split = parallelize_module(module, init_device_mesh("cpu", (1,)), plan)
    function, inputs = compiled(split, "before_guards"), turns(1)

    @torch.no_grad()
    def call() -> Any:
        return function(*next(inputs))

    return call


def frozen(layers: int) -> Call:
    inputs = turns(1)

    @torch.no_grad()
    def made() -> Any:
        return pygraph.freeze(compiled(network(layers), "always"), *next(inputs))

    function = made()

    @torch.no_grad()
    def call() -> Any:
        return function(*next(inputs))

    return call


def training(layers: int) -> Call:
    module, inputs = network(layers), turns(1)
    function = compiled(module)

    def call() -> Any:
        function(*next(inputs)).sum().backward()
        for parameter in module.parameters():
            parameter.grad = None

    return call


def captured(count: int) -> Call:
    function = pygraph.capture(lambda *given: torch._foreach_add(given, 1.0), device="twin")
    inputs = turns(count)
    return lambda: function(*next(inputs))


def captured_step(layers: int) -> Call:
    """A whole training step; a layer has two parameters."""
    module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    optimizer = torch.optim.Adam(module.parameters(), fused=True)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    function, inputs = pygraph.capture(step, device="twin"), turns(1)
    return lambda: function(*next(inputs))


def dispatched(count: int) -> tuple[Call, Counted]:
    """All arguments have moved since the call before."""
    device = devices.PLATFORMS["twin"].device(0)
    graph = CompiledGraph(
        lambda given: list(torch._foreach_add(given, 1.0)), name="steady", device=device
    )
    inputs = turns(count)
    return lambda: graph.dispatcher(list(next(inputs))), lambda: graph.refresh_report().replays


def turns(count: int) -> Iterator[tuple[Any, ...]]:
    """Two sets of so many tensors, in turns."""
    return itertools.cycle([tuple(torch.randn(4, WIDTH) for _ in range(count)) for _ in range(2)])


def registered() -> int:
    return pygraph.report().replays


CASES: dict[str, Callable[[], Call | tuple[Call, Counted]]] = {
    "inference, 1 layer": lambda: inference(1),
    "inference, 8 layers": lambda: inference(8),
    "inference, 8 layers, on a guess": lambda: inference(8, "always"),
    "inference, 8 layers, past the guards": lambda: inference(8, "before_guards"),
    "inference, 32 layers": lambda: inference(32),
    "tensor parallel, 8 layers, past the guards": lambda: tensor_parallel(8),
    "frozen, 1 layer": lambda: frozen(1),
    "frozen, 64 layers": lambda: frozen(64),
    "training, 8 layers": lambda: training(8),
    "captured, 4 inputs": lambda: captured(4),
    "captured step, 12 parameters": lambda: captured_step(6),
    "dispatcher, 1 argument moved": lambda: dispatched(1),
    "dispatcher, 64 arguments moved": lambda: dispatched(64),
}


class Kernels:
    """All that the twin runs."""

    def __init__(self) -> None:
        self.compute = True
        run = Operation.run
        Operation.run = lambda operation, values: run(operation, values) if self.compute else None


def repeat(call: Call, times: int) -> None:
    for _ in range(times):
        call()


def main(marks: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kernels = Kernels()
    for name, build in CASES.items():
        built = build()
        call, replays = built if isinstance(built, tuple) else (built, registered)
        repeat(call, WARM)
        before = replays()
        kernels.compute = False
        gc.collect()
        gc.disable()
        marks.start()
        repeat(call, SETTLE)
        marks.zero()
        for calls in TIMES * (CALLS, 2 * CALLS):
            repeat(call, calls)
            marks.dump(f"{name}: {calls}".encode())
        marks.stop()
        gc.enable()
        kernels.compute = True
        made, replayed = SETTLE + 3 * TIMES * CALLS, replays() - before
        if replayed == 0 or replayed % made != 0:
            sys.exit(f"{name}: {replayed} replays in {made} calls\n{pygraph.report()}")
        pygraph.reset()
        torch._dynamo.reset()


if __name__ == "__main__":
    main(ctypes.CDLL(sys.argv[1]))
