"""Numbers that a program reads from a tensor stay in it, where tensors can do with them.

    for row, length in enumerate(lengths):      # lengths on the GPU
        mask[row, length:] = 0
    y = x * x.abs().amax().item()

What it matches: `item()` of a tensor, explicit or because a tensor is the bound of a slice, if all
that is done with the number is

- to write a number into a slice that it bounds: becomes a write under a mask, for all elements of
  the dimension are compared with the bound on the device. What a tensor is behind its last such
  write, generated code stores, as it would where the graph ended;
- to add it to a tensor of floating point, to subtract, multiply, divide by it, or compare with it:
  a tensor without dimensions takes its place;
- to do so with what one operation makes of it (`x * (1 - s.item())`), which is done in fp64, as
  Python does it;
- to return it as a float, which Dynamo does by way of a tensor on the host.

It works on Dynamo's graph, before there are graphs of ATen's operators: such a read would have made
several of it, with the host waiting in between. Dynamo ends its graph at a read unless it is asked
to keep it (frontends/compile/scalars.py).

Why it is equivalent: a slice clips its bounds and counts negative ones from the end, which the mask
does with comparisons. Arithmetic with a number computes in the type that the tensor's operator
computes in (fp32 for the shorter types), to which the number is converted once; here the same
conversion is an operator in front of the same arithmetic. A sum, a difference or a product in fp64
is what Python computes; of two in a row the device might make one, and round once. So is a quotient
by a constant, if Inductor does not see that it is one: on a GPU it would multiply by the reciprocal
(torch/_inductor/lowering.py, div_prim). A read has no gradient, and is detached.
What Dynamo would have ended a graph between is compiled together, though, and Inductor may fuse it:
a product in front of the read and a sum behind it may be rounded once where they were rounded
twice, as wherever it fuses two operators. And a value that Dynamo compiles in behind such an end
(the first; in torch 2.11 and 2.12 all of which other numbers are only computed) is a constant to
Inductor, by whose reciprocal it multiplies where it divides by the number here.

What it refuses: any other use, such as a branch, a size, a check, an integer as a result, or
arithmetic of integers alone, division by a read, for which Python has an error where it is 0, and
two operations in a row; slices with a step; written tensors, and numbers that the written type
does not have; arithmetic of tensors of integers. Torch's own kernels multiply with the reciprocal
of a number instead of dividing by it, and on the CPU they round a number to fp16 first; compiled
code takes an integer to fp16 at once, and divides otherwise by one that is compiled in: so there is
neither a division by an integer nor arithmetic of one with the shorter types, and with torch's own
kernels no division and no shorter type at all. Whether a number is rounded to a shorter type before
it is compared with one differs, too. A read with one such use stays as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from pygraph.capturing.tensors import share_storage
from pygraph.reporting import Applied
from pygraph.torch_private import symbols
from pygraph.transform import reading

NAME = "keep"

#: Both ways of writing an operator, and whether it divides.
_ARITHMETIC: dict[Any, Callable[[Any, Any], Any]] = {
    written: computes
    for computes, name in (
        (operator.add, "add"),
        (operator.sub, "sub"),
        (operator.mul, "mul"),
        (operator.truediv, "div"),
    )
    for written in (computes, getattr(torch, name), name)
}

_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
#: Torch 2.11 writes `__eq__` for `==`.
_ARITHMETIC |= {
    written: compares
    for compares in _COMPARISONS
    for name in (compares.__name__,)
    for written in (compares, getattr(torch, name), name, f"__{name}__")
}

#: What operators compute with in fp32.
_NARROW = (torch.float16, torch.bfloat16)


def apply(module: torch.fx.GraphModule, *, generated: bool) -> tuple[list[Applied], list[Any]]:
    """Changes Dynamo's graph; what was done, and the reads that remain. `generated`: code is
    generated for it; else torch's kernels run, one operator at a time."""
    found = reads(module)
    kept = _without_other_uses(found, generated)
    cells = {read: _cell(read) for read in kept}
    computed = dict.fromkeys(user for read in kept for user in read.users if _is_number(user))
    cells |= {number: _compute_number(number, cells) for number in computed}
    users = {user for each in cells for user in each.users if user not in computed}
    in_order = [node for node in module.graph.nodes if node in users]
    applied = [_change_of(user)(user, cells) for user in in_order]
    for each in (*computed, *kept):
        module.graph.erase_node(each)
    if kept:
        module.recompile()
    return list(dict.fromkeys(applied)), [read for read in found if read not in kept]


