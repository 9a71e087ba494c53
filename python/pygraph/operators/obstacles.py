"""What stands in the way of capturing an operator of an FX graph, or needs care in a capture."""

from __future__ import annotations

from typing import Any

import torch

from pygraph.operators.known import known
from pygraph.operators.table import COLLECTIVES, DRAWS_IF, Obstacle, Property, operators
from pygraph.torch_private.dispatch import HigherOrderOperator, OpOverload, schema, tree_leaves


def is_operator(node: Any) -> bool:
    """Whether this node computes, and does not only take a tuple or a size apart."""
    kinds = (OpOverload, HigherOrderOperator)
    return node.op == "call_function" and isinstance(node.target, kinds)


def obstacle(node: Any) -> Obstacle | None:
    """The kind of obstacle that a node is, by its target and by the devices of the values in its
    `meta["val"]`. None: it can be captured as it is, or is no operator."""
    if not is_operator(node):
        return None
    target = node.target
    if isinstance(target, HigherOrderOperator):
        return _of_higher_order(str(target))
    if torch.Tag.data_dependent_output in target.tags:
        return "host value"
    if torch.Tag.dynamic_output_shape in target.tags and not _without_masks(node):
        return "data-dependent shape"
    if target.namespace in COLLECTIVES:
        return "collective"
    made = _devices(node.meta.get("val"))
    used = _devices([source.meta.get("val") for source in node.all_input_nodes])
    if known(target, Property.BREAKS_ITS_LIBRARY) and used - {"cpu"}:
        return "library state"
    if "cpu" in made:
        return "device to host" if used - {"cpu"} else "cpu operator"
    if "cpu" in used and known(target, Property.MOVES_MEMORY, namespaces=None):
        return "host to device"
    if torch.Tag.nondeterministic_seeded in target.tags and _really_random(node):
        return "random numbers"
    # A CPU scalar that a GPU operator takes is read at launch, by value.
    return "cpu input" if "cpu" in used and not _constant_inputs(node) else None


def is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.uint8)


def _of_higher_order(name: str) -> Obstacle | None:
    if name in operators(Property.CONTROL_FLOW):
        return "control flow"
    return "random numbers" if name in operators(Property.LENDS_GENERATOR) else None


def _without_masks(node: Any) -> bool:
    return known(node.target, Property.SHAPED_BY_MASKS) and not any(
        is_mask(source.meta.get("val")) for source in node.all_input_nodes[1:]
    )


def _devices(values: Any) -> set[str]:
    leaves = tree_leaves(values)
    return {leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)}


def _constant_inputs(node: Any) -> bool:
    """Whether the CPU tensors that this operator takes were reported where they were made."""
    return all(
        source.op != "placeholder"
        for source in node.all_input_nodes
        if "cpu" in _devices(source.meta.get("val"))
    )


def _really_random(node: Any) -> bool:
    """Attention and dropout carry the tag even when their probability is zero."""
    parameters = schema(node.target).arguments
    given = {each.name: value for each, value in zip(parameters, node.args, strict=False)}
    given.update(node.kwargs)
    for argument in parameters:
        if argument.name in DRAWS_IF:
            return bool(given.get(argument.name, argument.default_value))
    return True
