"""What a row measures: a program with a unit of work, and the inputs that it is called with.

The *unit* is the function that a mode compiles or captures. A *call* is what the clocks see: the
unit itself, but for rows that call it in a loop of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.harness.modes import Step, Tensors
from pygraph.demo.models import MODEL_SEED

Sample = Callable[[torch.Generator, int], Tensors]
"""Inputs by a generator, and by the number of the call in a row of calls."""


class Program:
    """Models, optimizers and further tensors, and a unit of work that reads and writes them."""

    compiled: tuple[str, ...] = ("unit",)
    """The attributes that people give to torch.compile."""

    def __init__(self) -> None:
        self.modules: dict[str, Any] = {}
        self.optimizers: dict[str, Any] = {}
        self.tensors: dict[str, Any] = {}

    def unit(self, *inputs: Any) -> Any:
        raise NotImplementedError

    def call(self, unit: Step) -> Step:
        """What is timed, given the unit as a mode has it."""
        return unit

    def unit_inputs(self, inputs: Tensors) -> Tensors:
        """Of the first unit of a call."""
        return inputs

    def callables(self, whole: bool, inputs: Tensors) -> Mapping[str, Tensors]:
        """What torch.cuda.make_graphed_callables is given: attributes, and sample arguments. All
        of the model, or a part of it."""
        raise NotImplementedError

    def parameters(self) -> list[Any]:
        return [
            each
            for module in self.modules.values()
            for each in module.parameters()
            if each.requires_grad
        ]

    def state(self) -> dict[str, Any]:
        """All tensors that a unit may read and write, by name, gradients left out: every unit
        begins with none."""
        found: dict[str, Any] = dict(self.tensors)
        for name, module in self.modules.items():
            own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            found |= {f"{name}.{key}": each for key, each in own.items()}
        for name, optimizer in self.optimizers.items():
            found |= {f"{name}.{key}": each for key, each in _optimizer_state(optimizer).items()}
        return found

    def copied(self) -> dict[str, Any]:
        return {name: tensor.detach().clone() for name, tensor in self.state().items()}

    def restore(self, start: Mapping[str, Any]) -> None:
        """In place, as `start` has it; what an optimizer has made since begins with zeros."""
        with torch.no_grad():
            for name, tensor in self.state().items():
                if name in start:
                    tensor.copy_(start[name])
                else:
                    tensor.zero_()


def _optimizer_state(optimizer: Any) -> dict[str, Any]:
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    return {
        f"{number}.{name}": value
        for number, parameter in enumerate(parameters)
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }


@dataclass(frozen=True)
class Goal:
    """A bound on pygraph's figure, over that of another mode unless that is None."""

    limit: float
    reference: str | None = None
    field: str = "latency_us"
    inverse: bool = False
    """The other mode's figure over pygraph's is at least the limit."""

    @property
    def requirement(self) -> str:
        what = {"latency_us": "latency", "host_us": "host time"}[self.field]
        if self.reference is None:
            return f"{what} at most {self.limit:g} us"
        if self.inverse:
            return f"{self.limit:g} times less {what} than {self.reference}"
        return f"{what} at most {self.limit:.2f} of {self.reference}'s"


@dataclass(frozen=True)
class Row:
    """A program, made anew for every mode, always with the same random weights."""

    name: str
    about: str
    batch: int
    build: Callable[[torch.device], Program]
    sample: Sample
    training: bool = True
    random: bool = False
    """The unit draws random numbers: compiled code draws other ones than eager."""
    half: bool = False
    """It computes in 16 bits, at least in part."""
    callables: tuple[str, ...] = ()
    """The modes with make_graphed_callables that it has."""
    skips: Mapping[str, str] = field(default_factory=dict)
    """{mode: why it is not run}"""
    goal: Goal | None = None
    least: int = 10
    """Calls per mode and round of the clocks, however long one takes."""
    timeline: bool = False
    """When the host launched and the GPU ran is recorded, for the picture."""

    def make(self, device: torch.device) -> Program:
        torch.manual_seed(MODEL_SEED)
        return self.build(device)

    def inputs(self, count: int, device: torch.device, seed: int = 0) -> Sequence[Tensors]:
        """Those of calls in a row, by their seeds alone."""
        return [
            tuple(
                tensor.to(device)
                for tensor in self.sample(torch.Generator().manual_seed(seed + n), n)
            )
            for n in range(count)
        ]


def adam_options(device: torch.device) -> dict[str, Any]:
    """An Adam whose step does not wait for the device, foreach on a GPU and fused on a CPU, where
    torch has no capturable one."""
    return {"capturable": True} if device.type == "cuda" else {"fused": True}


def fused_options(device: torch.device) -> dict[str, Any]:
    return {"fused": True, "capturable": device.type == "cuda"}
