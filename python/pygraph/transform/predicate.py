"""Branches of torch.cond that compute element by element are both computed, and one is chosen.

    y = torch.cond(x.sum() > 0, lambda y: y + 0.25, lambda y: 0.5 - y, (y,))

What it matches: a cond by a tensor, both of whose branches consist of operators by element and of
views, with results of the same types, sizes and strides. The host would wait for the condition, and
Inductor keeps all of the graph out of CUDA graphs for it. Compiled together the branches are one
kernel or two, which takes less time than the wait. (Compilers call it if-conversion.)

Why it is equivalent: pure operators do no harm where they are not asked for, and each element of a
result is one branch's. In a training graph the branches of the backward are branches of a cond of
its own. What Inductor fuses a branch with may be rounded once where it was rounded twice, as
wherever it fuses two operators.

What it refuses: branches that write, draw, reduce, multiply matrices, index by data or call
operators of the program's own; conditions that are numbers on the host; results that are no
tensors, or of different layouts.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from pygraph.torch_private.dispatch import OpOverload
from pygraph.torch_private.fake_tensors import known_true
from pygraph.transform import reading
from pygraph.transform.draft import Draft, is_pure, is_random

NAME = "predicate"

_COND = torch.ops.higher_order.cond


def apply(draft: Draft) -> None:
    for node in list(draft.in_body()):
        if node.target is _COND and _is_simple(draft, node):
            draft.note(NAME, "both branches of a cond are computed, and one is chosen", node)
            _choose(draft, node)


def _is_simple(draft: Draft, node: Any) -> bool:
    condition, *branches, operands = node.args
    asked = reading.value(condition) if isinstance(condition, torch.fx.Node) else None
    if not isinstance(asked, torch.Tensor) or asked.dtype != torch.bool or asked.numel() != 1:
        return False
    graphs = [_graph(draft, each) for each in branches]
    return (
        all(len(reading.placeholders(each)) == len(operands) for each in graphs)
        and all(_computes_by_element(each) for graph in graphs for each in graph.nodes)
        and _returns_alike(*map(reading.results, graphs))
        and all(user.target is operator.getitem for user in node.users)
    )


def _graph(draft: Draft, branch: Any) -> torch.fx.Graph:
    graph: torch.fx.Graph = getattr(draft.module, branch.target).graph
    return graph


def _computes_by_element(node: Any) -> bool:
    """Whether it does, or only looks at memory in another way."""
    if node.op in ("placeholder", "output"):
        return True
    target = node.target
    return (
        node.op == "call_function"
        and isinstance(target, OpOverload)
        and is_pure(node)
        and not is_random(node)
        and (torch.Tag.pointwise in target.tags or bool(target.is_view))
    )


def _returns_alike(ours: list[Any], theirs: list[Any]) -> bool:
    pairs = list(zip(ours, theirs, strict=False))
    if len(ours) != len(theirs) or not all(isinstance(e, torch.fx.Node) for p in pairs for e in p):
        return False
    values = [(reading.value(one), reading.value(other)) for one, other in pairs]
    return all(
        isinstance(one, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and one.dtype == other.dtype
        and one.dim() == other.dim()
        and all(known_true(a == b) for a, b in zip(one.shape, other.shape, strict=True))
        and reading.same_layout(one, other)
        and reading.is_dense(one)
        for one, other in values
    )


def _choose(draft: Draft, node: Any) -> None:
    condition, *branches, operands = node.args
    graph = draft.graph
    with graph.inserting_before(node):
        ours, theirs = [_inlined(graph, _graph(draft, each), operands) for each in branches]
    asked = draft.emit(node, torch.ops.aten.view.default, condition, [])
    chosen = [
        draft.emit(node, torch.ops.aten.where.self, asked, one, other)
        for one, other in zip(ours, theirs, strict=True)
    ]
    for user in list(node.users):
        user.replace_all_uses_with(chosen[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)


def _inlined(graph: torch.fx.Graph, branch: torch.fx.Graph, operands: Any) -> list[Any]:
    """What a branch returns, computed in the graph around it."""
    made = dict(zip(reading.placeholders(branch), operands, strict=True))
    for node in branch.nodes:
        if node.op == "call_function":
            made[node] = graph.node_copy(node, made.__getitem__)
    return [made[each] for each in reading.results(branch)]
