"""The ways to run a workload, each prepared to a function that takes one iteration.

eager             no compiler
default           torch.compile(program)
reduce-overhead   torch.compile(program, mode="reduce-overhead"): torch's own CUDA graphs
pygraph           torch.compile(program, backend="pygraph")
pygraph-copies    the same with changing arguments copied into place instead of patched: what the
                  second of the paper's three ideas is worth (its section 6, ablation)
floor             default's code, a whole iteration in one CUDA graph on inputs that never move, and
                  replayed: the limit while the kernels stay the same. Nobody brings it new inputs

The paper's other two parts, transformations and selection, have no switch here: PyGraph does not
transform programs and does not decide by cost yet, so pygraph is measured without either.

What is compiled is the program from inputs to outputs. In training, the loss is made of the outputs
by eager code, as in the paper: a backward graph then has the outputs' gradients among its inputs.
All modes share the weights, which nobody updates.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo

from benchmarks.harness import modes
from benchmarks.harness.device import Device, Memory, drop_workspaces, nbytes
from benchmarks.harness.isolate import isolated
from benchmarks.harness.modes import MOST_WARM_UP_CALLS, WARM_UP_CALLS, Runner, Tensors
from benchmarks.harness.reports import read_report
from benchmarks.harness.threads import backward_thread
from benchmarks.paper.workloads.workload import Workload
from pygraph.reporting import WARMING, GraphReport

SETTLING_PASSES = 2
"""Over all buffers, behind the warm-up: where sizes depend on values, each may be compiled for
anew, which the clocks shall not see. The seconds of that are not part of `compile_s`."""
RECOMPILES = 128
"""Dynamo's limit per function: behind a graph break all modes share functions."""


@dataclass
class Iteration(Runner):
    """A workload that is ready to be run in one way. `step` returns a tuple of tensors: in
    inference the results, in training the loss."""

    parameters: Sequence[Any] = ()
    """Those that have gradients; none in inference."""
    complete: list[bool] = field(default_factory=lambda: [False])
    """Whether, in training, `step` returns all results instead of the loss. They live until the
    backward is done either way, as where a program has a name for them: torch's graphs do not stand
    it if they live longer than when they were captured (torch 2.11, cudagraph_trees.py)."""
    kept_gradients: list[Any] | None = None
    """Where they are if not in the parameters: a graph has places of its own for them."""
    graphs: frozenset[str] = frozenset()
    """pygraph: the names of this mode's compiled graphs in the report."""

    def gradients(self) -> tuple[Any, ...]:
        """As the last iteration left them, by parameter; None where there is none."""
        if self.kept_gradients is not None:
            return tuple(self.kept_gradients)
        return tuple(parameter.grad for parameter in self.parameters)

    def forget(self) -> None:
        """Drop the gradients: modes share the parameters."""
        if self.kept_gradients is None:
            for parameter in self.parameters:
                parameter.grad = None

    def reports(self) -> list[GraphReport]:
        """pygraph: of this mode's compiled graphs alone, with the counters of this moment."""
        if not self.graphs:
            return []
        return [graph for graph in _reports() if graph.name in self.graphs]

    def counted(self, counter: str) -> int:
        """pygraph: a counter of the report, over this mode's graphs."""
        return sum(getattr(graph, counter) for graph in self.reports())


@dataclass
class Bench(modes.Bench):
    """What every mode is prepared from."""

    workload: Workload = field(kw_only=True)
    clock: Callable[[], float] = time.perf_counter
    """Seconds, for what preparing takes."""
    memory: dict[str, Memory] = field(default_factory=dict)
    """By mode, before it took any."""


def loss_of(outputs: Tensors) -> Any:
    """A scalar, as TorchDynamo's benchmarks make it: the mean of each output, and of those."""
    floating = [output for output in outputs if output.requires_grad]
    if len(floating) == 1 and not floating[0].dim():
        return floating[0]
    return sum(output.float().mean() for output in floating) / len(floating)


def _iteration(mode: str, bench: Bench, module: Any) -> Iteration:
    before = modes.before(mode)
    if not bench.workload.training:
        return Iteration(mode, module, before, keep=module)
    parameters = [each for each in bench.model.parameters() if each.requires_grad]
    complete = [False]

    def step(*inputs: Any) -> Tensors:
        for parameter in parameters:
            parameter.grad = None
        results = module(*inputs)
        loss = loss_of(results)
        loss.backward()
        return tuple(each.detach() for each in (results if complete[0] else (loss,)))

    before = backward_thread(mode, before)
    return Iteration(mode, step, before, keep=module, parameters=parameters, complete=complete)


def _eager(bench: Bench) -> Iteration:
    return _iteration("eager", bench, bench.model)


def _compiled(mode: str, **options: Any) -> Callable[[Bench], Iteration]:
    """`options` of pygraph."""

    def make(bench: Bench) -> Iteration:
        given = modes.compiling(mode.removesuffix("-copies"), bench.device.is_cuda)
        if options:
            given["options"] = given["options"] | options
        module = isolated(bench.model, mode.replace("-", "_"))
        return _iteration(mode, bench, torch.compile(module, **given))

    return make


