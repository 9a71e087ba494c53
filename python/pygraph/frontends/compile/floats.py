"""Python floats that a program only computes with stay open.

    def forward(self, x, sigma: float):   # sigma differs in each call
        return x * (1 - sigma**2)

torch has a pass that makes a tensor of such a float (torch/fx/passes/_tensorify_python_scalars.py).
Up to torch 2.12 it notes by the whole number that an operator takes, `1 - sigma**2`, what it has
made tensors of, and looks floats up by themselves. So a float that no operator takes as it is gets
compiled in: a program for each value, and none at all after eight. From torch 2.13 on it notes the
floats that the number follows from.

Here an operator is put into the graph that takes the float as it is. The pass notes it, and drops
it at its end, for nothing needs it. All else is torch's own doing, as in later versions. A float
whose value something has asked for while tracing is a constant by then, and is left to torch.

Only where tensors compute what Python does: sums, differences and products, quotients by a
constant, and powers of 2, 3 and so on. (Python's `s // 0.1` is rounded otherwise than a tensor's,
and what Python raises an error for, as for 1 / 0, is an infinity or NaN there. A power that
overflows is an infinity, too.)
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Iterator
from typing import Any

import torch

from pygraph.torch_private import aot, symbols, versions
from pygraph.torch_private.replacing import surround
from pygraph.transform import reading

_active = threading.local()


@contextlib.contextmanager
def kept_open() -> Iterator[None]:
    """While on, what this thread compiles has no float compiled in for that reason."""
    place = None if versions.notes_floats() else aot.makes_tensors_of_floats()
    if place is not None:
        surround(place, _make_tensors)
    previous = getattr(_active, "on", False)
    _active.on = True
    try:
        yield
    finally:
        _active.on = previous


def _make_tensors(original: Any, module: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    if getattr(_active, "on", False):
        for node in list(module.graph.nodes):
            if _is_float(node) and _is_computed_alike(node):
                _take(node)
    return original(module, *args, **kwargs)


def _is_float(node: Any) -> bool:
    """Whether it has a Python float from the tensor that torch brings it in, and none that is
    known."""
    value = reading.value(node)
    return (
        node.target is torch.ops.aten._local_scalar_dense.default
        and isinstance(value, torch.SymFloat)
        and bool(symbols.of(value))
    )


def _is_computed_alike(number: Any) -> bool:
    """Whether all numbers that follow from it are what they would be as tensors."""
    return all(
        _computes_alike(user) and _is_computed_alike(user)
        for user in number.users
        if reading.is_number(user)
    )


def _computes_alike(node: Any) -> bool:
    by = node.args[-1]
    if node.target is operator.pow:
        return isinstance(by, (int, float)) and by > 1 and by == int(by)
    if node.target is operator.truediv:
        return isinstance(by, (int, float)) and by != 0
    return node.target in (operator.add, operator.sub, operator.mul, operator.neg)


def _take(number: Any) -> None:
    """Has an operator take the number, which comes in a tensor among the graph's arguments."""
    (tensor,) = number.args
    with number.graph.inserting_after(number):
        taken = number.graph.call_function(torch.ops.aten.mul.Tensor, (tensor, number))
    taken.meta["val"] = reading.value(tensor)
