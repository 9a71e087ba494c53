"""What a workload is: something that trains, step by step, on inputs that only a seed decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

#: Takes a module or another callable, returns what runs in its place.
Compile = Callable[[Any], Any]
T = TypeVar("T")


@dataclasses.dataclass
class Setup:
    """What a workload is built for. Inputs come from a generator of their own on the CPU, so that
    they are the same on every device and whatever else draws random numbers."""

    device: str
    full: bool  #: sizes worth a GPU; else sizes that a CPU trains in seconds
    compile: Compile
    inputs: torch.Generator

    def pick(self, small: T, full: T) -> T:
        return full if self.full else small

    def place(self, module: nn.Module) -> Any:
        return module.to(self.device).train()

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.inputs).to(self.device)

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=self.inputs).to(self.device)

    def integers(self, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=self.inputs).to(self.device)


@dataclasses.dataclass
class Training:
    """A workload that was built. `step` does one step of training and returns the losses and what
    else of it is worth comparing: outputs of the compiled function as they are, not copies, so that
    one whose memory is written again by a later step shows."""

    modules: Sequence[nn.Module]
    optimisers: Sequence[torch.optim.Optimizer]
    step: Callable[[int], Sequence[torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Workload:
    name: str
    build: Callable[[Setup], Training]
    what: str
    graphs: int
    """How many graphs must serve calls once training is captured: a forward and a backward one per
    compiled function that trains, and one per function that also runs without gradients."""
