"""Programs of branches: chains of operations from common values, which are joined behind them.

A program whose operations each need the one before has one order. In these, most orders are right,
and what has to wait for what is in the bytes that branches touch: some write columns of one buffer,
some a value that others read, some read views of one value with other strides, and some draw random
numbers, which is done in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from .builder import Builder
from .operations import OPERATIONS
from .programs import Program
from .strategies import begin, end
from .writes import WRITES, write_scalar

_SIDES = (2, 3, 4, 5)
_COLUMNS = 8
_VIEWS = (
    "{0}",
    "{0}",
    "{0}",
    "{0}.transpose(0, -1)",
    "{0}[..., ::2]",
    "{0}[..., 1::2]",
    "{0}[1:]",
    "{0}.view(-1)[::3]",
    "{0}.unsqueeze(0).expand((2,) + {0}.shape)",
)
_BUFFERS = (
    "torch.zeros({0}.shape[:1] + (8,), device=DEVICE)",
    "torch.ones((8,) + {0}.shape[:1], device=DEVICE).t()",
    "{0}.clone()",
    "{0}",
)
#: Columns and rows of a buffer, from {1} up to {2}; of some pairs every third one.
_PARTS = (
    "{0}[..., {1}:{2}]",
    "{0}[..., {1}:{2}]",
    "{0}[{1}:{2}]",
    "{0}[..., {1}::3]",
    "{0}.transpose(0, -1)[{1}:{2}]",
)
_INDEXED = (
    "index_copy_(-1, {index}, torch.zeros_like({buffer}[..., :2]) + {value})",
    "index_add_(-1, {index}, torch.zeros_like({buffer}[..., :2]) + {value})",
    "index_fill_(-1, {index}, {value})",
)
_DRAWN = (
    "{0} * torch.rand_like({0})",
    "{0} + torch.randn_like({0})",
    "{0} * torch.bernoulli(torch.full_like({0}, 0.5))",
)
#: The last one can be had of whatever fits nowhere.
_JOINS = (
    "torch.cat([{list}], {dimension})",
    "torch.cat([{list}], {dimension})",
    "torch.stack([{list}], {dimension})",
    "{sum}",
    "torch.cat([{flat}])",
)


@dataclasses.dataclass
class _Branch:
    """`values`: those of others that it reads, then its own; `left`: steps to come."""

    values: list[str]
    given: int
    left: int

    @property
    def own(self) -> list[str]:
        return self.values[self.given :]


@st.composite
def programs(draw: Any, dynamo_share: int = 10, maximum_forks: int = 3) -> Program:
    """A random program of branches; about `dynamo_share` percent go through Dynamo. One in three
    writes nothing."""
    builder = begin(draw, dynamo_share)
    torch.manual_seed(0)  # steps draw random numbers while they are tried
    writes = builder.integer(0, 2) > 0
    for _ in range(builder.integer(0, 2)):
        builder.one_of(OPERATIONS)(builder)
    for _ in range(builder.integer(1, maximum_forks)):
        _fork(builder, writes)
    return end(draw, builder)


def _fork(builder: Builder, writes: bool) -> None:
    """Several branches, a step of one after a step of another, and a join of what they come to."""
    common = [_common(builder) for _ in range(builder.integer(1, 2))]
    buffer = _buffer(builder, common[0]) if writes and builder.flag() else None
    outside = builder.names
    branches = [_begin(builder, common) for _ in range(builder.one_of(_SIDES))]
    while going := [branch for branch in branches if branch.left]:
        branch = builder.one_of(going)
        branch.left -= 1
        builder.names = branch.values
        _step(builder, writes)
        if buffer is not None and not branch.left and builder.integer(0, 2):
            _write_part(builder, buffer)
    if writes and not builder.integer(0, 3):  # behind all that read it
        builder.names = common[:1]
        write_scalar(builder)
    builder.names = [*outside, *(name for branch in branches for name in branch.own)]
    ends = [branch.values[-1] for branch in branches if branch.own]
    if buffer is not None:
        ends.append(buffer)
    if len(ends) > 1:
        _join(builder, ends)


def _common(builder: Builder) -> str:
    """A value, one with elements and dimensions if there is any."""
    name = builder.pick(lambda t: t.dim() > 0 and t.is_floating_point() and t.numel() > 1)
    return name or builder.pick(lambda t: t.dim() > 0) or builder.names[0]


def _buffer(builder: Builder, common: str) -> str | None:
    """What branches write parts of: new memory, or a value that there is."""
    template = builder.one_of(_BUFFERS)
    if template == "{0}":
        return common
    made = builder.add("buffer", template.format(common))
    return builder.names[-1] if made else None


def _begin(builder: Builder, common: Sequence[str]) -> _Branch:
    """A branch that begins with a view of a common value, or with the value itself."""
    values = [builder.one_of(common)]
    builder.names = values
    view = builder.one_of(_VIEWS).format(values[0])
    if view != values[0] and builder.add("view", view):
        values[:] = values[1:]
    if builder.flag():
        values.insert(0, builder.one_of(common))
    return _Branch(values, len(values), builder.integer(1, 4))


def _step(builder: Builder, writes: bool) -> None:
    """One more value of the branch whose values are `builder.names`, or a write to one of them."""
    kind = builder.integer(0, 9)
    if kind == 9 and writes:
        builder.one_of(WRITES)(builder)
    elif kind == 8:
        _draw_numbers(builder)
    else:  # most are no operation of these values
        any(builder.one_of(OPERATIONS)(builder) for _ in range(3))


def _draw_numbers(builder: Builder) -> bool:
    name = builder.pick(lambda t: t.is_floating_point())
    # Of a program that is trained, which writes nothing, torch's default_partition() refuses a
    # dropout whose results nobody reads.
    dropout = any(each.endswith("_") for each in builder.operations)
    template = builder.one_of(_DRAWN + ("F.dropout({0}, 0.5, True)",) * dropout)
    return name is not None and builder.add("random", template.format(name))


def _write_part(builder: Builder, buffer: str) -> bool:
    """Writes what the branch has come to into a part of the buffer, which that of another branch
    may overlap."""
    if builder.value(buffer).dim() == 0:
        return False
    first = builder.integer(0, _COLUMNS - 2)
    if not builder.integer(0, 3):
        second = builder.integer(first + 1, _COLUMNS - 1)
        index = f"torch.tensor([{first}, {second}], device=DEVICE)"
        value = _fitting(builder, ())
        call = builder.one_of(_INDEXED).format(index=index, buffer=buffer, value=value)
        return builder.write(call.split("(")[0], buffer, call, [value])
    part = builder.one_of(_PARTS).format(buffer, first, builder.integer(first + 1, _COLUMNS))
    if not builder.works(part):
        return False
    value = _fitting(builder, builder.value(part).shape)
    call = builder.one_of(("copy_", "copy_", "add_", "mul_"))
    return builder.write(call, part, f"{call}({value})", [value])


def _fitting(builder: Builder, shape: Sequence[int]) -> str:
    """A value of the branch of this shape, or of a row of it; else the sum of its last one."""
    last = builder.names[-1]
    fits = builder.pick(lambda t: t.dim() > 0 and t.shape in (shape, shape[1:]))
    if fits is not None:
        return fits
    return builder.names[-1] if builder.add("sum", f"torch.sum({last})") else last


def _join(builder: Builder, ends: list[str]) -> None:
    """One value of all that branches come to, or of two of them if it cannot be had otherwise."""
    for template in (builder.one_of(_JOINS), _JOINS[-1]):
        expression = template.format(
            list=", ".join(ends),
            flat=", ".join(f"{name}.reshape(-1)" for name in ends),
            sum=" + ".join(ends),
            dimension=builder.dimension(ends[0]),
        )
        operation = "sum of branches" if template == "{sum}" else template.split("(")[0][6:]
        if builder.add(operation, expression):
            return
