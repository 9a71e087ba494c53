"""Reads one ATen graph: what goes in and out, and what stands in the way of capturing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from pygraph.operators.obstacles import is_operator, obstacle, on_cpu
from pygraph.planning.kinds import KINDS
from pygraph.planning.model import Argument, Finding, GraphPlan
from pygraph.planning.source import of_node
from pygraph.torch_private.dispatch import tree_leaves


def inspect(name: str, graph_module: Any, static: Sequence[int], mutated: int) -> GraphPlan:
    """Describe a graph whose inputs at the positions `static` keep their addresses."""
    graph = graph_module.graph
    found = GraphPlan(name=name, mutated=mutated)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    keeps = set(static)
    for position, node in enumerate(placeholders):
        _sort_input(found, node, position in keeps)
    for node in graph.nodes:
        if is_operator(node):
            found.operators += 1
            found.views += is_view(node)
        elif node.op == "output":
            leaves = tree_leaves(node.args)
            found.outputs = [
                _argument(leaf.name, leaf.meta["val"]) for leaf in leaves if _has_tensor(leaf)
            ]
    found.findings = findings(graph)
    found.remaining = list(found.findings)
    return found


def findings(graph: Any, on_host: Callable[[torch.Tensor], bool] = on_cpu) -> list[Finding]:
    """What stands in the way of a capture, or needs care; the most serious first. `on_host`: of a
    tensor, whether it is not in memory of the device."""
    return _in_order(located(graph, on_host).values())


def transformed(
    found: GraphPlan, before: Mapping[str, Finding], body: Any, cleared: Mapping[str, str]
) -> None:
    """Adds to a graph's plan what passes have made of it. `before`: `located()` of the graph as it
    was; `body`: what is left of it; `cleared`: which pass has taken an obstacle away, by its
    node."""
    found.findings = _in_order(before.values())
    found.remaining = findings(body)
    for finding in found.findings:
        nodes = [name for name, each in before.items() if each is finding]
        if all(name in cleared for name in nodes):
            finding.taken_away_by = sorted({cleared[name] for name in nodes})


def located(graph: Any, on_host: Callable[[torch.Tensor], bool] = on_cpu) -> dict[str, Finding]:
    """The findings of a graph by the names of their nodes, in the graph's order."""
    lines: dict[tuple[Any, ...], Finding] = {}
    found: dict[str, Finding] = {}
    for node in graph.nodes:
        kind = obstacle(node, on_host)
        if kind is None:
            continue
        source, code = of_node(node)
        line = (kind, str(node.target), source)
        if line in lines:
            lines[line].count += 1
        else:
            lines[line] = Finding(*line, code)
        found[node.name] = lines[line]
    return found


def _in_order(found: Iterable[Finding]) -> list[Finding]:
    order = list(KINDS)
    once = {id(each): each for each in found}.values()
    return sorted(once, key=lambda finding: order.index(finding.kind))


def is_view(node: Any) -> bool:
    """Whether an operator only looks at memory in another way, and launches nothing."""
    return bool(getattr(node.target, "is_view", False))


def _sort_input(found: GraphPlan, node: Any, keeps_address: bool) -> None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        found.scalars.append(node.name)
        return
    argument = _argument(node.name, value)
    if value.device.type == "cpu":
        found.host_inputs.append(argument)
    elif keeps_address:
        found.constants.append(argument)
    else:
        found.patched.append(argument)


def _argument(name: str, value: Any) -> Argument:
    sizes = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
    elements = 1
    for size in sizes:
        elements *= size if isinstance(size, int) else 1
    return Argument(
        name=name,
        dtype=str(value.dtype).removeprefix("torch."),
        shape=sizes,
        device=value.device.type,
        nbytes=elements * value.element_size(),
    )


def _has_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.fx.Node) and isinstance(leaf.meta.get("val"), torch.Tensor)
