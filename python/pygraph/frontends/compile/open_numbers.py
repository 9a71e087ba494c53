"""Python numbers that vary stay open where torch would compile anew for each value.

Dynamo makes a tensor of a Python float that differs from call to call, and a pass of AOTAutograd's
rewrites what is computed with it for tensors (torch/fx/passes/_tensorify_python_scalars.py). At its
end it has every number compiled in that it could not rewrite, and takes for such also one that it
has rewritten, if no operator uses the number itself: of `x * (1 - sigma**2)` it has noted the sum,
and misses sigma. So each value is compiled for, until Dynamo gives the function up. (So does torch
2.11; 2.13 notes the numbers that a sum consists of.)

Here the graph is looked at once more. If nothing in it depends on such a number any more, and
torch's own record of sizes has not settled its value, it stays open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pygraph.torch_private import dynamo, symbols
from pygraph.torch_private.dispatch import tree_leaves


def rewrite(original: Callable[..., Any], module: Any, shapes: Any, mode: Any) -> Any:
    """Calls torch's pass, and takes back what it has settled without need."""
    settled = dynamo.numbers_compiled_in()
    before = set(settled)
    try:
        return original(module, shapes, mode)
    except dynamo.restart_for_numbers():
        needless = {
            name
            for name in settled - before
            if not symbols.is_settled(name, shapes) and not _depends_on(module.graph, name)
        }
        if needless != settled - before:
            raise
        settled -= needless
        return None


def forget() -> None:
    """A compilation has come to its end. Dynamo has made use of what was settled for it, and would
    hold it against numbers of the same name in the next one."""
    dynamo.numbers_compiled_in().clear()


def _depends_on(graph: Any, name: str) -> bool:
    """Whether anything in a graph is of a size, or is a number, that a symbol is part of."""
    return any(
        str(symbol) == name
        for node in graph.nodes
        if node.users or node.op == "output"
        for leaf in tree_leaves(node.meta.get("val"))
        for symbol in symbols.of(leaf)
    )
