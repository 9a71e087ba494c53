"""Where values go from the host to the device in a graph, and in which ways they may.

Two kinds of nodes on the device take a value of the host: one that copies it there, and one that
reads it as it computes. Either can be given a tensor of the device in its place. For the second
that is the same if the value is an index, or what is written into another tensor; or if it is a
number and the operator computes by element, since a tensor without dimensions has the same part in
type promotion wherever it is. But only in generated code, which computes from its value alone:
torch's own kernels take a number on the host otherwise, and divide by it by multiplying with its
reciprocal, for instance (aten/src/ATen/native/cuda/BinaryDivTrueKernel.cu).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from pygraph.operators.known import known
from pygraph.operators.table import FOR_EACH, Property
from pygraph.torch_private.dispatch import OpOverload
from pygraph.transform import reading
from pygraph.transform.draft import Draft, copies_memory, kind


def brought_by(draft: Draft, node: Any) -> Iterator[Any]:
    """The values of the host that a node on the device takes, and may as well be given there."""
    obstacle = kind(node)
    if obstacle == "host to device" and copies_memory(node):
        (given,) = node.all_input_nodes
        if _keeps_layout(given, node):
            yield given
    elif obstacle in ("host to device", "cpu input") and reading.on_device(node):
        for given in node.all_input_nodes:
            if _is_tensor_on_host(given) and _may_be_read(draft, given, node):
                yield given


def replace(node: Any, given: Any, stand_in: Any) -> None:
    """Has a node take `stand_in`, on the device, in place of a value of the host. One that only
    copies it there is not needed any more."""
    if copies_memory(node):
        node.replace_all_uses_with(stand_in)
        node.graph.erase_node(node)
    else:
        node.replace_input_with(given, stand_in)


def _keeps_layout(given: Any, made: Any) -> bool:
    return reading.same_layout(reading.value(given), reading.value(made))


def _is_tensor_on_host(node: Any) -> bool:
    return isinstance(reading.value(node), torch.Tensor) and reading.on_host(node)


def _may_be_read(draft: Draft, given: Any, node: Any) -> bool:
    if not isinstance(node.target, OpOverload) or node.target.namespace not in ("aten", "prims"):
        return False
    if _is_destination(given, node):
        return False
    if known(node.target, Property.TAKES_FROM_HOST):
        return True
    by_element = torch.Tag.pointwise in node.target.tags
    for_each = node.target.overloadpacket.__name__.startswith(FOR_EACH)
    return draft.generated and not reading.value(given).dim() and (by_element or for_each)


def _is_destination(given: Any, node: Any) -> bool:
    """Whether a node writes into a value of the host, or makes its result of it."""
    first = node.args[0] if node.args else None
    return first is given and known(node.target, Property.TAKES_FROM_HOST)