def _floor(bench: Bench) -> Iteration:
    default = bench.runners["default"]
    static = tuple(tensor.clone() for tensor in bench.inputs[0])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            default.step(*static)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    default.forget()
    drop_workspaces()
    default.complete[0] = True
    graph = torch.cuda.CUDAGraph()
    gc.collect()
    gc.disable()  # what garbage gives back to the driver would end the capture
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            outputs = default.step(*static)
    finally:
        default.complete[0] = False
        gc.enable()
    gradients = list(default.gradients())
    default.forget()

    def step(*_: Any) -> Tensors:
        graph.replay()
        return outputs

    def load(inputs: Tensors) -> None:
        for place, tensor in zip(static, inputs, strict=True):
            place.copy_(tensor)

    return Iteration("floor", step, load=load, keep=(default, static), kept_gradients=gradients)


MODES: dict[str, Callable[[Bench], Iteration]] = {
    "eager": _eager,
    "default": _compiled("default"),
    "reduce-overhead": _compiled("reduce-overhead"),
    "pygraph": _compiled("pygraph"),
    "pygraph-copies": _compiled("pygraph-copies", arguments="copied"),
    "floor": _floor,
}
"""In the order in which they are prepared."""

ON_CPU = ("eager", "default", "pygraph")
CONFIGURATIONS = ("default", "reduce-overhead")
"""Each of Inductor's that modes compile with, by the first of them: pygraph compiles as
reduce-overhead does, and the floor is default's."""


def find(names: str | None, device: Device) -> list[str]:
    """The modes of a list with commas, in the order in which they are prepared."""
    return modes.find(names, tuple(MODES) if device.is_cuda else ON_CPU)


def begin(mode: str, bench: Bench) -> Iteration:
    """Compiled, by a first call, and nothing captured yet but the floor. All modes begin before any
    goes on: what one compilation tunes anew, another's graph may have captured already."""
    before, skipped = _names(), _skips()
    started = bench.clock()
    found = MODES[mode](bench)
    found.compile_s = bench.clock() - started
    if mode != "floor":
        _call(found, bench, before)
    found.extra["skips"] = _skips() - skipped
    bench.runners[mode] = found
    return found


def compile_cold(mode: str, bench: Bench) -> float:
    """Fills Inductor's caches by a first call in this mode, which is forgotten; returns its
    seconds. All modes find the same caches then, whoever is first."""
    started = bench.clock()
    found = MODES[mode](bench)
    found.run(bench.inputs[0])
    bench.device.synchronize()
    found.forget()
    torch._dynamo.reset()
    return bench.clock() - started


def finish(found: Iteration, bench: Bench) -> None:
    """Call until nothing is compiled or captured any more, and then with all buffers."""
    before = _names() - found.graphs
    skipped = _skips()
    with _captures() as captured:
        for call in range(1, MOST_WARM_UP_CALLS):
            warming = any(graph.state == WARMING for graph in found.reports())
            if call >= WARM_UP_CALLS and not warming:
                break
            _call(found, bench, before)
        started = bench.clock()
        for _ in range(SETTLING_PASSES):
            for inputs in bench.inputs:
                found.run(inputs)
        bench.device.synchronize()
        found.extra["settle_s"] = bench.clock() - started
    found.extra["captures"] = len(captured)
    found.extra["skips"] += _skips() - skipped
    if found.mode == "reduce-overhead":
        found.bytes_per_call = copied_by_torch(found, bench)


def _call(found: Iteration, bench: Bench, others: frozenset[str]) -> None:
    """One iteration of the warm-up, and its time. `others`: the names of other modes' graphs."""
    started = bench.clock()
    found.run(bench.inputs[len(found.first_calls_s) % len(bench.inputs)])
    bench.device.synchronize()
    seconds = bench.clock() - started
    found.first_calls_s.append(seconds)
    found.compile_s += seconds
    if found.mode.startswith("pygraph"):
        found.graphs = _names() - others


def _reports() -> list[GraphReport]:
    """pygraph: of all compiled graphs."""
    return list(read_report().graphs)


def _names() -> frozenset[str]:
    return frozenset(graph.name for graph in _reports())


def _skips() -> int:
    """Callables that torch did not make graphs of, as Inductor counts them."""
    return int(torch._dynamo.utils.counters["inductor"]["cudagraph_skips"])


@contextmanager
def _captures() -> Iterator[list[Any]]:
    """The graphs that torch captures meanwhile."""
    seen: list[Any] = []
    original = torch.cuda.CUDAGraph.capture_end

    def capture_end(graph: Any) -> None:
        original(graph)
        seen.append(None)

    with patch.object(torch.cuda.CUDAGraph, "capture_end", capture_end):
        yield seen


def copied_by_torch(found: Iteration, bench: Bench) -> int:
    """Bytes that torch's graphs copy to bring their inputs in place in one iteration, seen in the
    calls that do it (torch/_inductor/cudagraph_trees.py)."""
    copied = 0
    original = torch._foreach_copy_

    def seen(places: Sequence[Any], sources: Sequence[Any], *rest: Any) -> Any:
        nonlocal copied
        copied += nbytes(sources)
        return original(places, sources, *rest)

    with patch.object(torch, "_foreach_copy_", seen):
        found.run(bench.inputs[0])
        bench.device.synchronize()
    return copied
