"""Layouts: what a tensor is but for its address, and tensors made from the two.

Everything that runs on tensors of the twin runs below the modes and hooks that happen to be active
(`below`): a replay must compute the same whoever triggers it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torch

from pygraph.torch_private import dispatch, tensors

CPU = torch.device("cpu")


class TensorLayout(NamedTuple):
    """Sizes and strides in elements. `conj` and `neg` are torch's lazy conjugation and negation."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    conj: bool
    neg: bool

    def nbytes(self) -> int:
        """From the first element to behind the last; 0 when there is none."""
        last = 0
        for size, stride in zip(self.size, self.stride, strict=True):
            if size == 0:
                return 0
            last += (size - 1) * stride
        return (last + 1) * self.dtype.itemsize


def layout_of(tensor: torch.Tensor) -> TensorLayout:
    dtype = tensor.dtype
    conj = dtype.is_complex and tensor.is_conj()
    return TensorLayout(dtype, tuple(tensor.shape), tensor.stride(), conj, tensor.is_neg())


def at_address(address: int, layout: TensorLayout, nbytes: int, front: int = 0) -> torch.Tensor:
    """A tensor on memory at `address`, which the caller keeps valid. Its storage begins `front`
    elements before that."""
    before = front * layout.dtype.itemsize
    storage = tensors.storage_at(address - before, CPU, before + nbytes)
    tensor = torch.empty(0, dtype=layout.dtype, device=CPU).set_(
        storage, front, layout.size, layout.stride
    )
    return _with_bits(tensor, layout)


def empty(layout: TensorLayout) -> torch.Tensor:
    tensor = torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype, device=CPU)
    return _with_bits(tensor, layout)


def zeros(layout: TensorLayout) -> torch.Tensor:
    memory = torch.zeros(layout.nbytes(), dtype=torch.uint8, device=CPU)
    tensor = torch.empty(0, dtype=layout.dtype, device=CPU).set_(
        memory.untyped_storage(), 0, layout.size, layout.stride
    )
    return _with_bits(tensor, layout)


def _with_bits(tensor: torch.Tensor, layout: TensorLayout) -> torch.Tensor:
    if layout.conj:
        tensor = tensors.conjugated(tensor)
    return tensors.negated(tensor) if layout.neg else tensor


@contextlib.contextmanager
def below() -> Iterator[None]:
    """Straight to the operators' CPU kernels: no dispatch or function modes, no autograd, no
    autocast."""
    with (
        dispatch.DisableDispatch(),
        dispatch.DisableFunction(),
        dispatch.DisableAutocast(),
        torch.no_grad(),
    ):
        yield
