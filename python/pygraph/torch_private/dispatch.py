"""Operators, the modes that see them called, and trees of their arguments."""

from __future__ import annotations

from typing import Any

import torch

from pygraph.torch_private.names import attribute, bound

TorchDispatchMode = bound("torch.utils._python_dispatch:TorchDispatchMode")
disable_current_modes = bound("torch.utils._python_dispatch:_disable_current_modes")
DisableDispatch = bound("torch._C:_DisableTorchDispatch")
DisableFunction = bound("torch._C:DisableTorchFunction")
DisableAutocast = bound("torch._C:_DisableAutocast")
has_kernel = bound("torch._C:_dispatch_has_kernel_for_dispatch_key")

OpOverload = bound("torch._ops:OpOverload")
HigherOrderOperator = bound("torch._ops:HigherOrderOperator")
schema = attribute("_schema", torch.ops.aten.add.Tensor)
overload_name = attribute("_overloadname", torch.ops.aten.add.Tensor)
_opname = attribute("_opname", torch.ops.aten.add.Tensor)

tree_leaves = bound("torch.utils._pytree:tree_leaves")
tree_map = bound("torch.utils._pytree:tree_map")


def schema_if_any(target: Any) -> Any:
    """The schema of what a node calls; None if it has none, as a higher-order operator."""
    return schema(target) if hasattr(target, "_schema") else None


def name_if_operator(target: Any) -> Any:
    """The name of the operator that a node calls; None if it calls none."""
    return _opname(target) if hasattr(target, "_opname") else None
