"""The symbols that stand for sizes in a traced graph."""

from __future__ import annotations

from typing import Any

import torch

from pygraph.torch_private.names import private


def of(value: Any) -> frozenset[Any]:
    """Those in the sizes, strides and offset of a traced tensor, or in a number."""
    if not isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return frozenset()
    return frozenset(private("torch.fx.experimental.symbolic_shapes:free_symbols")(value))


def is_one(value: torch.SymInt) -> frozenset[Any]:
    """The symbol that a number is; none if it is computed of some."""
    expression = value.node.expr
    return frozenset([expression]) if expression.is_Symbol else frozenset()


def is_unbacked(value: Any) -> bool:
    """Whether it is a number that is known only when the graph runs."""
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return False
    return bool(private("torch.fx.experimental.symbolic_shapes:free_unbacked_symbols")(value))