def reads(module: torch.fx.GraphModule) -> list[Any]:
    """The nodes of Dynamo's graph that read a number from a tensor."""
    return [node for node in module.graph.nodes if _is_read(node)]


def _change_of(user: Any) -> Callable[[Any, Mapping[Any, Any]], Applied]:
    if _is_result(user):
        return _return
    return _write if user.target is operator.setitem else _compute


def _cell(read: Any) -> Any:
    """What the number is at that place, whatever is written to its tensor behind it."""
    emit = _Emitter(read)
    return emit("clone", emit("reshape", emit("detach", read.args[0]), ()))


def _is_read(node: Any) -> bool:
    return (
        node.op == "call_method"
        and node.target == "item"
        and symbols.is_unbacked(_value(node))
        and isinstance(_value(node.args[0]), torch.Tensor)
    )


def _without_other_uses(found: Sequence[Any], generated: bool) -> list[Any]:
    """The reads whose users all can be replaced: of a slice, both bounds."""
    kept = list(found)
    while True:
        possible = [
            read
            for read in kept
            if all(
                _is_write(user, kept)
                or _takes_number(user, read, generated)
                or (
                    _is_number_of(user, kept)
                    and all(_takes_number(each, user, generated) for each in user.users)
                )
                for user in read.users
            )
        ]
        if len(possible) == len(kept):
            return kept
        kept = possible


def _takes_number(user: Any, number: Any, generated: bool) -> bool:
    """Whether it computes with a tensor and the number, or returns that."""
    return _is_arithmetic(user, number, generated) or _is_result(user)


# ------------------------------------------------------------------------------ writes


def _is_write(user: Any, kept: Sequence[Any]) -> bool:
    """Whether it writes a number into a slice of a tensor with bounds among these reads."""
    if user.op != "call_function" or user.target is not operator.setitem or user.users:
        return False
    base, index, value = user.args
    tensor = _value(base)
    entries = _entries(index)
    if not isinstance(tensor, torch.Tensor) or not _holds(tensor.dtype, value):
        return False
    if len(entries) > tensor.dim() or not all(map(_is_basic, entries)):
        return False
    bounded = [each for each in entries if _reads_in(each)]
    if len(bounded) != 1 or bounded[0].step not in (None, 1):
        return False
    place = entries.index(bounded[0])
    return type(tensor.shape[place]) is int and all(
        read in kept and _is_bound(read, tensor) for read in _reads_in(bounded[0])
    )


def _write(user: Any, cells: Mapping[Any, Any]) -> Applied:
    base, index, value = user.args
    entries = _entries(index)
    place, bounded = next((i, each) for i, each in enumerate(entries) if _reads_in(each))
    whole = tuple(slice(None) if each is bounded else each for each in entries)
    size = _value(base).shape[place]
    emit = _Emitter(user)
    view = emit(operator.getitem, base, whole)
    positions = emit(torch.arange, size, device=_value(base).device)
    masks = [
        emit(compare, positions, _counted_from_front(emit, cells.get(bound, bound), size))
        for compare, bound in ((operator.ge, bounded.start), (operator.lt, bounded.stop))
        if bound is not None
    ]
    mask = masks[0] if len(masks) == 1 else emit(operator.and_, *masks)
    behind = _value(view).dim() - sum(isinstance(each, slice) for each in entries[:place]) - 1
    aligned = emit("reshape", mask, (size, *(1,) * behind))
    emit("masked_fill_", view, aligned, value, made=_value(view))
    _store(user, emit)
    user.graph.erase_node(user)
    return Applied(
        NAME, "a slice whose bound the device knows is written under a mask", emit.source
    )


