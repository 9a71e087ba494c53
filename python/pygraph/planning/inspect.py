"""Reads one ATen graph: what goes in and out, and what stands in the way of capturing it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pygraph.planning.model import KINDS, Argument, Finding, GraphPlan
from pygraph.planning.source import of_node
from pygraph.torch_private.dispatch import HigherOrderOperator, OpOverload, tree_leaves
from pygraph.torch_private.dispatch import schema as schema_of


def inspect(name: str, graph_module: Any, static: Sequence[int], mutated: int) -> GraphPlan:
    """Describe a graph whose inputs at the positions `static` keep their addresses."""
    graph = graph_module.graph
    found = GraphPlan(name=name, mutated=mutated)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    keeps = set(static)
    for position, node in enumerate(placeholders):
        _sort_input(found, node, position in keeps)
    for node in graph.nodes:
        if node.op == "call_function" and _is_operator(node):
            found.operators += 1
            found.views += bool(getattr(node.target, "is_view", False))
            kind = _obstacle(node)
            if kind is not None:
                _add(found.findings, kind, node)
        elif node.op == "output":
            leaves = tree_leaves(node.args)
            found.outputs = [
                _argument(leaf.name, leaf.meta["val"]) for leaf in leaves if _has_tensor(leaf)
            ]
    order = list(KINDS)
    found.findings.sort(key=lambda finding: order.index(finding.kind))
    return found


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


def _is_operator(node: Any) -> bool:
    """Whether this node computes, and does not only take a tuple or a size apart."""
    return isinstance(node.target, (OpOverload, HigherOrderOperator))


def _has_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.fx.Node) and isinstance(leaf.meta.get("val"), torch.Tensor)


def _devices(values: Any) -> set[str]:
    leaves = tree_leaves(values)
    return {leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)}


def _input_values(node: Any) -> Iterator[Any]:
    for source in node.all_input_nodes:
        yield source.meta.get("val")


def _obstacle(node: Any) -> str | None:
    """The kind of obstacle that an operator is, or None."""
    target = node.target
    if isinstance(target, HigherOrderOperator):
        return "control flow" if str(target) in ("cond", "while_loop", "scan") else None
    if torch.Tag.data_dependent_output in target.tags:
        return "host value"
    if torch.Tag.dynamic_output_shape in target.tags:
        return "data-dependent shape"
    if target.namespace in ("_c10d_functional", "c10d_functional", "c10d"):
        return "collective"
    made, used = _devices(node.meta.get("val")), _devices(list(_input_values(node)))
    if "cpu" in made:
        return "device to host" if used - {"cpu"} else "cpu operator"
    if "cpu" in used and _moves_memory(target):
        return "host to device"
    if torch.Tag.nondeterministic_seeded in target.tags and _really_random(node):
        return "random numbers"
    # A CPU scalar that a GPU operator takes is read at launch, by value.
    return "cpu input" if "cpu" in used and not _constant_inputs(node) else None


def _moves_memory(target: Any) -> bool:
    return target.overloadpacket.__name__ in ("_to_copy", "copy", "copy_", "device_put", "_copy")


def _constant_inputs(node: Any) -> bool:
    """Whether the CPU tensors that this operator takes were reported where they were made."""
    return all(
        source.op != "placeholder"
        for source in node.all_input_nodes
        if "cpu" in _devices(source.meta.get("val"))
    )


def _really_random(node: Any) -> bool:
    """Attention and dropout carry the tag even when their probability is zero."""
    schema = schema_of(node.target).arguments
    given = {argument.name: value for argument, value in zip(schema, node.args, strict=False)}
    given.update(node.kwargs)
    for argument in schema:
        if argument.name in ("dropout_p", "train"):
            value = given.get(argument.name, argument.default_value)
            return bool(value)
    return True


def _add(findings: list[Finding], kind: str, node: Any) -> None:
    source, code = of_node(node)
    operator = str(node.target)
    for finding in findings:
        if (finding.kind, finding.operator, finding.source) == (kind, operator, source):
            finding.count += 1
            return
    findings.append(Finding(kind, operator, source, code))
