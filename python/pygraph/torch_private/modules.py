"""torch.nn.Module: its tables of tensors, and what calls its forward."""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch

from pygraph.torch_private.names import attribute, private

parameters = attribute("_parameters", torch.nn.Module())
buffers = attribute("_buffers", torch.nn.Module())
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""How the names of its tables end of what runs around its forward."""


def hooks_on(module: torch.nn.Module) -> dict[str, Any]:
    """Its tables of what runs around its forward, by name."""
    return {name: table for name, table in vars(module).items() if name.endswith(_HOOKS)}


def code_around_forward() -> tuple[CodeType, CodeType]:
    """The code of what calls a module's forward if there are no hooks."""
    functions: tuple[Any, Any] = (
        private("torch.nn:Module._call_impl"),
        private("torch.nn:Module._wrapped_call_impl"),
    )
    return functions[0].__code__, functions[1].__code__
