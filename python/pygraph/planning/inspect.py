"""Reads one ATen graph: what goes in and out, and what stands in the way of capturing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    return found


def findings(graph: Any, on_host: Callable[[torch.Tensor], bool] = on_cpu) -> list[Finding]:
    """What stands in the way of a capture, or needs care; the most serious first. `on_host`: of a
    tensor, whether it is not in memory of the device."""
    found: list[Finding] = []
    for node in graph.nodes:
        kind = obstacle(node, on_host)
        if kind is not None:
            _add(found, kind, node)
    order = list(KINDS)
    return sorted(found, key=lambda finding: order.index(finding.kind))


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


def _add(findings: list[Finding], kind: str, node: Any) -> None:
    source, code = of_node(node)
    operator = str(node.target)
    for finding in findings:
        if (finding.kind, finding.operator, finding.source) == (kind, operator, source):
            finding.count += 1
            return
    findings.append(Finding(kind, operator, source, code))
