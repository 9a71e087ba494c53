"""Copies to the host, and what the host does with them, move behind the graph.

    def forward(self, x):
        y = self.layers(x)
        return y, y.argmax().cpu()

What it matches: nodes on the host whose results nothing on the device takes, and nothing on the
host that has to stay where it is. Copies from the device are their beginning. What is copied as it
is, and waited for, becomes a result of the body on the device: the call copies all such
results behind the launch, and waits once. Everything else that the host does moves behind the graph
as it is.

Why it is equivalent: the host's operators get what they would have got, from the same memory. The
device's memory holds at the end of the graph what it held before, since graphs of ATen write none
but their arguments: where a graph does that, a value that may be a view of an argument is copied on
the device first. What writes an argument on the host keeps its order, and runs behind everything
that reads it. Results are new tensors of the host, as torch's copies are; one that a program does
not wait for is made by torch's own operator, pinned as it makes it.

What it refuses: operators that are not pure, but for writing an argument on the host; those of
dynamic shape; random ones, whose order might change; and what takes a value of the host that stays
in the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pygraph.operators.known import known
from pygraph.operators.table import Property
from pygraph.torch_private.dispatch import OpOverload, schema
from pygraph.transform import reading
from pygraph.transform.draft import (
    Draft,
    Part,
    copies_memory,
    is_blocking,
    is_pure,
    is_random,
    kind,
    portable,
)

NAME = "fetch"


def apply(draft: Draft) -> None:
    behind = {node for node in draft.in_body() if _may_move(node)}
    while True:
        kept = {node for node in behind if _fits(draft, node, behind)}
        if kept == behind:
            break
        behind = kept
    for node in draft.graph.nodes:
        if node in behind:
            draft.parts[node] = Part.BEHIND
            if kind(node) == "device to host":
                _from_device(draft, node)


def _may_move(node: Any) -> bool:
    if not reading.on_host(node) or is_random(node):
        return False
    return is_pure(node) or _writes_argument(node)


def _writes_argument(node: Any) -> bool:
    """Whether it copies into an argument of the graph on the host, and does nothing else."""
    if not isinstance(node.target, OpOverload):
        return False
    first = node.args[0] if node.args else None
    return (
        known(node.target, Property.COPIES_INTO)
        and isinstance(first, torch.fx.Node)
        and first.op == "placeholder"
        and reading.on_host(first)
    )


def _writes(node: Any, value: Any) -> bool:
    """Whether a node may write one of the values that it takes."""
    if not isinstance(node.target, OpOverload):
        return False
    written = (each.alias_info is not None and each.alias_info.is_write for each in _formal(node))
    return any(each is value for each, is_one in zip(node.args, written, strict=False) if is_one)


def _formal(node: Any) -> Sequence[Any]:
    """The arguments that the node's operator takes, as its schema has them."""
    arguments: Sequence[Any] = schema(node.target).arguments
    return arguments


def _fits(draft: Draft, node: Any, behind: set[Any]) -> bool:
    """Whether a node can be behind, if these others are. What nobody needs any more is left out."""
    if not node.users and not _writes_argument(node):
        return False
    return all(each in behind or each.op == "output" for each in node.users) and all(
        _can_be_had(draft, each, behind) for each in node.all_input_nodes
    )


def _can_be_had(draft: Draft, value: Any, behind: set[Any]) -> bool:
    """Whether the part behind can be given a value. It reads an argument when the body has run."""
    if value.op == "placeholder" and reading.on_host(value):
        return all(each in behind or not _writes(each, value) for each in value.users)
    if value in behind or value.op != "call_function" or draft.part(value) is Part.FRONT:
        return True
    return portable(value) if reading.is_number(value) else reading.on_device(value)


def _from_device(draft: Draft, node: Any) -> None:
    draft.note(NAME, "a copy to the host is made behind the graph", node)
    for given in node.all_input_nodes:
        if reading.on_device(given) and _may_be_written(draft, given):
            _keep(draft, given, node)
    (first, *_) = node.all_input_nodes
    value = reading.value(first)
    if (
        copies_memory(node)
        and is_blocking(node)
        and reading.is_dense(value)
        and reading.same_layout(value, reading.value(node))
    ):
        draft.fetched.add(node)


def _may_be_written(draft: Draft, value: Any) -> bool:
    """Whether memory that a value of the device stands in may be written before the graph ends."""
    writes = any(
        isinstance(node.target, OpOverload) and schema(node.target).is_mutable
        for node in draft.in_body()
    )
    if not writes:
        return False
    if value.op == "placeholder" or not isinstance(value.target, OpOverload):
        return True
    aliases = any(each.alias_info is not None for each in schema(value.target).returns)
    return (
        aliases
        or known(value.target, Property.KEEPS_VALUES)
        or known(value.target, Property.ALIASES_UNDECLARED)
    )


def _keep(draft: Draft, value: Any, node: Any) -> None:
    """Has a node take a copy of a value on the device."""
    inputs = reading.placeholders(draft.graph)
    with draft.graph.inserting_after(inputs[-1] if value in inputs else value):
        made = draft.graph.call_function(torch.ops.aten.clone.default, (value,))
    like = reading.value(value)
    with like.fake_mode:
        made.meta["val"] = torch.ops.aten.clone.default(like)
    node.replace_input_with(value, made)