def _store(write: Any, emit: _Emitter) -> None:
    """Has Inductor store what is written, behind the last write: it does so for `as_strided`
    (lowering.py). Else every kernel that reads the tensor would compute the last of the writes
    again, and grow by that beyond what Inductor computes twice instead of storing it: in front of
    a softmax, all that goes into it in fp32."""
    written = write.args[0]
    readers = [each for each in written.users if write < each and each.op != "output"]
    last = not any(each.target is operator.setitem for each in readers)
    if not (readers and last and _is_whole(written)):
        return
    tensor = _value(written)
    stored = emit(torch.as_strided, written, tuple(tensor.shape), tensor.stride())
    for each in readers:
        each.replace_input_with(written, stored)


def _is_whole(node: Any) -> bool:
    """Whether a tensor is all of a memory that the graph makes, of sizes that are known. An
    argument may begin elsewhere in its memory in another call, which Dynamo does not guard. And
    one without gradients, for those of `as_strided` cost more than it saves."""
    tensor = _value(node)
    return (
        not tensor.requires_grad
        and all(type(size) is int for size in tensor.shape)
        and tensor.is_contiguous()
        and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
        and not any(
            share_storage(argument, tensor)
            for argument in map(_value, reading.placeholders(node.graph))
            if isinstance(argument, torch.Tensor)
        )
    )


def _counted_from_front(emit: _Emitter, bound: Any, size: int) -> Any:
    """A bound of a slice, as a number or a tensor without dimensions. What is still negative, or
    above the size, needs no clipping: it is compared with positions only."""
    if type(bound) is int:
        return bound + size if bound < 0 else bound
    negative, other = emit(operator.lt, bound, 0), emit(operator.add, bound, size)
    return emit(torch.where, negative, other, bound)


