"""Which operators are collectives, and of which groups of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pygraph.operators.known import given, parameters
from pygraph.operators.table import COLLECTIVES, NO_COLLECTIVES, POINT_TO_POINT
from pygraph.torch_private.dispatch import OpOverload

#: The parameters that name a group, in torch's schemas: its name, or the group itself.
_GROUPS = ("group_name", "process_group")


def is_collective(target: Any) -> bool:
    """Whether ranks wait for each other in an operator, or in the kernels that it launches."""
    return _is_theirs(target) and target.overloadpacket.__name__ not in NO_COLLECTIVES


def names_one(operator: str) -> bool:
    """Whether an operator of this name, "c10d.allreduce_.default", is in a namespace of them."""
    return operator.partition(".")[0] in COLLECTIVES


def kernel_among(names: Iterable[str]) -> str | None:
    """The first kernel of NCCL's, such as "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    (nccl, src/device/common.h)."""
    return next((each for each in names if each.startswith("nccl")), None)


def is_between_two(operator: str) -> bool:
    """Whether an operator of this name, "c10d.send.default", is no collective of the whole group:
    the ranks that it is between call others."""
    return operator.split(".")[1] in POINT_TO_POINT


def waits(target: Any) -> bool:
    """Whether an operator only waits for a collective, and returns what it is given, or what will
    wait when it is used."""
    waiting = ("_wrap_tensor_autograd", "wait_tensor")
    return _is_theirs(target) and target.overloadpacket.__name__ in waiting


def group_of(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a collective's call gives for its group; None where its schema has none."""
    name = next((each for each in _GROUPS if each in parameters(target)), None)
    return None if name is None else given(target, name, args, kwargs)


def _is_theirs(target: Any) -> bool:
    return isinstance(target, OpOverload) and target.namespace in COLLECTIVES
