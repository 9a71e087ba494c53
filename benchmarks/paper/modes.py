"""The ways to run a workload, each prepared to a function that takes one iteration: those of
harness/modes.py, and

pygraph-untransformed    pygraph without the passes that take obstacles out of a program: what the
                         first of the paper's three ideas is worth (its section 6, ablation)
pygraph-copies           pygraph with changing arguments copied into place instead of patched: what
                         the second is worth
pygraph-always           pygraph with every graph used that is proven, whether it pays or not: what
                         the third, selection, is worth
pygraph-parallel         pygraph with nodes side by side, where clocks say that this is faster

What is compiled is the program from inputs to outputs. In training, the loss is made of the outputs
by eager code, as in the paper: a backward graph then has the outputs' gradients among its inputs.
All modes share the weights, which nobody updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo

from benchmarks.harness import floor, modes
from benchmarks.harness.device import Device, nbytes
from benchmarks.harness.modes import Bench, Runner, Tensors

SETTLING_PASSES = 2
"""Over all buffers, behind the warm-up: where sizes depend on values, each may be compiled for
anew, which the clocks shall not see. The seconds of that are not part of `compile_s`."""
RECOMPILES = 128
"""Dynamo's limit per function: behind a graph break all modes share functions."""


@dataclass
class Iteration(Runner):
    """A workload that is ready to be run in one way. `step` returns a tuple of tensors: in
    inference the results, in training the loss."""

    complete: list[bool] = field(default_factory=lambda: [False])
    """Whether, in training, `step` returns all results instead of the loss. They live until the
    backward is done either way, as where a program has a name for them: torch's graphs do not stand
    it if they live longer than when they were captured (torch 2.11, cudagraph_trees.py)."""

    @contextmanager
    def all_results(self) -> Iterator[None]:
        self.complete[0] = True
        try:
            yield
        finally:
            self.complete[0] = False


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

    before = modes.backward_thread(mode, before)
    return Iteration(mode, step, before, keep=module, parameters=parameters, complete=complete)


def _way(mode: str, **options: Any) -> Callable[[Bench], Iteration]:
    """`options` of PyGraph."""
    return lambda bench: _iteration(
        mode, bench, modes.compile_as(mode, bench.model, bench, **options)
    )


def _floor(bench: Bench) -> Iteration:
    default = bench.runners["default"]
    found = floor.capture(
        default.step, bench.inputs[0], default.parameters, default.all_results, "thread_local"
    )
    return modes.replaying(Iteration, found)


MODES: dict[str, Callable[[Bench], Iteration]] = {
    **{mode: _way(mode) for mode in ("eager", "default", "reduce-overhead", "pygraph")},
    "pygraph-untransformed": _way("pygraph-untransformed", transform="none"),
    "pygraph-copies": _way("pygraph-copies", arguments="copied"),
    "pygraph-always": _way("pygraph-always", select="always"),
    "pygraph-parallel": _way("pygraph-parallel", parallel="auto"),
    "floor": _floor,
}
"""In the order in which they are prepared."""


def find(names: str | None, device: Device) -> list[str]:
    """The modes of a list with commas, in the order in which they are prepared."""
    return modes.find(names, modes.available(device, MODES))


def begin(mode: str, bench: Bench) -> Iteration:
    """Compiled, by a first call, and nothing captured yet but the floor. All modes begin before any
    goes on: what one compilation tunes anew, another's graph may have captured already."""
    found: Iteration = modes.begin(MODES[mode], bench, call=mode != "floor")
    bench.runners[mode] = found
    return found


def compile_cold(mode: str, bench: Bench) -> float:
    """Fills the caches on disk by a first call in this mode, which is forgotten; returns its
    seconds. The mode finds them filled then, whoever is first."""
    started = bench.clock()
    found = MODES[mode](bench)
    found.run(bench.inputs[0])
    bench.device.synchronize()
    found.forget()
    torch._dynamo.reset()
    return bench.clock() - started


def finish(found: Iteration, bench: Bench) -> None:
    """Call until nothing is compiled or captured any more, and then with all buffers."""
    with _captures() as captured:
        modes.warm_up(found, bench)
        started = bench.clock()
        with modes.noting_inductor(found.extra):
            for _ in range(SETTLING_PASSES):
                for inputs in bench.inputs:
                    found.run(inputs)
            bench.device.synchronize()
        found.extra["settle_s"] = bench.clock() - started
    found.extra["captures"] = len(captured)
    if found.mode == "reduce-overhead":
        found.bytes_per_call = copied_by_torch(found, bench)


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
