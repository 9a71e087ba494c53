"""Tensors without memory: a program is traced as though it were on a GPU.

FakeTensorMode gives tensors that know shape, type and device only. Which device they are told
decides what can be traced:

- torch built for CUDA (a GPU may be missing): "cuda:0", so that the program takes the branches it
  would take.
- torch's CPU build: "meta". With "cuda:0" indexing a tensor already fails there, because no guard
  for CUDA devices exists.
- a backward where no GPU is: "meta". Autograd asks the driver about the device of each gradient
  ("hasPrimaryContext expects a valid device index").

"meta" still tells a tensor of the CPU from one of the GPU, which is what a plan needs; a program
that asks `tensor.is_cuda` takes its other branch, though.

A program that reads values (`.item()`) gets a stand-in, so that what comes behind can be seen too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pygraph.operators.obstacles import is_mask
from pygraph.torch_private.fake_tensors import FakeTensor, FakeTensorMode, constant_of
from pygraph.torch_private.modules import buffers, parameters

aten = torch.ops.aten

# `while mask.any():` would never end if every question were answered alike.
TRUE_ANSWERS = 64


def stand_in_device(training: bool) -> str:
    suffices = torch.cuda.is_available() if training else torch.version.cuda
    return "cuda:0" if suffices else "meta"


class StandInMode(FakeTensorMode):
    """Fake tensors that answer questions about their values.

    A number is 1, a condition holds (for the first TRUE_ANSWERS times), a mask selects everything.
    That is a guess, and `guesses` says how often it was needed.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.guesses: dict[str, int] = {}

    # The method that FakeTensorMode's __torch_dispatch__ calls, from torch 2.1 on.
    def dispatch(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is aten._local_scalar_dense.default:
            return self._number(args[0])
        if func is aten.nonzero.default:
            return aten.new_empty.default(args[0], self._places(args[0]), dtype=torch.int64)
        if func is aten.masked_select.default:
            selected = torch.broadcast_tensors(args[0], args[1])[0]
            return aten.new_empty.default(args[0], (self._places(selected)[0],))
        if func is aten.index.Tensor and any(is_mask(index) for index in args[1]):
            return func(args[0], self._without_masks(args[1]))
        return super().dispatch(func, types, args, kwargs)

    def _number(self, tensor: Any) -> Any:
        constant = constant_of(tensor)
        if constant is not None:
            return constant.item()
        times = self._guess("a number that the program reads is taken to be 1 (or True)")
        if tensor.dtype == torch.bool:
            return times <= TRUE_ANSWERS
        return 1.0 if tensor.is_floating_point() else 1

    def _places(self, tensor: Any) -> tuple[int, int]:
        self._guess("a mask is taken to select everything")
        return tensor.numel(), tensor.dim()

    def _without_masks(self, indices: list[Any]) -> list[Any]:
        found: list[Any] = []
        for index in indices:
            found += aten.nonzero.default(index).unbind(1) if is_mask(index) else [index]
        return found

    def _guess(self, what: str) -> int:
        self.guesses[what] = self.guesses.get(what, 0) + 1
        return self.guesses[what]


class Stand:
    """Replaces tensors by fake ones, each by the same one however often it occurs.

    A program that is on a GPU already (or on "meta") keeps its devices, so that a tensor that was
    left on the CPU is found. One that is wholly on the CPU is taken as one that will be moved.
    """

    def __init__(self, mode: StandInMode, device: str, move_all: bool) -> None:
        self.mode = mode
        self.device = device
        self.move_all = move_all
        self._made: dict[int, tuple[Any, Any]] = {}

    def __call__(self, tensor: Any) -> Any:
        made = self._made.get(id(tensor))
        if made is None:
            # The tensor is kept beside its stand-in: an id may be given again once it is gone.
            made = self._made[id(tensor)] = (tensor, self._make(tensor))
        return made[1]

    def _make(self, tensor: Any) -> Any:
        stays = tensor.device.type == "cpu" and not self.move_all
        with self.mode:
            fake = torch.empty_strided(
                tensor.shape,
                tensor.stride(),
                dtype=tensor.dtype,
                device="cpu" if stays else self.device,
            )
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
        return fake.requires_grad_(tensor.requires_grad and tensor.is_leaf)


def mode_of(tensors: Iterable[Any]) -> StandInMode:
    """The mode that a model was built in, if it was: fake tensors of two modes do not mix."""
    for tensor in tensors:
        if isinstance(tensor, FakeTensor) and isinstance(tensor.fake_mode, StandInMode):
            tensor.fake_mode.guesses.clear()
            return tensor.fake_mode
    return StandInMode()


def on_cpu_only(tensors: Iterable[Any]) -> bool:
    return all(tensor.device.type == "cpu" for tensor in tensors)


@contextmanager
def replaced(model: Any, stand: Callable[[Any], Any]) -> Iterator[None]:
    """Lends a module fake parameters and buffers, and gives its own back.

    Plain attributes that hold tensors stay as they are: `.to("cuda")` would leave them too.
    """
    if not isinstance(model, torch.nn.Module):
        yield
        return
    tables = [
        table for module in model.modules() for table in (parameters(module), buffers(module))
    ]
    own = [dict(table) for table in tables]
    try:
        for table in tables:
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = stand(tensor)
        yield
    finally:
        for table, before in zip(tables, own, strict=True):
            table.clear()
            table.update(before)


def built_without_memory(build: Callable[[], Any]) -> Any:
    """What `build` returns, its tensors fake and on the CPU: a model of any size in no memory."""
    with StandInMode():
        return build()
