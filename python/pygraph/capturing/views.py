"""Views of an argument that a graph returns, made anew in every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pygraph import _engine
from pygraph.capturing import tensors
from pygraph.capturing.device import CaptureFailed, is_strided
from pygraph.capturing.record import Capture


def argument_of(output: torch.Tensor, capture: Capture) -> int | None:
    """The argument of `capture` that its `output` is, or shares memory with."""
    itself = capture.first_input.get(id(output))
    if itself is not None:
        return itself
    if not output.numel():
        for index, argument in enumerate(capture.inputs):
            if isinstance(argument, torch.Tensor) and tensors.share_storage(argument, output):
                return index
        return None
    return capture.placed.find(output.data_ptr())


def require_same_place(position: int, argument: int, a: Capture, b: Capture) -> None:
    """Raises CaptureFailed unless the output of probe `b` views the argument in the same place as
    that of capture `a`, counted from the argument's: then it does so in every call."""
    seen = []
    for capture in (a, b):
        output = capture.outputs[position]
        if isinstance(output, torch.Tensor) and is_strided(output):
            base = capture.inputs[argument]
            same = argument_of(output, capture) == argument
            seen.append((same, tensors.address_of(output) - tensors.address_of(base)))
    if len(seen) != 2 or seen[0] != seen[1]:
        raise CaptureFailed(
            f"output {position} views argument {argument} at a place that is not counted from"
            " the argument"
        )


def result_spec(
    kind: _engine.ResultKind, index: int, output: torch.Tensor, base: Any
) -> _engine.ResultSpec:
    """A result that views argument or result number `index` the way that `output` views the
    captured one, `base`."""
    elements = _elements_between(output, base)
    return _engine.ResultSpec(
        kind=kind,
        index=index,
        object=alias_maker(output, base),
        strided=elements is not None,
        value=elements or 0,
        sizes=list(output.shape),
        strides=list(output.stride()),
    )


def _elements_between(output: torch.Tensor, base: Any) -> int | None:
    """From where `base` begins to where `output` does; None: not in elements of both."""
    delta = tensors.address_of(output) - tensors.address_of(base)
    elements, rest = divmod(delta, base.element_size())
    return elements if output.dtype == base.dtype and not rest else None


def alias_maker(output: torch.Tensor, base: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """How to view an argument the way that `output` views the captured one, `base`. The caller
    keeps no reference to either: they are phantom."""
    delta = tensors.address_of(output) - tensors.address_of(base)
    shape, strides, dtype = tuple(output.shape), output.stride(), output.dtype
    offset = _elements_between(output, base)
    if offset is not None:
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
