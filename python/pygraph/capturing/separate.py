"""Operators that compute several results one after the other, called for one at a time.

A convolution's backward frees the workspace of one gradient and allocates the next gradient in its
place: 2 MiB in a cell of 8 that stays until the graph's end, and a copy to get them out
(outputs.py). Called once per gradient, each has memory of its own, and a graph can be cut between
them. The kernels are the same either way, of a call that the table's condition holds for; others
are left as they are (operators/table.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pygraph.operators.known import known
from pygraph.operators.table import SEPARABLE_IF, Property, SeparableIf
from pygraph.torch_private import convolution

_GEOMETRY = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")


def calls_of(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The arguments of calls that compute one result each, and together what `operator` computes of
    `args`; none if it is to be called as it is. No tensor's memory is looked at."""
    if kwargs or not known(operator, Property.SEPARABLE):
        return []
    *others, wanted = args
    condition = SEPARABLE_IF[operator.overloadpacket.__name__]
    if sum(wanted) < 2 or not _same_apart(others, condition):
        return []
    places = range(len(wanted))
    return [(*others, [at == place for at in places]) for place in places if wanted[place]]


def joined(results: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """The results of such calls as one: at each position what one of them returned, or None."""
    return tuple(
        next((each for each in found if each is not None), None)
        for found in zip(*results, strict=True)
    )


def _same_apart(args: Sequence[Any], condition: SeparableIf) -> bool:
    """Whether a convolution's gradients are computed alike when each is asked for alone."""
    grad, x, weight, bias_sizes, *geometry = args
    if x.dim() < condition.fewest_dimensions:
        return False
    named = dict(zip(_GEOMETRY, geometry, strict=True))
    backend = convolution.select_backend(x, weight, bias=None, bias_sizes=bias_sizes, **named)
    if backend.name not in condition.libraries:
        return False
    layout = convolution.memory_format(x, weight, backend)
    return all(each.is_contiguous(memory_format=layout) for each in (grad, x, weight))
