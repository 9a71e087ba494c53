"""What the table knows of an operator that torch hands out, and what a call of it is given."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pygraph.operators.table import UNDECLARED_WRITES, Property, operators
from pygraph.torch_private.dispatch import OpOverload, overload_name, schema


@functools.cache
def names(target: Any, namespaces: tuple[str, ...] | None = ("aten",)) -> frozenset[str]:
    """What an overload of an operator is called in the table; anything else is not there.
    `namespaces`: None for any."""
    if not isinstance(target, OpOverload):
        return frozenset()
    if namespaces is not None and target.namespace not in namespaces:
        return frozenset()
    packet = target.overloadpacket.__name__
    return frozenset((packet, f"{packet}.{overload_name(target)}"))


def known(target: Any, that: Property, namespaces: tuple[str, ...] | None = ("aten",)) -> bool:
    """Whether an operator has a property; `namespaces` as in names()."""
    return not names(target, namespaces).isdisjoint(operators(that))


@functools.cache
def parameters(target: Any) -> dict[str, tuple[int, Any]]:
    """Position and default of each argument that an overload takes, by name and in their order."""
    return {
        each.name: (position, each.default_value)
        for position, each in enumerate(schema(target).arguments)
    }


def given(target: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a call of an overload gives for one of its parameters."""
    position, default = parameters(target)[name]
    return args[position] if position < len(args) else kwargs.get(name, default)


def written(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that a call of an overload writes."""
    written = _writes(target)
    for name in names(target) & UNDECLARED_WRITES.keys():
        more, condition = UNDECLARED_WRITES[name]
        if condition is None or given(target, condition, args, kwargs):
            written += more
    found: list[torch.Tensor] = []
    for name in written:
        value = given(target, name, args, kwargs)
        items = value if isinstance(value, (list, tuple)) else [value]
        found.extend(item for item in items if isinstance(item, torch.Tensor))
    return found


@functools.cache
def _writes(target: Any) -> tuple[str, ...]:
    """The arguments that an overload writes, as its schema has them."""
    arguments = schema(target).arguments
    return tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)
