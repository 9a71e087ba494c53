"""Integers that only take part in arithmetic, and what is computed of them, become device cells.

    def forward(self, x, step: int):   # step differs in each call
        return x * step + 1

What it matches: an integer among the graph's arguments that operators by element take as a number,
or that says which row of a tensor is read or written (`cache[step] = x`), or numbers that are
computed of it, and that nothing else depends on, no size and no stride. Each value of it would have
a program of its own, as sizes have. It becomes an argument of the body without dimensions, of 64
bits, that a call brings to the device like a tensor of the host (bring.py); what is computed of it
is computed in front.

Why it is equivalent: the operator computes in the type that its tensors have, of which a number
changes nothing, and a tensor without dimensions changes nothing, either; generated code converts
both to that type in the same way. Sums and products of integers are exact, and are computed in
front; a quotient is divided on the device, in fp32, as generated code does that has the integers. A
row is copied, whatever says which; that there is such a row is among Dynamo's guards.

What it refuses: floats that are computed in other ways; operators without an overload for a tensor
in that place, tensors of bool or without dimensions, or of integers beside a quotient, whose type
the number does change; rows that may be counted from the end; and torch's own kernels, which are
not generated.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from pygraph.torch_private.dispatch import OpOverload, schema
from pygraph.torch_private.fake_tensors import known_true
from pygraph.transform import reading
from pygraph.transform.draft import Draft, Part, portable

NAME = "count"

_ATEN = torch.ops.aten
#: Comparisons with a number, and the same with a tensor.
_COMPARED = {
    getattr(_ATEN, name).Scalar: getattr(_ATEN, name).Tensor
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_READS_ROW, _WRITES_ROW = _ATEN.select.int, _ATEN.select_scatter.default


def apply(draft: Draft) -> None:
    if not draft.generated:
        return
    for argument in reading.placeholders(draft.graph):
        if isinstance(reading.value(argument), torch.SymInt):
            numbers = _computed_from(argument)
            if _only_count(draft, argument, numbers):
                for number in numbers:
                    _bring(draft, number)


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


def _bring(draft: Draft, number: Any) -> None:
    users = [user for user in number.users if not reading.is_number(user)]
    if users:
        tensor = _quotient(draft, number) if _is_quotient(number) else _cell(draft, number)
        for user in users:
            draft.note(NAME, "a number that differs is brought to the device by each call", user)
            if user.target in (_READS_ROW, _WRITES_ROW):
                _choose_row(draft, user, tensor)
            else:
                user.target = _COMPARED.get(user.target, user.target)
                user.replace_input_with(number, tensor)


def _choose_row(draft: Draft, user: Any, cell: Any) -> None:
    """Reads or writes the row of a tensor whose number stands in a cell."""
    emit = _Emitter(draft, user)
    given, *source, dim, _ = user.args
    row = emit(_ATEN.view.default, cell, [1])
    if not source:
        read = emit(_ATEN.index_select.default, given, dim, row)
        made = emit(_ATEN.squeeze.dim, read, dim)
    else:
        indices = [*[None] * (dim % reading.value(given).dim()), row]
        written = emit(_ATEN.unsqueeze.default, source[0], dim)
        made = emit(_ATEN.index_put.default, given, indices, written)
    user.replace_all_uses_with(made)
    made.meta.update(user.meta)
    draft.graph.erase_node(user)


class _Emitter:
    """Puts operators in front of a node, for the same line of the program."""

    def __init__(self, draft: Draft, node: Any) -> None:
        self._graph, self._node = draft.graph, node

    def __call__(self, target: OpOverload, *args: Any, **kwargs: Any) -> Any:
        with self._graph.inserting_before(self._node):
            made = self._graph.call_function(target, args, kwargs)
        values = torch.fx.node.map_arg((args, kwargs), reading.value)
        with reading.value(self._node).fake_mode:
            made.meta["val"] = target(*values[0], **values[1])
        made.stack_trace = self._node.stack_trace
        return made


def _cell(draft: Draft, number: Any) -> Any:
    """An integer on the device, by way of a tensor on the host where it is computed."""
    given = number
    if number.op != "placeholder":
        given = next((each for each in number.users if each in draft.staged), None)
        if given is None:
            with draft.graph.inserting_after(number):
                given = draft.graph.call_function(
                    torch.ops.aten.scalar_tensor.default, (number,), {"dtype": torch.int64}
                )
            given.meta["val"] = _like(draft, torch.int64, torch.device("cpu"))
            draft.parts[given] = Part.FRONT
    if given not in draft.staged:
        like = _like(draft, torch.int64, draft.device)
        draft.staged[given] = draft.new_placeholder("device_cell", like)
    return draft.staged[given]


def _quotient(draft: Draft, number: Any) -> Any:
    """A quotient of integers, which generated code computes where it needs it: in fp32."""
    above, below = [
        _constant(draft, each) if type(each) is int else _cell(draft, each) for each in number.args
    ]
    with draft.graph.inserting_after(number):
        made = draft.graph.call_function(torch.ops.aten.div.Tensor, (above, below))
    made.meta["val"] = _like(draft, torch.float32, draft.device)
    return made


def _constant(draft: Draft, value: int) -> Any:
    with draft.graph.inserting_after(reading.placeholders(draft.graph)[-1]):
        made = draft.graph.call_function(
            torch.ops.aten.full.default,
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
    sample = next(each for node in draft.graph.nodes for each in reading.tensors(node))
    with sample.fake_mode:
        return torch.empty((), dtype=dtype, device=device)