def _entries(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _is_basic(entry: Any) -> bool:
    """Whether an index only chooses a position, or a range."""
    if not isinstance(entry, slice):
        return type(entry) is int
    bounds = (entry.start, entry.stop, entry.step)
    return all(each is None or type(each) is int or _is_node(each) for each in bounds)


def _reads_in(entry: Any) -> list[Any]:
    bounds = (entry.start, entry.stop, entry.step) if isinstance(entry, slice) else (entry,)
    return list(filter(_is_node, bounds))


def _is_bound(read: Any, written: torch.Tensor) -> bool:
    given = _tensor_of(read)
    return not given.is_floating_point() and _reaches(given, written)


def _holds(dtype: torch.dtype, value: Any) -> bool:
    """Whether a number is of a kind that this type has."""
    if type(value) is bool:
        return not dtype.is_complex
    if type(value) is int:
        return dtype != torch.bool and not dtype.is_complex
    return type(value) is float and dtype.is_floating_point


# ------------------------------------------------------------------------------ arithmetic


def _is_number(user: Any) -> bool:
    return isinstance(_value(user), torch.SymFloat) and not _is_read(user)


def _is_number_of(user: Any, kept: Sequence[Any]) -> bool:
    """Whether it is a number that one operation makes of these reads and constants, in fp64."""
    if not _is_number(user):
        return False
    reads = [each for each in user.args if _is_node(each)]
    if not all(each in kept and _tensor_of(each).is_floating_point() for each in reads):
        return False
    if not all(each in reads or _is_double(each) for each in user.args):
        return False
    if len({_tensor_of(each).device for each in reads}) > 1:
        return False
    if user.target is operator.truediv:
        return not _is_node(user.args[1])  # 0 is an error while tracing
    return user.target in (operator.add, operator.sub, operator.mul, operator.neg)


def _is_double(value: Any) -> bool:
    """Whether it is a constant that fp64 has."""
    return type(value) is float or (type(value) is int and abs(value) <= 1 << 53)


def _compute_number(number: Any, cells: Mapping[Any, Any]) -> Any:
    emit = _Emitter(number)
    given = [
        emit("to", cells[each], torch.float64) if each in cells else float(each)
        for each in number.args
    ]
    if number.target is operator.truediv:
        # The divisor, or NaN for NaN, but no constant.
        given[1] = emit("clamp", given[0], given[1], given[1])
    return emit(number.target, *given)


def _is_arithmetic(user: Any, read: Any, generated: bool) -> bool:
    """Whether it computes with a tensor of floating point and the number."""
    computes = _ARITHMETIC.get(user.target) if user.op.startswith("call_") else None
    if computes is None or len(user.args) != 2 or user.kwargs:
        return False
    others = [each for each in user.args if each is not read]
    tensor, given = _value(others[0]) if len(others) == 1 else None, _tensor_of(read)
    if not isinstance(tensor, torch.Tensor) or not _reaches(given, tensor):
        return False
    if given.dtype == torch.bool:
        return False
    if tensor.dtype not in (*_NARROW, torch.float32, torch.float64):
        return False
    if computes in _COMPARISONS:
        return tensor.dtype not in _NARROW
    if not given.is_floating_point():
        return tensor.dtype not in _NARROW and computes is not operator.truediv
    return generated or (tensor.dtype not in _NARROW and computes is not operator.truediv)


def _compute(user: Any, cells: Mapping[Any, Any]) -> Applied:
    computes = _ARITHMETIC[user.target]
    emit = _Emitter(user)
    tensor = next(_value(each) for each in user.args if each not in cells)
    narrow = tensor.dtype in _NARROW
    computed = torch.float32 if narrow else tensor.dtype
    given = [emit("to", cells.get(each, each), computed) for each in user.args]
    made = emit(computes, *given)
    if narrow:
        made = emit("to", made, tensor.dtype)
    user.replace_all_uses_with(made)
    user.graph.erase_node(user)
    return Applied(NAME, "a number that the device knows is computed with there", emit.source)


# ------------------------------------------------------------------------------ results


def _is_result(user: Any) -> bool:
    """Whether it makes the tensor on the host that stands for a float among the results."""
    return bool(
        user.target is torch.scalar_tensor
        and len(user.args) == 1
        and user.kwargs == {"dtype": torch.float64}
        and all(each.op == "output" for each in user.users)
    )


def _return(user: Any, cells: Mapping[Any, Any]) -> Applied:
    emit = _Emitter(user)
    user.replace_all_uses_with(emit("to", cells[user.args[0]], "cpu", torch.float64))
    user.graph.erase_node(user)
    return Applied(NAME, "a number is a result that the host reads at the end", emit.source)


# ------------------------------------------------------------------------------ nodes


class _Emitter:
    """Puts operators in front of a node, for the same line of the program."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self.source = reading.source(node)

    def __call__(self, target: Any, *args: Any, made: Any = None, **kwargs: Any) -> Any:
        """`made`: what it returns, if it is not to be run on tensors without memory."""
        op = "call_method" if isinstance(target, str) else "call_function"
        with self._node.graph.inserting_before(self._node):
            node = self._node.graph.create_node(op, target, args, kwargs)
        node.stack_trace = self._node.stack_trace
        if made is None:
            values = torch.fx.node.map_arg((args, kwargs), _value)
            with _fake_mode(self._node):
                made = _run(target, *values)
        node.meta["example_value"] = made
        return node


def _run(target: Any, args: Any, kwargs: Any) -> Any:
    if isinstance(target, str):
        return getattr(args[0], target)(*args[1:], **kwargs)
    return target(*args, **kwargs)


def _fake_mode(user: Any) -> AbstractContextManager[Any]:
    """In which operators without tensors make one without memory, too."""
    tensors = (_value(each) for each in user.all_input_nodes)
    modes = (each.fake_mode for each in tensors if isinstance(each, torch.Tensor))
    return next(modes, nullcontext())


def _is_node(value: Any) -> bool:
    return isinstance(value, torch.fx.Node)


def _value(node: Any) -> Any:
    """What tracing has left of what a node of Dynamo's graph makes."""
    return node.meta.get("example_value") if _is_node(node) else node


def _tensor_of(number: Any) -> Any:
    """What a number is read from, or one of those that it is computed of."""
    if _is_number(number):
        number = next(filter(_is_node, number.args))
    return _value(number.args[0])


def _reaches(given: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a tensor of one element can take part where the other is."""
    return given.device == other.device or given.device.type == "cpu"
