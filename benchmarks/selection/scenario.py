"""What a scenario is: a model of few kernels, the inputs of call after call, and a caller.

What a graph is worth depends on all three. A caller that waits for each result sees the time until
the GPU is idle; one that goes on at once sees the host's time, or the GPU's, whichever is longer.
So each scenario says what its caller does, and one figure counts, the *cost*:

waits    microseconds from a call until the GPU is idle
flows    microseconds per call of many in a row, and one wait behind them
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.harness.program import Tensors
from pygraph.demo.models import MODEL_SEED

BUFFERS = 8
"""Inputs that calls go around: each has other values, elsewhere in memory."""
FIRST_SEED = 1000
WIDTH = 128

Made = Callable[[torch.Generator, torch.device, int], Tensors]
"""The n-th inputs."""


class Caller:
    """Calls once; a subclass says what else a program does. Each mode has a caller of its own."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, compiled: Callable[..., Any], *inputs: Any) -> Any:
        return compiled(*inputs)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


@dataclass(frozen=True)
class Scenario:
    name: str
    about: str
    model: Callable[[], nn.Module]
    made: Made
    waits: bool
    """The caller waits for the results of each call."""
    caller: type[Caller] = Caller
    buffers: int = BUFFERS
    training: bool = False
    """An iteration is a forward to a loss, and a backward."""
    gradients: bool = False
    """Calls are made where gradients are recorded, though there is no backward."""
    dynamic: bool | None = None
    """Of torch.compile: sizes are dynamic from the first call on."""
    tolerance: float = 1e-3
    """Relative, against eager."""

    @property
    def behaviour(self) -> str:
        return "waits" if self.waits else "flows"

    def build(self, device: torch.device) -> nn.Module:
        torch.manual_seed(MODEL_SEED)
        model = self.model().to(device)
        return model if self.training else model.eval()

    def inputs(self, n: int, device: torch.device) -> Tensors:
        return self.made(torch.Generator().manual_seed(FIRST_SEED + n), device, n)

    def pool(self, device: torch.device) -> list[Tensors]:
        return [self.inputs(n, device) for n in range(self.buffers)]


def drawn(*shapes: Sequence[int], dtype: torch.dtype = torch.float32) -> Made:
    """Random tensors of these shapes."""

    def made(generator: torch.Generator, device: torch.device, n: int) -> Tensors:
        return tuple(
            torch.randn(*shape, generator=generator).to(device, dtype=dtype) for shape in shapes
        )

    return made


def large(rows: int, columns: int, tensors: int = 1) -> Made:
    """Rows that repeat after a while: to draw all of a large tensor would take seconds."""
    few = min(rows, 64)

    def made(generator: torch.Generator, device: torch.device, n: int) -> Tensors:
        parts = [torch.randn(few, columns, generator=generator) for _ in range(tensors)]
        return tuple(each.to(device).repeat(rows // few, 1) for each in parts)

    return made


def lengths(them: Sequence[int], width: int = WIDTH) -> Made:
    """The n-th inputs have the n-th of these lengths."""

    def made(generator: torch.Generator, device: torch.device, n: int) -> Tensors:
        shape = them[n % len(them)], width
        return (torch.randn(shape, generator=generator).to(device),)

    return made


def mixed(many: int, most: int) -> list[int]:
    """So many random lengths, most of which come again."""
    return [random.Random(n).randrange(2, most + 2) for n in range(many)]
