"""What stands in the way of capturing a call of an operator, or needs care in a capture."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pygraph.operators.known import given, known, parameters
from pygraph.operators.table import COLLECTIVES, DRAWS_IF, SEEDS, Obstacle, Property, operators
from pygraph.torch_private.dispatch import HigherOrderOperator, OpOverload, tree_leaves, tree_map


def on_cpu(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "cpu")


def of_call(
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    made: Any = None,
    on_host: Callable[[torch.Tensor], bool] = on_cpu,
) -> Obstacle | None:
    """The kind of obstacle that a call is, by the operator, what it is given and what it returns,
    as far as that is known. None: it can be captured as it is, or calls no operator. Of operators
    that are not known, and higher-order ones among them, nothing is said. `on_host`: of a tensor,
    whether it is not in memory of the device."""
    if isinstance(target, HigherOrderOperator):
        return _of_higher_order(str(target))
    if not isinstance(target, OpOverload):
        return None
    used = {on_host(each) for each in _tensors((args, kwargs))}
    # First, whatever else is in the way: a capture that fails in it cannot be rolled back.
    if known(target, Property.BREAKS_ITS_LIBRARY) and False in used:
        return "library state"
    if _takes_seed_on_host(target, args, kwargs, on_host):
        return "host seed"
    if torch.Tag.data_dependent_output in target.tags:
        return "host value"
    if torch.Tag.dynamic_output_shape in target.tags and not _without_masks(target, args, kwargs):
        return "data-dependent shape"
    if target.namespace in COLLECTIVES:
        return "collective"
    if any(map(on_host, _tensors(made))):
        return "device to host" if False in used else "cpu operator"
    if True in used and known(target, Property.MOVES_MEMORY, namespaces=None):
        return "host to device"
    if draws(target, args, kwargs):
        return "random numbers"
    # A CPU scalar that a GPU operator takes is read at launch, by value.
    return "cpu input" if True in used else None


@functools.cache
def seeds_of(target: Any) -> frozenset[str]:
    """The parameters of an operator that are seeds."""
    names = parameters(target) if isinstance(target, OpOverload) else ()
    return SEEDS.intersection(names)


def is_operator(node: Any) -> bool:
    """Whether this node computes, and does not only take a tuple or a size apart."""
    kinds = (OpOverload, HigherOrderOperator)
    return node.op == "call_function" and isinstance(node.target, kinds)


def of_node(node: Any, on_host: Callable[[torch.Tensor], bool] = on_cpu) -> Obstacle | None:
    """The same of a node of an FX graph, by the values in its and its arguments' `meta["val"]`."""
    if not is_operator(node):
        return None
    args, kwargs = tree_map(_value, (tuple(node.args), dict(node.kwargs)))
    return of_call(node.target, args, kwargs, made=_value(node), on_host=on_host)


def obstacle(node: Any, on_host: Callable[[torch.Tensor], bool] = on_cpu) -> Obstacle | None:
    """The same, but for CPU inputs that were reported where they were made."""
    found = of_node(node, on_host)
    return None if found == "cpu input" and _constant_inputs(node) else found


def of_parameter(node: Any, name: str) -> Any:
    """What a node gives for a parameter of its operator; None where that has no such parameter."""
    if name not in parameters(node.target):
        return None
    return given(node.target, name, node.args, node.kwargs)


def is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.uint8)


def _of_higher_order(name: str) -> Obstacle | None:
    if name in operators(Property.CONTROL_FLOW):
        return "control flow"
    return "random numbers" if name in operators(Property.LENDS_GENERATOR) else None


def _takes_seed_on_host(
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    on_host: Callable[[torch.Tensor], bool],
) -> bool:
    seeds = (given(target, name, args, kwargs) for name in seeds_of(target))
    return any(isinstance(seed, torch.Tensor) and on_host(seed) for seed in seeds)


def _without_masks(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    others = tree_leaves((args[1:], kwargs))
    return known(target, Property.SHAPED_BY_MASKS) and not any(map(is_mask, others))


def draws(target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operator draws random numbers. Attention and dropout carry the tag even
    when their probability is zero."""
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    name = next((each for each in parameters(target) if each in DRAWS_IF), None)
    return name is None or bool(given(target, name, args, kwargs))


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _value(leaf: Any) -> Any:
    return leaf.meta.get("val") if isinstance(leaf, torch.fx.Node) else leaf


def _constant_inputs(node: Any) -> bool:
    """Whether the CPU tensors that this operator takes were reported where they were made."""
    return all(
        source.op != "placeholder"
        for source in node.all_input_nodes
        if any(map(on_cpu, _tensors(_value(source))))
    )
