"""Operators, the modes that see them called, and trees of their arguments."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from pygraph.torch_private.fake_tensors import FakeTensor
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
_kernel = attribute("_op_dk", torch.ops.aten.add.Tensor)
DispatchKey = bound("torch._C:DispatchKey")
_opname = attribute("_opname", torch.ops.aten.add.Tensor)

PLAIN = torch.Tensor.__torch_dispatch__
"""That of tensors that are not made of others."""

LOOK_UP = "torch/_library/simple_registry.py"
"""The file in which torch looks up what a mode does with an operator, and makes an entry for one
that it has not met before in the process."""

tree_leaves = bound("torch.utils._pytree:tree_leaves")
tree_map = bound("torch.utils._pytree:tree_map")
tree_flatten = bound("torch.utils._pytree:tree_flatten")
tree_unflatten = bound("torch.utils._pytree:tree_unflatten")


class UnseenByDynamo(TorchDispatchMode):  # type: ignore[misc, valid-type]
    """A mode under which code that Dynamo has compiled runs as without; under others frames that it
    has not seen yet are left alone (torch/_dynamo/convert_frame.py). Of a kind of tensors that is
    made of others it sees the operators on those."""

    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    def see(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Is called in place of an operator, whose result it returns."""
        raise NotImplementedError

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__torch_dispatch__ is not PLAIN for kind in types):
            if any(issubclass(kind, FakeTensor) for kind in types):  # which has no values
                return func(*args, **(kwargs or {}))
            return NotImplemented
        return self.see(func, args, kwargs or {})


def taken_apart(func: Any, args: Any, kwargs: Any) -> Any:
    """Runs the code of an operator that calls others, which modes see: what a composite one is made
    of, or else its kernel for the CPU."""
    result = func.decompose(*args, **kwargs)
    if result is NotImplemented:
        return _kernel(func)(DispatchKey.CPU, *args, **kwargs)
    return result


def schema_if_any(target: Any) -> Any:
    """The schema of what a node calls; None if it has none, as a higher-order operator."""
    return schema(target) if hasattr(target, "_schema") else None


def packet_of(operator: str) -> str | None:
    """What an operator is called without its overload: "mylib::foo" for "mylib.foo.default". None
    for what is no operator's name."""
    parts = operator.split(".")
    return f"{parts[0]}::{parts[1]}" if len(parts) == 3 and all(parts) else None


def called(target: Any, args: Sequence[Any]) -> Any:
    """The operator that a call is about: the target, or what a higher-order one is given to call,
    as auto_functionalized is where an operator of the program's own writes its arguments."""
    given = args[0] if args and isinstance(target, HigherOrderOperator) else None
    return given if isinstance(given, OpOverload) else target


def packets(graph: Any) -> frozenset[str]:
    """The operators that an FX graph's nodes call, as "mylib::foo"."""
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    operators = {called(node.target, node.args) for node in nodes}
    found = [each for each in operators if isinstance(each, OpOverload)]
    return frozenset(each.name().split(".")[0] for each in found)


def calls_one_of(operators: Collection[str], target: Any, args: Sequence[Any] = ()) -> bool:
    """Whether what a node calls is one of these operators."""
    operator = called(target, args)
    return isinstance(operator, OpOverload) and operator.name().split(".")[0] in operators


def name_if_operator(target: Any) -> Any:
    """The name of the operator that a node calls; None if it calls none."""
    return _opname(target) if hasattr(target, "_opname") else None
