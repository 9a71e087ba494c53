"""Whether an operator that torch hands out has a property of the table."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pygraph.operators.table import Property, operators
from pygraph.torch_private.dispatch import OpOverload


def known(target: Any, that: Property, namespaces: Collection[str] | None = ("aten",)) -> bool:
    """Of an overload of an operator; anything else has none. `namespaces`: None for any."""
    return (
        isinstance(target, OpOverload)
        and (namespaces is None or target.namespace in namespaces)
        and target.overloadpacket.__name__ in operators(that)
    )
