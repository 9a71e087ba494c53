"""The modes that decide what an operator does beside its arguments: gradients, autocast, precision,
determinism, and those that a program pushes on torch's stacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pygraph.torch_private.names import bound, private

_dispatch_modes = bound("torch._C:_len_torch_dispatch_stack")
_function_modes = bound("torch._C:_len_torch_function_stack")
_function_mode = bound("torch._C:_get_function_stack_at")


def same_modes() -> Callable[[], bool]:
    """A function that tells whether the modes are those of now."""
    unchanged = private("torch._C._dynamo.guards:GlobalStateGuard")().check
    devices = _devices()

    def same() -> bool:
        return bool(unchanged()) and not _dispatch_modes() and _devices() == devices

    return same


def foreign_modes() -> bool:
    """Whether modes are on that see operators or functions before torch does, but for default
    devices (torch.device as a context)."""
    return bool(_dispatch_modes()) or _devices() is None


def _devices() -> tuple[torch.device, ...] | None:
    """The default devices on the stack of function modes; None if there is anything else."""
    count = _function_modes()
    if not count:
        return ()
    modes: list[Any] = [_function_mode(number) for number in range(count)]
    kind = private("torch.utils._device:DeviceContext")
    return tuple(mode.device for mode in modes) if all(isinstance(m, kind) for m in modes) else None
