"""Values of the host come to the graph through device cells and staging memory.

    def forward(self, x, sigma: float, mask):   # sigma differs in each call, mask is on the CPU
        return x * (1 - sigma) + mask.to(x.device)

What it matches: a number or tensor of the host that something on the device takes, be it an
argument of the graph (a Python number that varies is one), or computed on the host from such
arguments. It becomes an argument of the body on the device, and what the host computes for it moves
to the front. A call copies the bytes of all such arguments to the device at once, in front of the
launch (src/torch/staging.h). So one program serves any values, and nothing cuts the graph.

Why it is equivalent: the body gets the bits that it would have read on the host or copied, from the
same operators. The host computes them earlier in the call than before, but pure operators do not
notice, and what writes an argument on the host runs behind. The bytes are copied in the call, so
the caller may write or free its tensor as soon as the call has returned.

A copy of an argument from the device is such a value, too: what the host makes of it may come back.

What it refuses: values that depend on what the device computes; that operators make which are not
pure, or of dynamic shape; that are random, unless all that is drawn on the host moves to the front,
in its order; expanded tensors; tensors of the program that are no arguments; and uses of which
nothing is known (crossing.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from pygraph.transform import crossing, reading
from pygraph.transform.draft import (
    Draft,
    Part,
    copies_memory,
    is_blocking,
    is_random,
    kind,
    portable,
)

NAME = "bring"
#: From fp64, by host and device.
_ROUNDED_ALIKE = (torch.float32, torch.float64)
_CONVERT = torch.ops.prims.convert_element_type.default


def apply(draft: Draft) -> None:
    ready, converted = _ready(draft), dict[Any, Any]()
    for node in list(draft.in_body()):
        for given in list(crossing.brought_by(draft, node)):
            expanded = reading.overlaps_itself(reading.value(given))
            if given not in ready or expanded or given.op == "get_attr":
                continue
            crossing.replace(node, given, _on_device(draft, given, ready, converted))
    _move_to_front(draft)


def _ready(draft: Draft) -> set[Any]:
    """The values of the host that follow from the arguments alone."""
    found: set[Any] = set()
    for node in draft.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            if reading.on_host(node):
                found.add(node)
        elif (
            draft.computes_on_host(node)
            and all(each in found or portable(each) for each in node.all_input_nodes)
        ) or _copies_argument(draft, node):
            found.add(node)
    drawn = {node for node in draft.graph.nodes if node.op == "call_function" and is_random(node)}
    on_host = {node for node in drawn if reading.on_host(node)}
    return found if on_host <= found else _without(draft, found, on_host)


def _copies_argument(draft: Draft, node: Any) -> bool:
    """Whether a node copies an argument of the graph from the device, and waits for it: that may as
    well be done in front."""
    return (
        kind(node) == "device to host"
        and draft.stays(node)
        and copies_memory(node)
        and is_blocking(node)
        and node.all_input_nodes[0].op == "placeholder"
    )


def _without(draft: Draft, nodes: set[Any], refused: set[Any]) -> set[Any]:
    """Those that do not follow from any of `refused`."""
    left: set[Any] = set()
    for node in draft.graph.nodes:
        follows = any(each in nodes and each not in left for each in node.all_input_nodes)
        if node in nodes and node not in refused and not follows:
            left.add(node)
    return left


def _on_device(draft: Draft, given: Any, ready: set[Any], converted: dict[Any, Any]) -> Any:
    """What stands for a value in the body: its cell; of a number that is rounded from fp64 to fp32,
    as Python's numbers are for most graphs, the cell of that, which the device rounds alike."""
    if given in converted:
        return converted[given]
    source = _rounded(given)
    if source not in ready:
        if given not in draft.staged:
            draft.staged[given] = _cell(draft, given)
        return draft.staged[given]
    cell = _on_device(draft, source, ready, converted)
    behind = cell if cell.op == "call_function" else reading.placeholders(draft.graph)[-1]
    with draft.graph.inserting_after(behind):
        made = draft.graph.call_function(_CONVERT, (cell, reading.value(given).dtype))
    made.meta.update(
        val=reading.moved(reading.value(given), draft.device),
        stack_trace=given.meta.get("stack_trace"),
    )
    converted[given] = made
    return made


def _rounded(node: Any) -> Any:
    """The number in fp64 that a node makes one in fp32 of; None for other nodes."""
    if node.op != "call_function" or node.target is not _CONVERT:
        return None
    source, made = node.args[0], reading.value(node)
    rounds = reading.value(source).dtype == torch.float64 and made.dtype in _ROUNDED_ALIKE
    return source if rounds and not made.dim() else None


def _cell(draft: Draft, given: Any) -> Any:
    like = reading.value(given)
    what = "a number" if not like.dim() else f"a tensor of {' x '.join(map(str, like.shape))}"
    how = "" if given.op == "placeholder" else ", computed in front of the graph,"
    draft.note(NAME, f"{what} of the host{how} is brought to the device by each call", given)
    return draft.new_placeholder("device_cell", reading.moved(like, draft.device))


def _move_to_front(draft: Draft) -> None:
    needed = _with_what_they_need(draft.staged)
    if any(map(is_random, needed)):
        # What is drawn on the host is drawn in its order, so all of it comes first.
        drawn = (node for node in draft.in_body() if reading.on_host(node) and is_random(node))
        needed |= _with_what_they_need(drawn)
    draft.parts.update(dict.fromkeys(needed, Part.FRONT))


def _with_what_they_need(values: Iterable[Any]) -> set[Any]:
    """The nodes that compute these values on the host."""
    found: set[Any] = set()
    pending = list(values)
    while pending:
        node = pending.pop()
        if node.op == "call_function" and not reading.is_number(node) and node not in found:
            found.add(node)
            pending += node.all_input_nodes
    return found
