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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo

from benchmarks.harness import floor
from benchmarks.harness.device import Device, Memory, nbytes
from benchmarks.harness.figures import NOT_CACHED
from benchmarks.harness.isolate import isolated
from benchmarks.harness.reports import read_report, undecided
from pygraph.demo.models import chosen
from pygraph.frontends.compile.backend import backend
from pygraph.reporting import WARMING, GraphReport

Tensors = tuple[Any, ...]
Step = Callable[..., Tensors]

WARM_UP_CALLS = 4
"""Compiling, then torch's warm-up, recording and first replay."""
MOST_WARM_UP_CALLS = 12
DECIDING_CALLS = 16
"""Between two looks at the report."""
MOST_DECIDING_CALLS, MOST_DECIDING_S = 2000, 3.0


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
    """What Inductor counted of its own graphs while this was prepared, such as those left out."""
    keep: Any = None
    """What has to live as long as the runner does."""
    parameters: Sequence[Any] = ()
    """Those that have gradients; none in inference."""
    kept_gradients: list[Any] | None = None
    """Where they are if not in the parameters: a graph has places of its own for them."""
    graphs: frozenset[str] = frozenset()
    """pygraph: the names of this mode's compiled graphs in the report."""
    inputs: Sequence[Tensors] = ()
    """What the clocks call it with, where modes do not take the same."""

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

    def gradients(self) -> list[Any]:
        """As the last step left them, by parameter; None for what the loss does not depend on."""
        if self.kept_gradients is not None:
            return self.kept_gradients
        return [parameter.grad for parameter in self.parameters]

    def forget(self) -> None:
        """Drop the gradients: modes may share the parameters."""
        if self.kept_gradients is None:
            floor.forget(self.parameters)

    def reports(self) -> list[GraphReport]:
        """pygraph: of this mode's compiled graphs alone, with the counters of this moment."""
        if not self.graphs:
            return []
        return [graph for graph in read_report().graphs if graph.name in self.graphs]

    def counted(self, counter: str) -> int:
        """pygraph: a counter of the report, over this mode's graphs."""
        return sum(getattr(graph, counter) for graph in self.reports())

    def other_graphs(self) -> frozenset[str]:
        """pygraph: the names of the compiled graphs that there are of other modes."""
        if not self.mode.startswith("pygraph"):
            return frozenset()
        return frozenset(graph.name for graph in read_report().graphs) - self.graphs


@dataclass
class Bench:
    """What every mode is prepared from."""

    model: Any
    inputs: Sequence[Tensors]
    device: Device
    runners: dict[str, Any] = field(default_factory=dict)
    """Those that were prepared before, in order."""
    workload: Any = None
    """What the model and the inputs are made by, as its suite has it."""
    clock: Callable[[], float] = time.perf_counter
    """Seconds, for what preparing takes."""
    memory: dict[str, Memory] = field(default_factory=dict)
    """By mode, before it took any, where modes are weighed together."""


def compiling(mode: str, on_gpu: bool = True, **options: Any) -> dict[str, Any]:
    """What torch.compile is called with; `options` are PyGraph's. Without a GPU its graphs are the
    twin's, and default runs AOTAutograd's graphs operator by operator, as the twin has them too."""
    if mode == "reduce-overhead":
        return {"mode": mode}
    if mode.startswith("pygraph"):
        # The callable, not its name: that also works where the package is not installed.
        twin = {} if on_gpu else {"device": "twin"}
        return {"backend": backend, "options": twin | options}
    return {} if on_gpu else {"backend": "aot_eager"}


def before(mode: str) -> Callable[[], None] | None:
    return torch.compiler.cudagraph_mark_step_begin if mode == "reduce-overhead" else None


def backward_thread(mode: str, also: Callable[[], None] | None = None) -> Callable[[], None]:
    """What to call in front of each step of a mode where several train in one process: PyGraph
    keeps backwards on the calling thread (runtime/calling_thread.py), and no other mode shall gain
    from that. Torch's default holds in it. `also` is called, too."""
    from pygraph.runtime import calling_thread
    from pygraph.torch_private import autograd

    ours = mode.startswith("pygraph")

    def before() -> None:
        autograd.set_multithreading_enabled(True)
        if ours:
            calling_thread.resume()
        if also is not None:
            also()

    return before


def train(runner: Runner, forward: Callable[..., Any], parameters: Sequence[Any]) -> None:
    """An iteration is the backward, too, and gradients begin anew in each."""
    mark = runner.before

    def step(*inputs: Any) -> Any:
        loss = forward(*inputs)
        loss.backward()
        return loss

    def start() -> None:
        floor.forget(parameters)
        if mark is not None:
            mark()

    runner.step, runner.parameters = step, parameters
    runner.before = backward_thread(runner.mode, start)


def copied(mode: str, bench: Bench) -> int:
    """Parameters are static; what the caller brings is copied by torch's graphs on every call."""
    return nbytes(bench.inputs[0]) if mode == "reduce-overhead" else 0


