"""Numbers on the host: CPU tensors without dimensions, where a graph's memory is a device's.

Dynamo makes them of Python floats that change from call to call, a forward saves them for its
backward, and `x.max().item()` becomes one. The host reads them while it launches, so a graph has
their values in it: a program serves calls with the very bits that it was captured with, and gives
a number that it returns those of the capture.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from pygraph import _engine
from pygraph.capturing import tensors
from pygraph.capturing.device import CaptureFailed, Device, is_strided

#: Of the widest number that the engine compares and makes.
_MOST_BYTES = 8
#: Tensors that have memory, whatever their dispatch.
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class CapturedValues(Protocol):
    """What a capture took and returned (record.Capture)."""

    @property
    def inputs(self) -> Sequence[Any]: ...
    @property
    def outputs(self) -> Sequence[Any]: ...


def is_number(value: Any, device: Device) -> bool:
    """Whether it is a number on the host."""
    return (
        type(value) in _PLAIN
        and value.device.type == "cpu"
        and value.dim() == 0
        and value.element_size() <= _MOST_BYTES
        and is_strided(value)
        and not device.owns(value)
        and value.data_ptr() != 0  # torch has zeros without memory
    )


def among(values: Sequence[Any], device: Device) -> Iterator[int]:
    """Which of some values are numbers on the host."""
    return (index for index, value in enumerate(values) if is_number(value, device))


def bits(number: torch.Tensor) -> int:
    """Its bytes as the engine takes them: the lower ones of a signed word of 8, then zeros."""
    raw = ctypes.string_at(number.data_ptr(), number.element_size())
    return int.from_bytes(raw.ljust(_MOST_BYTES, b"\0"), "little", signed=True)


def stand_ins(arguments: Sequence[Any], device: Device) -> dict[int, torch.Tensor]:
    """Copies for a capture, during which the host's operators really run."""
    return {index: tensors.static_copy(arguments[index]) for index in among(arguments, device)}


def require_unwritten(arguments: Sequence[Any], copies: Mapping[int, torch.Tensor]) -> None:
    """Raises CaptureFailed if a capture has written one of its stand-ins."""
    for index, copy in copies.items():
        if bits(copy) != bits(arguments[index]):
            raise CaptureFailed(_written(index))


def require_served(
    arguments: Sequence[Any],
    mutated: frozenset[int],
    results: Sequence[Any],
    drew: bool,
    device: Device,
) -> None:
    """Raises CaptureFailed for a real run that no graph repeats on the host: it wrote a number
    among its arguments, or returned one and drew random numbers there (`drew`)."""
    written = next((index for index in among(arguments, device) if index in mutated), None)
    if written is not None:
        raise CaptureFailed(_written(written))
    returned = next(among(results, device), None)
    if drew and returned is not None:
        raise CaptureFailed(
            f"output {returned} is {tensors.describe(results[returned])}, and random numbers were"
            " drawn on the host"
        )


def argument_spec(number: torch.Tensor) -> _engine.ArgumentSpec:
    """The calls that are served have `number` there."""
    return _engine.ArgumentSpec(
        kind=_engine.ArgumentKind.NUMBER,
        value=bits(number),
        bytes=number.element_size(),
        dtype_of=number,
    )


def result_spec(
    position: int, a: CapturedValues, b: CapturedValues, reference: Sequence[Any]
) -> _engine.ResultSpec:
    """Plans output `position` of capture `a`, whose probe is `b`, as a new number in each call, or
    as the argument that it is. Raises CaptureFailed unless it is the same in the real run, whose
    outputs are `reference`."""
    output = a.outputs[position]
    what = f"output {position} is {tensors.describe(output)}"
    for index, argument in enumerate(a.inputs):
        if output is argument and b.outputs[position] is b.inputs[index]:
            return _engine.ResultSpec(kind=_engine.ResultKind.ARGUMENT, index=index)
        if isinstance(argument, torch.Tensor) and tensors.share_storage(argument, output):
            raise CaptureFailed(f"{what} that shares memory with argument {index}")
    for index, earlier in enumerate(a.outputs[:position]):
        if isinstance(earlier, torch.Tensor) and tensors.share_storage(earlier, output):
            raise CaptureFailed(f"{what} that shares memory with output {index}")
    if not all(
        tensors.same_bits(output, other)
        for other in (b.outputs[position], *reference[position : position + 1])
    ):
        raise CaptureFailed(f"{what} that differs from run to run")
    return _engine.ResultSpec(
        kind=_engine.ResultKind.NUMBER,
        value=bits(output),
        bytes=output.element_size(),
        dtype_of=output,
    )


def _written(index: int) -> str:
    return f"argument {index} is a number on the host that the graph writes"
