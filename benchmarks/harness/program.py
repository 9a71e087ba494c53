"""A program of a benchmark: a model, and how it is called."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo
from torch import nn

Tensors = tuple[Any, ...]
Sample = Callable[[torch.Generator, torch.device], Tensors]

BF16 = "bf16 autocast"


class Program(nn.Module):
    """A model as a function from tensors to a tuple of tensors, or to a loss.

    `call` says how the model is called and what is taken of its results. The autocast is entered
    inside `forward`, so compiled modes pay for it once; a backward runs outside of it. `precise`
    switches it off: the reference that rounding errors are measured against.
    """

    def __init__(self, model: nn.Module, call: Callable[..., Any], autocast: bool) -> None:
        super().__init__()
        self.model = model
        self.call = call
        self.autocast = autocast
        self.precise = False

    def forward(self, *inputs: Any) -> Any:
        enabled = self.autocast and not self.precise
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=enabled):
            return self.call(self.model, *inputs)


@contextmanager
def precisely(program: Any) -> Iterator[None]:
    """Without autocast and without TF32. `program` has a switch `precise`."""
    tf32 = torch.backends.cudnn.allow_tf32
    program.precise, torch.backends.cudnn.allow_tf32 = True, False
    try:
        yield
    finally:
        program.precise, torch.backends.cudnn.allow_tf32 = False, tf32


def made_inputs(sample: Sample, seed: int, device: torch.device) -> Tensors:
    """Inputs that depend on the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(tensor.to(device) for tensor in sample(generator, device))


def compiled_frames() -> int:
    """How many Dynamo has compiled in this process."""
    return int(torch._dynamo.utils.counters["frames"].get("ok", 0))


def with_code_of_its_own(function: Any) -> Any:
    """The same function. How often Dynamo has compiled one, and whether it skips it, for a break in
    a loop say, goes by its code."""
    found = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    found.__kwdefaults__ = function.__kwdefaults__
    return found
