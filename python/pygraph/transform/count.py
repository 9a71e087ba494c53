"""Integers that only take part in arithmetic become device cells.

    def forward(self, x, step: int):   # step differs in each call
        return x * step + 1

What it matches: an integer among the graph's arguments that operators by element take as a number,
and that nothing else depends on: no size, no stride, no other number. Each value of it would have a
program of its own, as sizes have. It becomes an argument of the body without dimensions, of 64
bits, that a call brings to the device like a tensor of the host (bring.py).

Why it is equivalent: the operator computes in the type that its tensors have, of which an integer
changes nothing, and a tensor without dimensions changes nothing, either; generated code converts
both to that type in the same way.

What it refuses: operators without an overload for a tensor in that place, tensors of bool or
without dimensions, whose type an integer does change, and torch's own kernels, which are not
generated.
"""

from __future__ import annotations

from typing import Any

import torch

from pygraph.torch_private.dispatch import OpOverload, schema
from pygraph.transform import reading
from pygraph.transform.draft import Draft

NAME = "count"


def apply(draft: Draft) -> None:
    if not draft.generated:
        return
    for node in reading.placeholders(draft.graph):
        if _only_counts(draft, node):
            cell = draft.new_placeholder("device_cell", _cell_like(draft))
            draft.staged[node] = cell
            for user in list(node.users):
                draft.note(NAME, "an integer is brought to the device by each call", user)
                user.replace_input_with(node, cell)


def _only_counts(draft: Draft, node: Any) -> bool:
    if not isinstance(reading.value(node), torch.SymInt) or not node.users:
        return False
    own = reading.symbols(node)
    others = (each for each in draft.graph.nodes if each is not node)
    return (
        len(own) == 1
        and all(_takes_tensor(user, node) for user in node.users)
        and not any(own & reading.symbols(each) for each in others)
    )


def _takes_tensor(user: Any, number: Any) -> bool:
    """Whether an operator takes a tensor in place of a number, and computes in the same type."""
    if not isinstance(user.target, OpOverload) or torch.Tag.pointwise not in user.target.tags:
        return False
    places = [index for index, each in enumerate(user.args) if each is number]
    if not places or number in user.kwargs.values():
        return False
    tensors = [each for each in user.all_input_nodes if each is not number]
    taken = all(str(schema(user.target).arguments[index].type) == "Tensor" for index in places)
    return taken and any(map(_has_its_type, tensors))


def _has_its_type(node: Any) -> bool:
    """Whether an integer does not change the type that an operator computes with this tensor in."""
    made = reading.value(node)
    return isinstance(made, torch.Tensor) and made.dim() > 0 and made.dtype != torch.bool


def _cell_like(draft: Draft) -> torch.Tensor:
    sample = next(each for node in draft.graph.nodes for each in reading.tensors(node))
    with sample.fake_mode:
        return torch.empty((), dtype=torch.int64, device=draft.device)
