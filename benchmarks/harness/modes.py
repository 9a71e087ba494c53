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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo

from benchmarks.harness.device import Device, drop_workspaces, nbytes
from benchmarks.harness.isolate import isolated
from benchmarks.harness.reports import read_report
from pygraph.demo.models import chosen
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
    """Up to the steady state, the first calls included."""
    first_calls_s: list[float] = field(default_factory=list)
    """Of those."""
    extra: dict[str, Any] = field(default_factory=dict)
    keep: Any = None
    """What has to live as long as the runner does."""

    def run(self, inputs: Tensors) -> Any:
        """A step on these inputs as a program would take it; results live until the next one."""
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
    runners: dict[str, Any] = field(default_factory=dict)
    """Those that were prepared before, in order."""


def compiling(mode: str, on_gpu: bool = True) -> dict[str, Any]:
    """What torch.compile is called with. Without a GPU PyGraph's graphs are the twin's, and default
    runs AOTAutograd's graphs operator by operator, as the twin has them too."""
    if mode == "reduce-overhead":
        return {"mode": mode}
    if mode == "pygraph":
        from pygraph.frontends.compile.backend import backend

        # The callable, not its name: that also works where the package is not installed.
        return {"backend": backend, "options": {} if on_gpu else {"device": "twin"}}
    return {} if on_gpu else {"backend": "aot_eager"}


def before(mode: str) -> Callable[[], None] | None:
    return torch.compiler.cudagraph_mark_step_begin if mode == "reduce-overhead" else None


def copied(mode: str, bench: Bench) -> int:
    """Parameters are static; what the caller brings is copied by torch's graphs on every call."""
    return nbytes(bench.inputs[0]) if mode == "reduce-overhead" else 0


def compiled(mode: str) -> Callable[[Bench], Runner]:
    def make(bench: Bench) -> Runner:
        if mode == "pygraph":
            from pygraph.runtime.registry import reset

            reset()
        model = isolated(bench.model, mode.replace("-", "_"))
        step = torch.compile(model, **compiling(mode, bench.device.is_cuda))
        return Runner(mode, step, before(mode), bytes_per_call=copied(mode, bench))

    return make


def _eager(bench: Bench) -> Runner:
    return Runner("eager", bench.model)


def _floor(bench: Bench) -> Runner:
    default = bench.runners.get("default") or warm_up(compiled("default")(bench), bench)
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
    "default": compiled("default"),
    "reduce-overhead": compiled("reduce-overhead"),
    "pygraph": compiled("pygraph"),
    "floor": _floor,
}

COMPILED = ("default", "reduce-overhead", "pygraph", "floor")
"""The modes that run Inductor's kernels, so that their results can be compared bit for bit."""


def find(names: str | None, there: Sequence[str] = tuple(MODES)) -> list[str]:
    """The modes of a list with commas, in the order in which they are prepared."""
    wanted = chosen(names, there, "mode")
    return [mode for mode in there if mode in wanted]


def begin(make: Callable[[Any], Any], bench: Bench) -> Any:
    """A runner whose first call was made: compiled, and nothing captured yet."""
    started = time.perf_counter()
    runner = make(bench)
    runner.compile_s = time.perf_counter() - started
    _first_call(runner, bench)
    return runner


def warm_up(runner: Runner, bench: Bench) -> Runner:
    """Call until nothing is compiled or captured any more."""
    while len(runner.first_calls_s) < WARM_UP_CALLS or (
        len(runner.first_calls_s) < MOST_WARM_UP_CALLS and _warming(runner)
    ):
        _first_call(runner, bench)
    return runner


def _first_call(runner: Runner, bench: Bench) -> None:
    started = time.perf_counter()
    if runner.before is not None:
        runner.before()
    runner.step(*bench.inputs[len(runner.first_calls_s) % len(bench.inputs)])
    bench.device.synchronize()
    runner.first_calls_s.append(time.perf_counter() - started)
    runner.compile_s += runner.first_calls_s[-1]


def _warming(runner: Runner) -> bool:
    return runner.mode == "pygraph" and any(
        graph.state == WARMING for graph in read_report().graphs
    )


@contextmanager
def noting_skips(extra: dict[str, Any]) -> Iterator[None]:
    """What Inductor counts meanwhile about its own graphs, such as those that it left out."""
    counters = torch._dynamo.utils.counters["inductor"]
    before = dict(counters)
    yield
    for name, count in counters.items():
        if "cudagraph" in name and count != before.get(name, 0):
            extra[name] = extra.get(name, 0) + count - before.get(name, 0)


def prepare(mode: str, bench: Bench) -> Runner:
    """A runner in its steady state; whatever a mode raises is the caller's to record."""
    extra: dict[str, Any] = {}
    with noting_skips(extra):
        runner = warm_up(begin(MODES[mode], bench), bench)
    runner.extra |= extra
    bench.runners[mode] = runner
    return runner