def compile_as(mode: str, model: Any, bench: Bench, **options: Any) -> Any:
    """What a mode calls, compiled apart from all others; `options` are PyGraph's."""
    if mode == "eager":
        return model
    twin = isolated(model, mode.replace("-", "_"))
    return torch.compile(twin, **compiling(mode, bench.device.is_cuda, **options))


def start_anew(mode: str) -> None:
    """PyGraph forgets the graphs of the model before, where it is one mode of several."""
    if mode == "pygraph":
        from pygraph.runtime.registry import reset

        reset()


def way(mode: str) -> Callable[[Bench], Runner]:
    def make(bench: Bench) -> Runner:
        start_anew(mode)
        step = compile_as(mode, bench.model, bench)
        return Runner(mode, step, before(mode), bytes_per_call=copied(mode, bench))

    return make


def _floor(bench: Bench) -> Runner:
    default = bench.runners.get("default") or warm_up(way("default")(bench), bench)
    return replaying(Runner, floor.capture(default.step, bench.inputs[0]))


def replaying(kind: Any, found: floor.Captured, **more: Any) -> Any:
    """The floor as a runner of this kind."""
    own = {"load": found.load, "keep": found, "kept_gradients": found.gradients}
    return kind("floor", found.step, **own, **more)


MODES: dict[str, Callable[[Bench], Runner]] = {
    **{mode: way(mode) for mode in ("eager", "default", "reduce-overhead", "pygraph")},
    "floor": _floor,
}

COMPILED = ("default", "reduce-overhead", "pygraph", "floor")
"""The modes that run Inductor's kernels, so that their results can be compared bit for bit."""
CONFIGURATIONS = ("default", "reduce-overhead", "pygraph")
"""The modes for which caches on disk are filled, each by itself: AOTAutograd's knows a graph by all
that it is compiled with, PyGraph's backend included. The floor is default's."""
ON_CPU = ("eager", "default", "pygraph")


def find(names: str | None, there: Sequence[str] = tuple(MODES)) -> list[str]:
    """The modes of a list with commas, in the order in which they are prepared."""
    wanted = chosen(names, there, "mode")
    return [mode for mode in there if mode in wanted]


def available(device: Device, modes: Iterable[str]) -> list[str]:
    return [mode for mode in modes if device.is_cuda or mode in ON_CPU]


def begin(make: Callable[[Any], Any], bench: Bench, call: bool = True) -> Any:
    """A runner whose first call was made: compiled, and nothing captured yet but the floor."""
    extra: dict[str, Any] = {}
    with noting_inductor(extra):
        started = bench.clock()
        runner = make(bench)
        runner.compile_s = bench.clock() - started
        if call:
            first_call(runner, bench, runner.other_graphs())
    runner.extra |= extra
    return runner


def warm_up(runner: Runner, bench: Bench) -> Runner:
    """Call until nothing is compiled or captured any more."""
    others = runner.other_graphs()
    with noting_inductor(runner.extra):
        while len(runner.first_calls_s) < WARM_UP_CALLS or (
            len(runner.first_calls_s) < MOST_WARM_UP_CALLS
            and any(graph.state == WARMING for graph in runner.reports())
        ):
            first_call(runner, bench, others)
        decide(runner, bench)
    return runner


def decide(runner: Runner, bench: Bench) -> None:
    """pygraph: call as callers do who wait, until it is found out how each graph is served, or
    patience ends. Not part of `compile_s`: these calls do what they are called for."""
    started, calls = bench.clock(), 0
    while undecided(runner.reports()):
        if calls >= MOST_DECIDING_CALLS or bench.clock() - started > MOST_DECIDING_S:
            break
        for _ in range(DECIDING_CALLS):
            runner.run(bench.inputs[calls % len(bench.inputs)])
            bench.device.synchronize()
            calls += 1
    if calls:
        runner.extra["deciding_calls"] = calls
        runner.extra["deciding_s"] = bench.clock() - started


def first_call(runner: Runner, bench: Bench, others: frozenset[str] = frozenset()) -> None:
    """A call of the warm-up, and its time. `others`: the names of other modes' graphs."""
    started = bench.clock()
    runner.run(bench.inputs[len(runner.first_calls_s) % len(bench.inputs)])
    bench.device.synchronize()
    runner.first_calls_s.append(bench.clock() - started)
    runner.compile_s += runner.first_calls_s[-1]
    runner.graphs |= runner.other_graphs() - others


@contextmanager
def noting_inductor(extra: dict[str, Any]) -> Iterator[None]:
    """What is counted meanwhile: Inductor's own graphs, such as those that it left out, and what
    caches did not have."""

    def counters() -> dict[str, int]:
        known = torch._dynamo.utils.counters
        both = {**known["inductor"], **known["aot_autograd"]}
        return {n: c for n, c in both.items() if "cudagraph" in n or n in NOT_CACHED}

    before = counters()
    yield
    for name, count in counters().items():
        if count != before.get(name, 0):
            extra[name] = extra.get(name, 0) + count - before.get(name, 0)


def prepare(mode: str, bench: Bench) -> Runner:
    """A runner in its steady state; whatever a mode raises is the caller's to record."""
    runner = bench.runners[mode] = warm_up(begin(MODES[mode], bench), bench)
    return runner
