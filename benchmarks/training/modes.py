"""The ways to train a program, each prepared to a function that takes one whole step.

A step sets the gradients to None, runs forward, loss and backward, and lets a fused AdamW update
the weights. What is compiled is the module from inputs to loss; the optimizer is eager in every
mode but the floor's graph, where the whole step is captured (floor.py).

Every mode trains a copy of its own of one program, except the floor, which runs default's compiled
code on default's weights. That is not only cheaper: compiling once more would, in torch 2.11, let
Inductor tune kernels anew that graphs have captured already, and then bits differ by chance.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo

from benchmarks.harness.device import Device, nbytes
from benchmarks.harness.isolate import isolated
from benchmarks.harness.modes import MOST_WARM_UP_CALLS, Runner, Tensors
from benchmarks.harness.threads import backward_thread
from benchmarks.training import floor
from benchmarks.training.models import Training, TrainingProgram
from pygraph.reporting import WARMING

LEARNING_RATE = 1e-4
WARM_UP_STEPS = 4
"""Compiling, then torch's warm-up, recording and first replay."""
INPUTS = 8
"""Different buffers that the steps go around."""


@dataclass
class Trainer(Runner):
    """A program that is ready to be trained in one way."""

    program: Any = None
    """Holds the weights, uncompiled."""
    optimizer: Any = None
    kept_gradients: list[Any] | None = None
    """Where they are if not in the parameters: a graph has places of its own for them."""
    first_steps_s: list[float] = field(default_factory=list)
    """Seconds of each step of the warm-up."""

    def parameters(self) -> list[Any]:
        return trained(self.program)

    def gradients(self) -> list[Any]:
        """As the last step left them; None for what the loss does not depend on."""
        if self.kept_gradients is not None:
            return self.kept_gradients
        return [parameter.grad for parameter in self.parameters()]

    def restore(self, start: dict[str, Any]) -> None:
        """Weights, buffers and the optimizer as they were before the first step, in place."""
        with torch.no_grad():
            for name, tensor in state(self.program).items():
                tensor.copy_(start[name])
            for each in self.optimizer.state.values():
                for tensor in each.values():
                    tensor.zero_()
        if self.kept_gradients is None:
            self.optimizer.zero_grad()

    def take_step(self, inputs: Tensors) -> Any:
        """A step on these inputs as a program would take it; returns the loss."""
        if self.load is not None:
            self.load(inputs)
        if self.before is not None:
            self.before()
        return self.step(*inputs)


@dataclass
class Bench:
    """What every mode is prepared from."""

    training: Training
    program: TrainingProgram
    """Its weights stay as they are; modes train copies."""
    inputs: Sequence[Tensors]
    device: Device
    trainers: dict[str, Trainer] = field(default_factory=dict)
    """Those that were prepared before, in order."""


def trained(program: Any) -> list[Any]:
    return [parameter for parameter in program.parameters() if parameter.requires_grad]


def state(program: Any) -> dict[str, Any]:
    """All parameters and buffers by name, also those that no checkpoint would keep."""
    return {**dict(program.named_parameters()), **dict(program.named_buffers())}


def adamw(parameters: list[Any], capturable: bool = False) -> Any:
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True, capturable=capturable)


def make_step(module: Any, optimizer: Any) -> Callable[..., Any]:
    def step(*inputs: Any) -> Any:
        optimizer.zero_grad()
        loss = module(*inputs)
        loss.backward()
        optimizer.step()
        return loss

    return step


def _trainer(mode: str, bench: Bench, compile_: Callable[[Any], Any]) -> Trainer:
    program = copy.deepcopy(bench.program)
    module = compile_(isolated(program, mode.replace("-", "_")))
    optimizer = adamw(trained(program))
    step = make_step(module, optimizer)
    before = backward_thread(mode)
    return Trainer(mode, step, before, program=program, optimizer=optimizer, keep=module)


def _eager(bench: Bench) -> Trainer:
    return _trainer("eager", bench, lambda module: module)


def _default(bench: Bench) -> Trainer:
    # Without a GPU: AOTAutograd's graphs, operator by operator, as the twin has them too.
    options = {} if bench.device.is_cuda else {"backend": "aot_eager"}
    return _trainer("default", bench, lambda module: torch.compile(module, **options))


def _reduce_overhead(bench: Bench) -> Trainer:
    trainer = _trainer(
        "reduce-overhead", bench, lambda module: torch.compile(module, mode="reduce-overhead")
    )
    trainer.before = backward_thread(trainer.mode, torch.compiler.cudagraph_mark_step_begin)
    # Parameters are static; what the caller brings is copied into place in every step.
    trainer.bytes_per_call = nbytes(bench.inputs[0])
    return trainer


def _pygraph(bench: Bench) -> Trainer:
    from pygraph.frontends.compile.backend import backend
    from pygraph.runtime.registry import reset

    reset()
    options = None if bench.device.is_cuda else {"device": "twin"}
    return _trainer(
        "pygraph", bench, lambda module: torch.compile(module, backend=backend, options=options)
    )


def _floor(bench: Bench) -> Trainer:
    default = bench.trainers.get("default")
    if default is None:
        raise RuntimeError("no floor without the default mode, whose step it captures")
    optimizer = adamw(default.parameters(), capturable=True)
    captured = floor.capture(default.keep, default.parameters(), optimizer, bench.inputs[0])
    return Trainer(
        "floor",
        captured.step,
        load=captured.load,
        keep=captured,
        program=default.program,
        optimizer=optimizer,
        kept_gradients=captured.gradients,
    )


MODES: dict[str, Callable[[Bench], Trainer]] = {
    "eager": _eager,
    "default": _default,
    "reduce-overhead": _reduce_overhead,
    "pygraph": _pygraph,
    "floor": _floor,
}
"""In the order in which they are prepared: default first, see the top."""

ON_CPU = ("eager", "default", "pygraph")
COMPILED = ("default", "reduce-overhead", "pygraph", "floor")
"""Those that run Inductor's kernels, though not always the same; see check.py."""
WEIGHED = ("default", "reduce-overhead", "pygraph")


def available(device: Device) -> list[str]:
    return list(MODES) if device.is_cuda else list(ON_CPU)


def begin(mode: str, bench: Bench) -> Trainer:
    """A trainer whose first step was taken: compiled, and nothing captured yet."""
    started = time.perf_counter()
    trainer = MODES[mode](bench)
    trainer.compile_s = time.perf_counter() - started
    _timed_step(trainer, bench)
    return trainer


def finish(trainer: Trainer, bench: Bench) -> None:
    """Step until nothing is captured any more."""
    for _ in range(MOST_WARM_UP_CALLS - 1):
        if len(trainer.first_steps_s) >= WARM_UP_STEPS and not _warming(trainer):
            break
        _timed_step(trainer, bench)


def _timed_step(trainer: Trainer, bench: Bench) -> None:
    started = time.perf_counter()
    if trainer.before is not None:
        trainer.before()
    trainer.step(*bench.inputs[len(trainer.first_steps_s) % len(bench.inputs)])
    bench.device.synchronize()
    seconds = time.perf_counter() - started
    trainer.first_steps_s.append(seconds)
    trainer.compile_s += seconds


def _warming(trainer: Trainer) -> bool:
    if trainer.mode != "pygraph":
        return False
    from pygraph.runtime.registry import report

    return any(graph.state == WARMING for graph in report().graphs)


def graph_breaks() -> Iterator[str]:
    """What Dynamo noted so far, for the record: with one graph there is none."""
    for reason in torch._dynamo.utils.counters["graph_break"]:
        yield str(reason).splitlines()[0]
