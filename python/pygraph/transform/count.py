"""Integers that only take part in arithmetic, and what is computed of them, become device cells.

    def forward(self, x, step: int):   # step differs in each call
        return x * step + 1

What it matches: an integer among the graph's arguments that operators by element take as a number,
or that says which row of a tensor is read or written (`cache[step] = x`), or numbers that are
computed of it, and that nothing else depends on, no size and no stride. Each value of it would have
a program of its own, as sizes have. It becomes an argument of the body without dimensions, of 64
bits, that a call brings to the device like a tensor of the host (bring.py). Sums, differences and
products are computed there, of an argument within 32 bits, which Dynamo guards; what else is
computed of it is computed in front.

Why it is equivalent: the operator computes in the type that its tensors have, of which a number
changes nothing, and a tensor without dimensions changes nothing, either; generated code converts
both to that type in the same way. Integers of 64 bits are exact on either side; a quotient is
divided on the device, in fp32, as generated code does that has the integers. A row is copied,
whatever says which; that there is such a row is among Dynamo's guards.

What it refuses: floats that are computed in other ways; operators without an overload for a tensor
in that place, tensors of bool or without dimensions, or of integers beside a quotient, whose type
the number does change; rows that may be counted from the end; and torch's own kernels, which are
not generated.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch

from pygraph.torch_private.dispatch import OpOverload, schema
from pygraph.torch_private.fake_tensors import known_true
from pygraph.transform import reading
from pygraph.transform.draft import Draft, Part, portable

NAME = "count"

aten = torch.ops.aten
#: Comparisons with a number, and the same with a tensor.
_COMPARED = {
    getattr(aten, name).Scalar: getattr(aten, name).Tensor
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
#: What the device computes as the host does, as long as 64 bits hold it.
_EXACT: dict[Any, OpOverload] = {
    operator.add: aten.add.Tensor,
    operator.sub: aten.sub.Tensor,
    operator.mul: aten.mul.Tensor,
    operator.neg: aten.neg.default,
}
_SMALL = 1 << 31
"""What an argument is guarded to be within, so that what follows from it fits."""
_READS_ROW, _WRITES_ROW = aten.select.int, aten.select_scatter.default


def apply(draft: Draft) -> None:
    if not draft.generated:
        return
    for argument in reading.placeholders(draft.graph):
        if isinstance(reading.value(argument), torch.SymInt):
            numbers = _computed_from(argument)
            if _only_count(draft, argument, numbers):
                brought = _Brought(draft, argument)
                for number in numbers:
                    _bring(draft, number, brought)


def _computed_from(argument: Any) -> list[Any]:
    """An integer, and all numbers that follow from it, in their order."""
    found = [argument]
    for node in argument.graph.nodes:
        if reading.is_number(node) and any(each in found for each in node.all_input_nodes):
            found.append(node)
    return found


def _only_count(draft: Draft, argument: Any, numbers: Sequence[Any]) -> bool:
    """Whether nothing depends on these numbers but operators that take tensors in their places."""
    own = reading.symbols(argument)
    users = [(user, each) for each in numbers for user in each.users if user not in numbers]
    rows = [user for user, _ in users if user.target is _READS_ROW]  # whose offsets depend on it
    others = (node for node in draft.graph.nodes if node not in numbers and node not in rows)
    return (
        len(own) == 1
        and bool(users)
        and all(each is argument or portable(each) for each in numbers)
        and all(isinstance(reading.value(n), torch.SymInt) or _is_quotient(n) for _, n in users)
        and all(_takes_tensor(user, each) or _takes_row(user, each) for user, each in users)
        and not any(own & reading.symbols(node) for node in others)
    )


def _bring(draft: Draft, number: Any, brought: _Brought) -> None:
    users = [user for user in number.users if not reading.is_number(user)]
    if users:
        tensor = brought.tensor(number)
        for user in users:
            draft.note(NAME, "a number that differs is brought to the device by each call", user)
            if user.target in (_READS_ROW, _WRITES_ROW):
                _choose_row(draft, user, tensor)
            else:
                user.target = _COMPARED.get(user.target, user.target)
                user.replace_input_with(number, tensor)


def _choose_row(draft: Draft, user: Any, cell: Any) -> None:
    """Reads or writes the row of a tensor whose number stands in a cell."""
    emit = functools.partial(draft.emit, user)
    given, *source, dim, _ = user.args
    row = emit(aten.view.default, cell, [1])
    indices = [*[None] * (dim % reading.value(given).dim()), row]
    if not source:
        made = emit(aten.squeeze.dim, emit(aten.index.Tensor, given, indices), dim)
    else:
        written = emit(aten.unsqueeze.default, source[0], dim)
        made = emit(aten.index_put.default, given, indices, written)
    user.replace_all_uses_with(made)
    made.meta.update(user.meta)
    draft.graph.erase_node(user)


class _Brought:
    """What stands on the device for an integer and for numbers that follow from it."""

    def __init__(self, draft: Draft, argument: Any) -> None:
        self._draft, self._argument = draft, argument
        self._tensors: dict[Any, Any] = {}
        self._small: bool | None = None  # not asked yet, for that is a guard

    def tensor(self, number: Any) -> Any:
        if number not in self._tensors:
            self._tensors[number] = self._made(number)
        return self._tensors[number]

    def _made(self, number: Any) -> Any:
        emit = functools.partial(self._draft.emit, number)
        if _is_quotient(number):  # in fp32, as generated code does it where it needs one
            above, below = map(self._operand, number.args)
            return emit(aten.div.Tensor, above, below)
        if number is self._argument or not self._fits(number):
            return self._cell(number)
        return emit(_EXACT[number.target], *map(self._operand, number.args))

    def _operand(self, number: Any) -> Any:
        return _constant(self._draft, number) if type(number) is int else self.tensor(number)

    def _fits(self, number: Any) -> bool:
        """Whether the device can compute it: then nothing is computed in front."""
        if _range(number) is None:
            return False
        if self._small is None:
            self._small = _is_small(reading.value(self._argument))
        return self._small

    def _cell(self, number: Any) -> Any:
        """An integer on the device, by way of a tensor on the host where it is computed."""
        draft, given = self._draft, number
        if number is not self._argument:
            with draft.graph.inserting_after(number):
                given = draft.graph.call_function(
                    aten.scalar_tensor.default, (number,), {"dtype": torch.int64}
                )
            given.meta["val"] = _like(draft, torch.int64, torch.device("cpu"))
            draft.parts[given] = Part.FRONT
        like = _like(draft, torch.int64, draft.device)
        draft.staged[given] = draft.new_placeholder("device_cell", like)
        return draft.staged[given]


def _range(number: Any) -> tuple[int, int] | None:
    """Between which integers a number is, if its argument is small and 64 bits hold all that it is
    computed by, and the device computes that; else None."""
    if type(number) is int:
        return number, number
    if number.op == "placeholder":
        return -_SMALL, _SMALL
    if number.target not in _EXACT:
        return None
    ranges = [_range(each) for each in number.args]
    known = [each for each in ranges if each is not None]
    if len(known) < len(ranges):
        return None
    found = [number.target(*corner) for corner in itertools.product(*known)]
    least, most = min(found), max(found)
    return (least, most) if least >= -(1 << 63) and most < 1 << 63 else None


def _is_small(value: torch.SymInt) -> bool:
    """Whether it is, in this call and, by a guard, in all that are served. Where torch takes no
    more guards, as for a backward that is compiled late, it is not known to be."""
    ways = (lambda: value < _SMALL, lambda: value > -_SMALL)
    return all(known_true(way()) or (bool(way()) and known_true(way())) for way in ways)


def _constant(draft: Draft, value: int) -> Any:
    with draft.graph.inserting_after(reading.placeholders(draft.graph)[-1]):
        made = draft.graph.call_function(
            aten.full.default,
            ([], value),
            {"dtype": torch.int64, "device": draft.device, "pin_memory": False},
        )
    made.meta["val"] = _like(draft, torch.int64, draft.device)
    return made


def _is_quotient(number: Any) -> bool:
    return number.target is operator.truediv and all(
        type(each) is int
        or (isinstance(each, torch.fx.Node) and isinstance(reading.value(each), torch.SymInt))
        for each in number.args
    )


def _takes_tensor(user: Any, number: Any) -> bool:
    """Whether an operator takes a tensor in place of a number, and computes in the same type."""
    if not isinstance(user.target, OpOverload) or torch.Tag.pointwise not in user.target.tags:
        return False
    places = [index for index, each in enumerate(user.args) if each is number]
    if not places or number in user.kwargs.values():
        return False
    floating = _is_quotient(number)
    taken = user.target in _COMPARED or all(
        str(schema(user.target).arguments[index].type) == "Tensor" for index in places
    )
    tensors = map(reading.value, user.all_input_nodes)
    return taken and any(
        isinstance(made, torch.Tensor)
        and made.dim() > 0
        and made.dtype != torch.bool
        and (made.is_floating_point() or not floating)
        for made in tensors
    )


def _takes_row(user: Any, number: Any) -> bool:
    """Whether it is the number of a row of a tensor on the device, counted from the front."""
    if user.target not in (_READS_ROW, _WRITES_ROW) or user.args[-1] is not number:
        return False
    given, value = reading.value(user.args[0]), reading.value(number)
    written = [reading.value(each).dtype for each in user.args[1:-2]]
    return (
        sum(each is number for each in user.args) == 1
        and not user.kwargs
        and all(dtype == given.dtype for dtype in written)
        and reading.on_device(user.args[0])
        and isinstance(value, torch.SymInt)
        and known_true(value >= 0)
        and type(given.shape[user.args[-2]]) is int
    )


def _like(draft: Draft, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    with draft.fake_mode:
        return torch.empty((), dtype=dtype, device=device)
