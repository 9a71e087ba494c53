"""From an operator to the user's line: Dynamo keeps a stack trace with every node it records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pygraph.frames import of_text
from pygraph.torch_private.dispatch import name_if_operator


def finder(gm: torch.fx.GraphModule) -> Callable[[str | None], str | None]:
    """A function that gives 'file.py:12' for an operator name such as 'aten.mm.default', the last
    node of `gm` that calls it, or None. Built once, so that the graph need not be kept."""
    lines: dict[str, str] = {}
    for node in gm.graph.nodes:
        line = line_of(node.stack_trace)
        if node.op in ("call_function", "call_method", "call_module") and line is not None:
            lines[_key(node.target)] = line

    def find(operator: str | None) -> str | None:
        return None if operator is None else lines.get(_key(operator))

    return find


def line_of(stack_trace: str | None) -> str | None:
    """The innermost frame of the program in a Dynamo stack trace, as 'file.py:12'."""
    place = of_text(stack_trace)
    return None if place is None else str(place)


def _key(target: Any) -> str:
    """'aten.mm.default', torch.mm, 'mm' and Tensor.mm all are 'mm'."""
    if isinstance(target, str):
        parts = target.split(".")
        return parts[1] if len(parts) == 3 else parts[-1]
    name = name_if_operator(target) or getattr(target, "__name__", None) or str(target)
    return str(name).split(".")[0] if "." in str(name) else str(name)
