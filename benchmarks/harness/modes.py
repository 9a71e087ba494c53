"""The ways to run a model, each prepared to a function from inputs to outputs.

eager             no compiler
default           torch.compile(model)
reduce-overhead   torch.compile(model, mode="reduce-overhead"): torch's own CUDA graphs
pygraph           torch.compile(model, backend="pygraph")
floor             one whole compiled iteration (default's) captured in a single graph on inputs that
                  never move, and replayed: the limit while the kernels stay the same. Not a way to
                  run a program, since nobody brings it new inputs
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo

from benchmarks.harness.device import Device, drop_workspaces, nbytes
from benchmarks.harness.isolate import isolated
from pygraph.reporting import WARMING

Tensors = tuple[Any, ...]
Step = Callable[..., Tensors]

WARM_UP_CALLS = 4
"""Compiling, then torch's warm-up, recording and first replay."""
MOST_WARM_UP_CALLS = 12


@dataclass
class Runner:
    """A model that is ready to be run in one way."""

    mode: str
    step: Step
    """What is timed."""
    before: Callable[[], None] | None = None
    """Called in front of each step, outside the clock."""
    load: Callable[[Tensors], None] | None = None
    """Brings new inputs where `step` does not read those that it is given."""
    bytes_per_call: int = 0
    """Copied to bring the inputs in place."""
    compile_s: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)
    keep: Any = None
    """What has to live as long as the runner does."""

    def run(self, inputs: Tensors) -> Tensors:
        """As a program would call it; the outputs live until the next call."""
        if self.load is not None:
            self.load(inputs)
        if self.before is not None:
            self.before()
        return self.step(*inputs)

    def compute(self, inputs: Tensors) -> Tensors:
        """The outputs for these inputs, in memory of their own."""
        return tuple(output.clone() for output in self.run(inputs))


@dataclass
class Bench:
    """What every mode is prepared from."""

    model: Any
    inputs: Sequence[Tensors]
    device: Device
    runners: dict[str, Runner] = field(default_factory=dict)
    """Those that were prepared before, in order."""


def _eager(bench: Bench) -> Runner:
    return Runner("eager", bench.model)


def _default(bench: Bench) -> Runner:
    return Runner("default", torch.compile(isolated(bench.model, "default")))


def _reduce_overhead(bench: Bench) -> Runner:
    model = isolated(bench.model, "reduce_overhead")
    return Runner(
        "reduce-overhead",
        torch.compile(model, mode="reduce-overhead"),
        before=torch.compiler.cudagraph_mark_step_begin,
        # Parameters are static; what the caller brings is copied into place on every call.
        bytes_per_call=nbytes(bench.inputs[0]),
    )


def _pygraph(bench: Bench) -> Runner:
    from pygraph.frontends.compile.backend import backend
    from pygraph.runtime.registry import reset

    reset()
    model = isolated(bench.model, "pygraph")
    # The callable, not its name: that also works where the package is not installed.
    return Runner("pygraph", torch.compile(model, backend=backend))


def _floor(bench: Bench) -> Runner:
    default = bench.runners.get("default") or warm_up(_default(bench), bench)
    static = tuple(tensor.clone() for tensor in bench.inputs[0])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            default.step(*static)
    torch.cuda.current_stream().wait_stream(stream)
    drop_workspaces()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = default.step(*static)

    def step(*_: Any) -> Tensors:
        graph.replay()
        return outputs

    def load(inputs: Tensors) -> None:
        for place, tensor in zip(static, inputs, strict=True):
            place.copy_(tensor)

    return Runner("floor", step, load=load, keep=(default, static))


MODES: dict[str, Callable[[Bench], Runner]] = {
    "eager": _eager,
    "default": _default,
    "reduce-overhead": _reduce_overhead,
    "pygraph": _pygraph,
    "floor": _floor,
}

COMPILED = ("default", "reduce-overhead", "pygraph", "floor")
"""The modes that run Inductor's kernels, so that their results can be compared bit for bit."""


def find(names: str | None, there: Sequence[str] = tuple(MODES)) -> list[str]:
    """The modes of a list with commas, in the order in which they are prepared."""
    chosen = {name.strip() for name in names.split(",")} if names else set(there)
    for name in sorted(chosen - set(there)):
        raise KeyError(f"no mode {name!r}: there are {', '.join(there)}")
    return [mode for mode in there if mode in chosen]


def warm_up(runner: Runner, bench: Bench) -> Runner:
    """Call until nothing is compiled or captured any more, and take the time of all of it."""
    started = time.perf_counter()
    for call in range(MOST_WARM_UP_CALLS):
        if call >= WARM_UP_CALLS and not _warming(runner):
            break
        if runner.before is not None:
            runner.before()
        runner.step(*bench.inputs[call % len(bench.inputs)])
        bench.device.synchronize()
    runner.compile_s += time.perf_counter() - started
    return runner


def _warming(runner: Runner) -> bool:
    if runner.mode != "pygraph":
        return False
    from pygraph.runtime.registry import report

    return any(graph.state == WARMING for graph in report().graphs)


def prepare(mode: str, bench: Bench) -> Runner:
    """A runner in its steady state; whatever a mode raises is the caller's to record."""
    before = dict(torch._dynamo.utils.counters["inductor"])
    started = time.perf_counter()
    runner = MODES[mode](bench)
    runner.compile_s = time.perf_counter() - started
    warm_up(runner, bench)
    for name, count in torch._dynamo.utils.counters["inductor"].items():
        if "cudagraph" in name and count != before.get(name, 0):
            runner.extra[name] = count - before.get(name, 0)
    bench.runners[mode] = runner
    return runner
