"""Views of an argument that a graph returns, made anew in every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pygraph.capture import tensors


def alias_maker(output: torch.Tensor, base: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """How to view an argument the way that `output` views the captured one, `base`. The caller
    keeps no reference to either: they are phantom."""
    delta = tensors.address_of(output) - tensors.address_of(base)
    shape, strides, dtype = tuple(output.shape), output.stride(), output.dtype
    if dtype == base.dtype and delta % base.element_size() == 0:
        offset = delta // base.element_size()
        return lambda tensor: tensor.as_strided(shape, strides, tensor.storage_offset() + offset)

    width = output.element_size()

    def view_of(tensor: torch.Tensor) -> torch.Tensor:
        start = tensor.storage_offset() * tensor.element_size() + delta
        if start % width:
            raise RuntimeError(
                f"an output views an argument as {dtype}, which needs an address that is a "
                f"multiple of {width} bytes; found a storage offset of {start}"
            )
        return torch.empty(0, dtype=dtype, device=tensor.device).set_(
            tensor.untyped_storage(), start // width, shape, strides
        )

    return view_of
