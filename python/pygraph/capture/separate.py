"""Operators that compute several results one after the other, called for one at a time.

A convolution's backward frees the workspace of one gradient and allocates the next gradient in its
place: 2 MiB in a cell of 8 that stays until the graph's end, and a copy to get them out
(outputs.py). Called once per gradient, each has memory of its own, and a graph can be cut between
them. The kernels are the same: torch calls cuDNN once per gradient either way
(aten/src/ATen/native/cudnn/ConvShared.cpp), and the bias has its gradient from a sum that is made
for itself (aten/src/ATen/native/Convolution.cpp).

What cuDNN wants in another layout is converted first, for both gradients at once; such a call is
left as it is, as are one-dimensional ones, which torch views as two-dimensional inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pygraph.operators.table import Property, operators
from pygraph.torch_private import convolution

_SEPARABLE = frozenset(
    getattr(torch.ops.aten, each).default for each in operators(Property.SEPARABLE)
)
_FEWEST_DIMENSIONS = 4
_GEOMETRY = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")


def calls_of(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The arguments of calls that compute one result each, and together what `operator` computes of
    `args`; none if it is to be called as it is. No tensor's memory is looked at."""
    if operator not in _SEPARABLE or kwargs:
        return []
    *others, wanted = args
    if sum(wanted) < 2 or not _same_apart(others):
        return []
    places = range(len(wanted))
    return [(*others, [at == place for at in places]) for place in places if wanted[place]]


def joined(results: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """The results of such calls as one: at each position what one of them returned, or None."""
    return tuple(
        next((each for each in found if each is not None), None)
        for found in zip(*results, strict=True)
    )


def _same_apart(args: Sequence[Any]) -> bool:
    """Whether a convolution's gradients are computed alike when each is asked for alone."""
    grad, x, weight, bias_sizes, *geometry = args
    if x.dim() < _FEWEST_DIMENSIONS:
        return False
    named = dict(zip(_GEOMETRY, geometry, strict=True))
    backend = convolution.select_backend(x, weight, bias=None, bias_sizes=bias_sizes, **named)
    if backend not in convolution.CUDNN:
        return False
    layout = convolution.memory_format(x, weight, backend)
    return all(each.is_contiguous(memory_format=layout) for each in (grad, x, weight))
