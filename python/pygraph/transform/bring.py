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

from collections.abc import Collection, Iterable
from typing import Any

import torch

from pygraph.transform import crossing, expression, reading
from pygraph.transform.draft import (
    Draft,
    Part,
    copies_memory,
    is_blocking,
    is_random,
    kind,
    portable,
)
from pygraph.transform.expression import Expression

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
    if draft.generated and draft.staged:
        draft.drop_unneeded()
        _compute_in_call(draft)
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


def _compute_in_call(draft: Draft) -> None:
    """Has calls compute what they bring, where that is a few operations with numbers: then no front
    has to be called for it. It comes in the cell of one of the arguments that it follows from."""
    expressions = expression.of_numbers(draft.graph)
    in_front = _with_what_they_need(draft.staged)
    found = [each for each in draft.staged if each.op == "call_function" and each in expressions]
    for given in sorted(found, key=lambda each: len(expressions[each].arguments)):
        owner = _owner(draft, expressions[given].arguments, in_front)
        if owner is not None:
            _add_to_cell(draft, owner, expressions[given], draft.staged.pop(given))


def _owner(draft: Draft, arguments: Iterable[Any], in_front: Collection[Any]) -> Any:
    """The argument in whose cell a number comes that follows from `arguments`: None if there is
    none. All but one of them must come to the device anyway, for a call may be led past what leaves
    arguments out; and none may be needed on the host but to compute what is brought."""
    elsewhere = [each for each in arguments if each not in draft.staged]
    users = [user for each in arguments for user in each.users if user.op == "call_function"]
    if len(elsewhere) > 1 or not all(user in in_front for user in users):
        return None
    return next(iter(elsewhere or arguments), None)


def _add_to_cell(draft: Draft, owner: Any, added: Expression, cell: Any) -> None:
    """Has what takes `cell` take a part of the argument's own cell, which has its value first, if
    that is needed."""
    if owner not in draft.staged:
        draft.staged[owner] = draft.new_placeholder("device_cell", reading.value(cell))
        draft.computed[owner] = []
    whole = draft.staged[owner]
    if owner not in draft.computed:
        _take_part(draft, whole, whole, 0)
        draft.computed[owner] = [Expression((owner,))]
    _take_part(draft, cell, whole, len(draft.computed[owner]))
    draft.computed[owner].append(added)
    draft.graph.erase_node(cell)
    with draft.fake_mode:
        whole.meta["val"] = reading.value(whole).new_empty(len(draft.computed[owner]))


def _take_part(draft: Draft, cell: Any, whole: Any, index: int) -> None:
    with draft.graph.inserting_after(reading.placeholders(draft.graph)[-1]):
        part = draft.graph.call_function(torch.ops.aten.select.int, (whole, 0, index))
    part.meta["val"] = reading.value(cell)
    cell.replace_all_uses_with(part, lambda user: user is not part)


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
