"""Constants that a program makes on the host are made on the device.

    scale = torch.tensor([1.0, 2.0])          # on the CPU
    y = x * scale.to(x.device)

What it matches: a value on the host that follows from no argument of the graph, and that something
on the device takes. It is computed while compiling, by the operators that would have computed it in
each call.

Why it is equivalent: these operators are pure and draw nothing, so every call would compute the
same bits. A tensor of equal elements becomes a `full` on the device; others are brought there once
and are an attribute of the graph's module. In a transformed graph nobody writes them: an operator
that writes a value of its own is not pure, and is left alone.

What it refuses: values that are random, that depend on sizes that vary, that custom operators or
operators of dynamic shape make, or that stand in tensors without memory. Those that are NaN are
never made by `full`, which has but one of all NaNs.
"""

from __future__ import annotations

from typing import Any

import torch

from pygraph.operators.known import known
from pygraph.operators.table import Property
from pygraph.runtime.crossing import brought
from pygraph.torch_private.dispatch import disable_current_modes, tree_map
from pygraph.torch_private.fake_tensors import FakeTensor
from pygraph.transform import crossing, reading
from pygraph.transform.draft import Draft, is_random

NAME = "fold"


def apply(draft: Draft) -> None:
    constants = _constant(draft)
    for node in list(draft.in_body()):
        for given in list(crossing.brought_by(draft, node)):
            if given not in constants:
                continue
            if given not in draft.folded:
                with disable_current_modes(), torch.no_grad():
                    found = _compute(draft, given)
                    element = None if found is None else _only_element(found)
                if found is None:
                    constants.discard(given)
                    continue
                draft.folded[given] = _stand_in(draft, given, found, element)
                what = f"{_described(found)} that is made on the host stands on the device"
                draft.note(NAME, what, given)
            crossing.replace(node, given, draft.folded[given])


def _constant(draft: Draft) -> set[Any]:
    """The nodes on the host whose values follow from nothing that varies."""
    found: set[Any] = set()
    for node in draft.graph.nodes:
        if node.op == "get_attr":
            # Only what a graph is lent as a constant is one: other tensors may be written.
            lent = all(known(user.target, Property.LIFTS) for user in node.users)
            if lent and isinstance(reading.value(node), torch.Tensor) and reading.on_host(node):
                found.add(node)
        elif (
            draft.computes_on_host(node)
            and not is_random(node)
            and all(each in found for each in node.all_input_nodes)
        ):
            found.add(node)
    return found


def _compute(draft: Draft, wanted: Any) -> torch.Tensor | None:
    """The value of a constant; None where it cannot be had."""
    needed: list[Any] = []
    pending, seen = [wanted], {wanted}
    while pending:
        needed.append(pending.pop())
        new = [each for each in needed[-1].all_input_nodes if each not in seen]
        seen.update(new)
        pending += new
    order = {node: number for number, node in enumerate(draft.graph.nodes)}
    values: dict[Any, Any] = {}
    for node in sorted(needed, key=order.__getitem__):
        if node.op == "get_attr":
            values[node] = _attribute(draft.module, node.target)
            if isinstance(values[node], FakeTensor):
                return None
            continue
        args, kwargs = tree_map(
            lambda leaf: values[leaf] if isinstance(leaf, torch.fx.Node) else leaf,
            (tuple(node.args), dict(node.kwargs)),
        )
        values[node] = node.target(*args, **kwargs)
    found = values[wanted]
    like = reading.value(wanted)
    same = isinstance(found, torch.Tensor) and (found.shape, found.stride(), found.dtype) == (
        like.shape,
        like.stride(),
        like.dtype,
    )
    return found if same and not reading.overlaps_itself(like) else None


def _attribute(module: Any, name: str) -> Any:
    for each in name.split("."):
        module = getattr(module, each)
    return module.detach() if isinstance(module, torch.Tensor) else module


def _stand_in(draft: Draft, node: Any, found: torch.Tensor, element: Any) -> Any:
    like = reading.moved(reading.value(node), draft.device)
    with draft.graph.inserting_after(reading.placeholders(draft.graph)[-1]):
        if element is None:
            name = f"_folded_{len(draft.folded)}"
            with disable_current_modes(), torch.no_grad():
                constant = brought(torch.atleast_1d(found), draft.home)
            draft.module.register_buffer(name, constant, persistent=False)
            made = _lifted(draft.graph, name)
            if not found.dim():
                # Inductor takes an attribute without dimensions for a number, which it cannot lend.
                made.meta.update(val=like.reshape(1))
                with draft.graph.inserting_after(made):
                    made = draft.graph.call_function(torch.ops.aten.view.default, (made, []))
        else:
            made = draft.graph.call_function(
                torch.ops.aten.full.default,
                (list(found.shape), element),
                {"dtype": found.dtype, "device": draft.device, "pin_memory": False},
            )
    made.meta.update(val=like, stack_trace=node.meta.get("stack_trace"))
    return made


def _lifted(graph: torch.fx.Graph, name: str) -> Any:
    """The attribute in a graph, as torch lends one its constants: what runs it without memory takes
    no other tensors that have some."""
    attribute = graph.get_attr(name)
    with graph.inserting_after(attribute):
        return graph.call_function(torch.ops.aten.lift_fresh.default, (attribute,))


def _only_element(found: torch.Tensor) -> Any:
    """Of a tensor of equal bits, what `full` makes it of; None for others."""
    simple = found.dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)
    if not simple or not found.numel() or not found.is_contiguous():
        return None
    first = found.reshape(-1)[:1]
    raw, pattern = found.reshape(-1).view(torch.uint8), first.view(torch.uint8)
    if first.isnan().any() or not torch.equal(raw, pattern.repeat(found.numel())):
        return None
    return first.item()


def _described(found: torch.Tensor) -> str:
    if not found.dim():
        return "a number"
    sizes = " x ".join(map(str, found.shape))
    return f"a constant of {sizes} elements"
