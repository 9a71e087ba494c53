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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo

from benchmarks.harness import modes
from benchmarks.harness.device import Device
from benchmarks.harness.isolate import isolated
from benchmarks.harness.modes import Runner
from benchmarks.harness.threads import backward_thread
from benchmarks.training import floor
from benchmarks.training.models import Training

LEARNING_RATE = 1e-4
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


@dataclass
class Bench(modes.Bench):
    """What every mode is prepared from. The weights of `model`, a TrainingProgram, stay as they
    are: modes train copies."""

    training: Training = field(kw_only=True)


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
    program = copy.deepcopy(bench.model)
    module = compile_(isolated(program, mode.replace("-", "_")))
    optimizer = adamw(trained(program))
    step = make_step(module, optimizer)
    before = backward_thread(mode, modes.before(mode))
    return Trainer(mode, step, before, program=program, optimizer=optimizer, keep=module)


def _eager(bench: Bench) -> Trainer:
    return _trainer("eager", bench, lambda module: module)


def _compiled(mode: str) -> Callable[[Bench], Trainer]:
    def make(bench: Bench) -> Trainer:
        if mode == "pygraph":
            from pygraph.runtime.registry import reset

            reset()
        how = modes.compiling(mode, bench.device.is_cuda)
        trainer = _trainer(mode, bench, lambda module: torch.compile(module, **how))
        trainer.bytes_per_call = modes.copied(mode, bench)
        return trainer

    return make


def _floor(bench: Bench) -> Trainer:
    default = bench.runners.get("default")
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
    "default": _compiled("default"),
    "reduce-overhead": _compiled("reduce-overhead"),
    "pygraph": _compiled("pygraph"),
    "floor": _floor,
}
"""In the order in which they are prepared: default first, see the top."""

ON_CPU = ("eager", "default", "pygraph")
COMPILED = ("default", "reduce-overhead", "pygraph", "floor")
"""Those that run Inductor's kernels, though not always the same; see check.py."""
WEIGHED = ("default", "reduce-overhead", "pygraph")


def available(device: Device) -> list[str]:
    return list(MODES) if device.is_cuda else list(ON_CPU)


def graph_breaks() -> Iterator[str]:
    """What Dynamo noted so far, for the record: with one graph there is none."""
    for reason in torch._dynamo.utils.counters["graph_break"]:
        yield str(reason).splitlines()[0]
