"""The ways to train a program, each prepared to a function that takes one whole step.

A step sets the gradients to None, runs forward, loss and backward, and lets a fused AdamW update
the weights. What is compiled is the module from inputs to loss; the optimizer is eager in every
mode but the floor's graph, where the whole step is captured.

Every mode trains a copy of its own of one program, except the floor, which runs default's compiled
code on default's weights. That is not only cheaper: compiling once more would, in torch 2.11, let
Inductor tune kernels anew that graphs have captured already, and then bits differ by chance.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.harness import floor, modes
from benchmarks.harness.modes import Bench, Runner

LEARNING_RATE = 1e-4
INPUTS = 8
"""Different buffers that the steps go around."""


@dataclass
class Trainer(Runner):
    """A program that is ready to be trained in one way."""

    program: Any = None
    """Holds the weights, uncompiled."""
    optimizer: Any = None

    def restore(self, start: dict[str, Any]) -> None:
        """Weights, buffers and the optimizer as they were before the first step, in place."""
        with torch.no_grad():
            for name, tensor in state(self.program).items():
                tensor.copy_(start[name])
            for each in self.optimizer.state.values():
                for tensor in each.values():
                    tensor.zero_()
        self.forget()


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
    module = compile_(program)
    parameters = trained(program)
    optimizer = adamw(parameters)
    return Trainer(
        mode,
        make_step(module, optimizer),
        modes.backward_thread(mode, modes.before(mode)),
        keep=module,
        parameters=parameters,
        program=program,
        optimizer=optimizer,
    )


def _way(mode: str) -> Callable[[Bench], Trainer]:
    def make(bench: Bench) -> Trainer:
        modes.start_anew(mode)
        trainer = _trainer(mode, bench, lambda program: modes.compile_as(mode, program, bench))
        trainer.bytes_per_call = modes.copied(mode, bench)
        return trainer

    return make


def _floor(bench: Bench) -> Trainer:
    default = bench.runners.get("default")
    if default is None:
        raise RuntimeError("no floor without the default mode, whose step it captures")
    optimizer = adamw(default.parameters, capturable=True)
    step = make_step(default.keep, optimizer)
    found = floor.capture(
        lambda *inputs: step(*inputs).detach(), bench.inputs[0], default.parameters
    )
    return modes.replaying(Trainer, found, program=default.program, optimizer=optimizer)


MODES: dict[str, Callable[[Bench], Trainer]] = {
    **{mode: _way(mode) for mode in modes.MODES},
    "floor": _floor,
}
"""In the order in which they are prepared: default first, see the top."""
