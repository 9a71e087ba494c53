"""Operators, the modes that see them called, and trees of their arguments."""

from __future__ import annotations

from collections.abc import Collection
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
OperatorPacket = bound("torch._ops:OpOverloadPacket")
HigherOrderOperator = bound("torch._ops:HigherOrderOperator")
schema = attribute("_schema", torch.ops.aten.add.Tensor)
overload_name = attribute("_overloadname", torch.ops.aten.add.Tensor)
_opname = attribute("_opname", torch.ops.aten.add.Tensor)

tree_leaves = bound("torch.utils._pytree:tree_leaves")
tree_map = bound("torch.utils._pytree:tree_map")


def schema_if_any(target: Any) -> Any:
    """The schema of what a node calls; None if it has none, as a higher-order operator."""
    return schema(target) if hasattr(target, "_schema") else None


def packet_of(operator: str) -> str | None:
    """What an operator is called without its overload: "mylib::foo" for "mylib.foo.default". None
    for what is no operator's name."""
    parts = operator.split(".")
    return f"{parts[0]}::{parts[1]}" if len(parts) == 3 and all(parts) else None


def packets(graph: Any) -> frozenset[str]:
    """The operators that an FX graph's nodes call, as "mylib::foo"."""
    targets = {node.target for node in graph.nodes if node.op == "call_function"}
    return frozenset(each.name().split(".")[0] for each in targets if isinstance(each, OpOverload))


def calls_one_of(operators: Collection[str], target: Any) -> bool:
    """Whether what a node calls is one of these operators."""
    return isinstance(target, OpOverload) and target.name().split(".")[0] in operators


def name_if_operator(target: Any) -> Any:
    """The name of the operator that a node calls; None if it calls none."""
    return _opname(target) if hasattr(target, "_opname") else None
