"""Random programs as data: what is called, with what memory, how often.

A program is a module's source plus the expressions that make its inputs from `bases` (pieces of
memory), so inputs can share storage in any way. `N` in an expression is the leading size of the
call. Everything is text: a program prints as it runs, and its repr evaluates to itself.
"""

from __future__ import annotations

import dataclasses
import functools
import linecache
import math
import textwrap
from typing import Any

import torch

Namespace = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Base:
    """Memory of one dtype; `shape` is a tuple expression in N."""

    dtype: str
    shape: str


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter or buffer of the module."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    buffer: bool


@dataclasses.dataclass(frozen=True)
class Call:
    """One call: leading size, the seed of the values, whether the inputs share memory as the
    program says (else each has memory of its own, with the same strides), how many elements behind
    the start of its storage the memory lies, how many elements the storage itself is off its
    alignment, and the earlier call whose very tensors are passed again."""

    size: int
    seed: int
    shared: bool = True
    offset: int = 0
    misaligned: int = 0
    again: int | None = None


@dataclasses.dataclass(frozen=True)
class Program:
    bases: tuple[Base, ...]
    inputs: tuple[str, ...]  #: expressions over b0, b1, ..., N, and earlier inputs x0, x1, ...
    parameters: tuple[Parameter, ...]
    integer: int | None  #: value of an argument n; None: there is no such argument
    lines: tuple[str, ...]
    returns: tuple[str, ...]
    calls: tuple[Call, ...]
    dynamic: bool | None = None  #: what torch.compile is given; "direct" programs have static sizes
    dynamo: bool = True  #: through torch.compile; else an FX graph handed straight to the backend
    operations: tuple[str, ...] = ()  #: for the histogram

    @property
    def arguments(self) -> tuple[str, ...]:
        names = tuple(f"x{i}" for i in range(len(self.inputs)))
        return names if self.integer is None else (*names, "n")

    @property
    def writes(self) -> bool:
        """Whether anything is written in place."""
        return any(name.endswith("_") for name in self.operations)

    def source(self) -> str:
        """The module under test."""
        results = "".join(f"{each}, " for each in self.returns)
        body = [*self.lines, f"return ({results.rstrip()})"]
        return "class Module(torch.nn.Module):\n" + textwrap.indent(
            f"def forward(self, {', '.join(self.arguments)}):\n"
            + textwrap.indent("\n".join(body), "    "),
            "    ",
        )


def dtype_of(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


_POOL = 1 << 15


@functools.cache
def _pool(dtype: str, device: str) -> torch.Tensor:
    """Values to fill memory with: small, and exact in every floating dtype."""
    generator = torch.Generator().manual_seed(1)
    kind = dtype_of(dtype)
    if kind == torch.bool:
        values = torch.randint(0, 2, (_POOL,), generator=generator)
    elif not (kind.is_floating_point or kind.is_complex):
        values = torch.randint(0, 12, (_POOL,), generator=generator)
        values = values if kind == torch.uint8 else values - 4
    elif kind.is_complex:
        parts = torch.randint(-40, 41, (_POOL, 2), generator=generator) / 16
        return torch.view_as_complex(parts).to(kind).to(device)
    else:
        values = torch.randint(-40, 41, (_POOL,), generator=generator) / 16
    return values.to(kind).to(device)


ALIGNMENT = 64
"""Bytes: what torch's CPU allocator gives (c10/core/alignment.h)."""


def fill(
    dtype: str, shape: tuple[int, ...], call: Call, seed: int, device: str, aligned: bool = False
) -> torch.Tensor:
    """A new tensor on memory of its own, which lies as `call` says. `aligned`: as it says too, but
    for its address, which is a multiple of ALIGNMENT."""
    skipped = call.misaligned + call.offset
    count = skipped + math.prod(shape)
    start = (seed * 2654435761) % (_POOL - count)
    memory = _pool(dtype, device)[start : start + count].clone()
    unused = call.misaligned
    if aligned and skipped:
        unused = ALIGNMENT // memory.element_size() - call.offset
        memory = torch.cat([memory.new_zeros(unused), memory[call.misaligned :]])
    if unused:  # an exported tensor comes back with a storage that starts at its address
        memory = torch.from_dlpack(memory[unused:])
    return memory[call.offset :].view(shape)


def make_inputs(
    program: Program, call: Call, device: str, aligned: bool = False
) -> tuple[list[torch.Tensor], list[Any]]:
    """(the memory, the arguments) of one call."""
    memory: list[torch.Tensor] = []

    def bases(stream: int) -> Namespace:
        made: Namespace = {"N": call.size, "torch": torch}
        for index, base in enumerate(program.bases):
            shape = eval(base.shape, {"N": call.size})
            seed = call.seed * 1009 + stream * 101 + index
            made[f"b{index}"] = fill(base.dtype, shape, call, seed, device, aligned)
            memory.append(made[f"b{index}"])
        return made

    shared = bases(0)
    arguments: list[Any] = []
    for index, expression in enumerate(program.inputs):
        if call.shared:
            shared[f"x{index}"] = eval(expression, shared)
            arguments.append(shared[f"x{index}"])
        else:
            own = bases(index + 1)
            for earlier in range(index + 1):
                own[f"x{earlier}"] = eval(program.inputs[earlier], own)
            arguments.append(own[f"x{index}"])
    if program.integer is not None:
        arguments.append(program.integer)
    return memory, arguments


_FILES = 0


def make_module(program: Program, device: str, trains: bool = False) -> torch.nn.Module:
    """A new module with its parameters filled; always with the same values. `trains`: parameters
    need gradients."""
    global _FILES
    _FILES += 1
    name = f"<program {_FILES}>"
    source = program.source()
    # Dynamo and tracebacks look the source up.
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space: Namespace = {"torch": torch, "F": torch.nn.functional, "DEVICE": device}
    exec(compile(source, name, "exec"), space)
    linecache.cache.pop(f"<program {_FILES - 64}>", None)
    module = space["Module"]()
    for index, parameter in enumerate(program.parameters):
        value = fill(parameter.dtype, parameter.shape, Call(0, 0), 7 + index, device)
        if parameter.buffer:
            module.register_buffer(parameter.name, value)
        else:
            learns = trains and value.is_floating_point()
            module.register_parameter(parameter.name, torch.nn.Parameter(value, learns))
    assert isinstance(module, torch.nn.Module)
    return module
