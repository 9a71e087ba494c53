"""Operators that read addresses from a table, called as others that are given them.

FSDP2 copies out of what it has gathered, and into what is to be scattered, with one kernel for all
of a block's tensors. Torch writes their addresses to pinned memory on the host, copies that to the
device, and the kernel reads it there (aten/src/ATen/native/cuda/TensorShape.cu, pack_vecs). Nothing
relocates such a table. The kernels of a copy of a list of tensors have addresses among their
parameters, and what is copied has the same bits whoever copies it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pygraph.operators.known import given, known
from pygraph.operators.table import Property
from pygraph.torch_private.dispatch import schema
from pygraph.torch_private.tensors import copy_each

_NAMESPACES = ("aten", "fsdp")


def without(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], Any] | None:
    """What does the same as a call of an operator, and reads no table; None: the call itself."""
    if "out" not in kwargs:
        return None
    if known(func, Property.SPLITS_BY_TABLE, _NAMESPACES):
        return functools.partial(_split, *args, **kwargs)
    if known(func, Property.JOINS_BY_TABLE, _NAMESPACES) and given(func, "dim", args, kwargs) == 0:
        returns = bool(schema(func).returns)
        return functools.partial(_join, *args, **kwargs, returns=returns)
    return None


def _split(
    source: torch.Tensor, sizes: Sequence[int], dim: int = 0, *, out: Sequence[torch.Tensor]
) -> None:
    """Row by row, for these are in one piece."""
    to, parts = list(out), list(source.split_with_sizes(sizes, dim))
    if dim % source.dim():
        to, parts = ([row for each in pieces for row in each.unbind(0)] for pieces in (to, parts))
    copy_each(to, parts)


def _join(
    tensors: Sequence[torch.Tensor],
    dim: int,
    num_chunks: int,
    *,
    out: torch.Tensor,
    returns: bool,
) -> torch.Tensor | None:
    """Of the first dimension: the chunks of each tensor with this number are a row, one behind the
    other; what a last chunk lacks is zeros."""
    to, source, start = [], [], 0
    for tensor in tensors:
        width = -(-tensor.shape[0] // num_chunks) * tensor.shape[1:].numel()
        pieces = tensor.reshape(-1).split(width)
        for number, row in enumerate(out.view(num_chunks, -1)):
            end = start
            if number < len(pieces):
                end += pieces[number].numel()
                to.append(row[start:end])
                source.append(pieces[number])
            if end < start + width:
                row[end : start + width].zero_()
        start += width
    copy_each(to, source)
    return out if returns else None
