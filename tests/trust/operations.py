"""The operations that random programs are made of, but for those that write (writes.py).

Each takes the builder, draws its operands, and offers a step; the builder keeps it if it works.
Left out is what has no single right answer: random numbers, shapes that depend on values, integer
division by a value, casts of floats to integers that cannot hold them, uninitialised memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from .builder import Builder

Operation = Callable[[Builder], bool]
OPERATIONS: list[Operation] = []

_UNARY = (
    "torch.neg({})",
    "torch.abs({})",
    "torch.relu({})",
    "torch.sin({})",
    "torch.exp({})",
    "torch.tanh({})",
    "torch.sigmoid({})",
    "torch.sqrt(torch.abs({}))",
    "torch.rsqrt(torch.abs({}) + 1)",
    "torch.log1p(torch.abs({}))",
    "torch.square({})",
    "torch.floor({})",
    "torch.sign({})",
    "torch.logical_not({})",
    "torch.clamp({}, -1, 2)",
    "F.gelu({})",
    "F.silu({})",
    "F.leaky_relu({})",
)
_BINARY = (
    "torch.add({}, {})",
    "torch.sub({}, {})",
    "torch.mul({}, {})",
    "torch.div({}, {})",
    "torch.maximum({}, {})",
    "torch.minimum({}, {})",
    "torch.eq({}, {})",
    "torch.lt({}, {})",
    "torch.ge({}, {})",
    "torch.logical_and({}, {})",
    "torch.logical_xor({}, {})",
    "torch.add({}, {}, alpha=2)",
)
_SCALAR = (
    "{} + {}",
    "{} * {}",
    "{1} - {0}",
    "{} / {}",
    "{} > {}",
    "torch.eq({}, {})",
    "torch.remainder({}, 3)",
    "torch.floor_divide({}, 2)",
)
_REDUCTIONS = (
    "torch.sum({}, {})",
    "torch.mean({}, {})",
    "torch.amax({}, {})",
    "torch.amin({}, {})",
    "torch.prod({}, {})",
    "torch.any({}, {})",
    "torch.all({}, {})",
    "torch.argmax({}, {})",
    "torch.var({}, {}, correction=0)",
    "torch.logsumexp({}, {})",
)
_SCANS = (
    "torch.softmax({}, {})",
    "torch.log_softmax({}, {})",
    "torch.cumsum({}, {})",
    "torch.flip({}, [{}])",
    "torch.sort({}, {}, stable=True)[0]",
    "torch.roll({}, 1, {})",
)
_VIEWS = (
    "{0}.view(-1)",
    "{0}.reshape(-1)",
    "{0}.flatten()",
    "{0}.view({0}.shape)",
    "{0}.transpose({1}, {2})",
    "{0}.transpose({1}, -1)",
    "{0}.select({1}, 0)",
    "{0}.select({1}, -1)",
    "{0}.narrow({1}, 1, 1)",
    "{0}[1:]",
    "{0}[:-1]",
    "{0}[::2]",
    "{0}[..., 1:]",
    "{0}[..., ::2]",
    "{0}.unsqueeze({1})",
    "{0}.squeeze({1})",
    "{0}.squeeze()",
    "{0}.unsqueeze(0).expand((2,) + {0}.shape)",
    "{0}.permute({3})",
    "{0}.diagonal()",
    "{0}.unfold({1}, 2, 1)",
    "{0}.detach()",
    "{0}.as_strided({0}.shape, {0}.stride())",
    "{0}.as_strided((2, 2), (1, 1))",
    "{0}.as_strided((2,), (1,), {0}.storage_offset() + 1)",
    "{0}.split(1, {1})[-1]",
    "{0}.chunk(2, {1})[0]",
    "{0}.unbind({1})[0]",
    "torch.broadcast_to({0}, (3,) + {0}.shape)",
)
_COPIES = (
    "{}.clone()",
    "{}.contiguous()",
    "torch.zeros_like({})",
    "torch.ones_like({})",
    "torch.full_like({}, 3)",
    "torch.tril({})",
    "torch.triu({}, 1)",
    "{}.repeat(2, 1)",
    "F.pad({}, (1, 0))",
)
_FLOATING = ("float32", "float64", "bfloat16", "float16")
_INTEGERS = ("int64", "int32", "uint8")
_SCALARS = ("2", "0.5", "-3", "1")


def operation(function: Operation) -> Operation:
    OPERATIONS.append(function)
    return function


def _short(template: str) -> str:
    """torch.add({}, {}) -> add, {}.view(-1) -> view, {} + {} -> as it is."""
    head = template.split("(")[0]
    if "(" in template:
        return head.split(".")[-1]
    return re.sub(r"[{}0-9]*[{}]", "", template.replace("[{2}]", "[index]")).strip()


def _from(builder: Builder, templates: tuple[str, ...], *more: str) -> bool:
    template = builder.one_of(templates)
    name = builder.pick()
    return name is not None and builder.add(_short(template), template.format(name, *more))


@operation
def unary(builder: Builder) -> bool:
    return _from(builder, _UNARY)


@operation
def copy(builder: Builder) -> bool:
    return _from(builder, _COPIES)


@operation
def scalar(builder: Builder) -> bool:
    choices = (*_SCALARS, "n") if builder.program.integer is not None else _SCALARS
    return _from(builder, _SCALAR, builder.one_of(choices))


def _along(builder: Builder, templates: tuple[str, ...]) -> bool:
    name = builder.pick(lambda t: t.dim() > 0)
    if name is None:
        return False
    template = builder.one_of(templates)
    return builder.add(_short(template), template.format(name, builder.dimension(name)))


@operation
def reduction(builder: Builder) -> bool:
    return _along(builder, _REDUCTIONS)


@operation
def scan(builder: Builder) -> bool:
    return _along(builder, _SCANS)


@operation
def whole_reduction(builder: Builder) -> bool:
    return _from(builder, ("torch.sum({})", "torch.mean({})", "torch.amax({})"))


@operation
def view(builder: Builder) -> bool:
    name = builder.pick()
    if name is None:
        return False
    template = builder.one_of(_VIEWS)
    dimensions = builder.dimension(name), builder.dimension(name)
    backwards = tuple(reversed(range(builder.value(name).dim())))
    return builder.add(_short(template), template.format(name, *dimensions, backwards))


OPERATIONS.append(view)  # twice as often as others


@operation
def binary(builder: Builder) -> bool:
    left, right = builder.pick(), builder.pick()
    template = builder.one_of(_BINARY)
    return builder.add(_short(template), template.format(left, right))


@operation
def like_shaped(builder: Builder) -> bool:
    """Two operands that fit: of equal shape, or one a row of it."""
    left = builder.pick()
    if left is None:
        return False
    shape = builder.value(left).shape
    right = builder.pick(lambda t: t.shape in (shape, shape[1:], shape[:0]))
    template = builder.one_of(_BINARY)
    return builder.add(_short(template), template.format(left, right))


def _same_kind(builder: Builder, name: str) -> str | None:
    kind = builder.value(name).dtype
    return builder.pick(lambda t: t.dtype == kind)


@operation
def matmul(builder: Builder) -> bool:
    left = builder.pick(lambda t: t.dim() > 0 and t.dtype not in (torch.bool, torch.uint8))
    if left is None:
        return False
    kind, width = builder.value(left).dtype, builder.value(left).shape[-1]
    right = builder.pick(lambda t: t.dtype == kind and t.dim() > 0 and width in t.shape[-2:])
    if right is None:
        return False
    if builder.add("matmul", f"torch.matmul({left}, {right})"):
        return True
    return builder.add("linear", f"F.linear({left}, {right})")


@operation
def joined(builder: Builder) -> bool:
    first = builder.pick()
    if first is None:
        return False
    second = _same_kind(builder, first)
    template = builder.one_of(
        (
            "torch.cat([{0}, {1}], {2})",
            "torch.stack([{0}, {1}], {2})",
            "torch.cat([{0}, {0}[:1], {1}])",
        )
    )
    dimension = builder.dimension(first)
    return builder.add(_short(template), template.format(first, second, dimension))


@operation
def where(builder: Builder) -> bool:
    name = builder.pick()
    if name is None:
        return False
    shape = builder.value(name).shape
    other = builder.pick(lambda t: t.shape == shape)
    return builder.add("where", f"torch.where({name} > 0, {other}, {builder.one_of(_SCALARS)})")


def indices_below(builder: Builder, size: str) -> str | None:
    """Indices below `size`, from an integer tensor of the program or made in place."""
    name = builder.pick(lambda t: t.dtype == torch.int64 and t.dim() == 1)
    made = f"torch.arange({size}, device=DEVICE) // 2"
    if name is None or builder.flag():
        return builder.one_of((made, "torch.tensor([0, 1, 0], device=DEVICE)"))
    return f"({name} % {size})"


@operation
def index(builder: Builder) -> bool:
    name = builder.pick(lambda t: t.dim() > 0)
    if name is None:
        return False
    dimension = builder.dimension(name)
    positions = indices_below(builder, f"{name}.shape[{dimension}]")
    template = builder.one_of(
        (
            "torch.index_select({0}, {1}, {2})",
            "{0}[{2}]" if dimension == 0 else "torch.index_select({0}, {1}, {2})",
            "torch.gather({0}, {1}, torch.zeros_like({0}, dtype=torch.int64))",
            "torch.gather({0}, {1}, {0}.to(torch.int64) % {0}.shape[{1}])"
            if not builder.value(name).dtype.is_floating_point
            else "torch.gather({0}, {1}, torch.argsort({0}, {1}, stable=True))",
        )
    )
    return builder.add(_short(template), template.format(name, dimension, positions))


@operation
def cast(builder: Builder) -> bool:
    name = builder.pick(lambda t: not t.dtype.is_complex)
    if name is None:
        return False
    source = builder.value(name).dtype
    target = builder.one_of((*_FLOATING, *_INTEGERS, "bool", "complex64"))
    if source.is_floating_point and target in _INTEGERS:
        low = "0" if target == "uint8" else "-99"
        return builder.add(
            "to", f"{name}.nan_to_num(0.0, 1.0, 0.0).clamp({low}, 99).to(torch.{target})"
        )
    return builder.add("to", f"{name}.to(torch.{target})")


@operation
def complex_parts(builder: Builder) -> bool:
    name = builder.pick(lambda t: t.dtype.is_complex)
    if name is None:
        return False
    template = builder.one_of(("torch.view_as_real({})", "torch.abs({})", "{}.real"))
    return builder.add(_short(template), template.format(name))


@operation
def made(builder: Builder) -> bool:
    name = builder.pick(lambda t: t.dim() > 0)
    # A tracer other than Dynamo would make one constant of these, which programs write to.
    constants = ("torch.tensor([1.0, -2.0], device=DEVICE)", "torch.tensor(3, device=DEVICE)")
    template = builder.one_of(
        (
            *(constants if builder.program.dynamo else ()),
            "torch.arange({0}.shape[0], device=DEVICE)",
            "torch.zeros({0}.shape, device=DEVICE)",
            "torch.ones((2, {0}.shape[-1]), dtype={0}.dtype, device=DEVICE)",
            "torch.eye({0}.shape[-1], device=DEVICE)",
            "{0}.new_zeros((2, 3))",
            "{0}.new_full((), 2)",
        )
    )
    return name is not None and builder.add(_short(template), template.format(name))
