"""Autograd's graph of a capture, kept to be run on other tensors: a backward as a function.

Its nodes hold numbers in place of saved tensors (saving.py), so it keeps no memory, and it may run
on real tensors and in captures, any number of times. Since it was made in a capture, its nodes know
the stream that captures are made on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge

from pygraph.capturing.device import CaptureFailed
from pygraph.frontends.callable.saving import Table
from pygraph.frontends.callable.structure import NotDescribed, Tree
from pygraph.frontends.callable.watching import backwards_here

#: Nodes of torch's own beside those that it generates for operators, which save tensors as
#: autograd does and hold no others. They are called torch::autograd::...
_OWN_NODES = ("AccumulateGrad", "CopySlices", "CopyBackwards", "UndefinedGrad")


class KeptGraph:
    """One graph of autograd's. Runs from several threads at a time, too."""

    def __init__(
        self,
        roots: Sequence[GradientEdge],
        table: Table,
        leaf_of: Callable[[torch.Tensor], int | None],
    ) -> None:
        """`roots`: where backwards begin. `leaf_of`: the number of the leaf that a tensor stands
        for. Raises CaptureFailed for a graph that holds more than numbers."""
        self._roots = list(roots)
        self._table = table
        self._ends: list[GradientEdge] = []
        self._leaf_of_end: list[int] = []
        for node in _nodes(roots):
            _require_numbers_only(node)
            if node.name() == "torch::autograd::AccumulateGrad":
                leaf = leaf_of(node.variable)
                if leaf is None:
                    raise CaptureFailed("a tensor that it makes itself requires grad")
                self._ends.append(GradientEdge(node, 0))
                self._leaf_of_end.append(leaf)
        #: The leaves that gradients are for.
        self.leaves = sorted(set(self._leaf_of_end))

    def run(
        self, saved: list[torch.Tensor], gradients: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """The gradients of `leaves`. `saved`: what autograd has saved, by number; `gradients`: one
        for each root, or None."""
        given = [
            (root, each)
            for root, each in zip(self._roots, gradients, strict=True)
            if each is not None
        ]
        before, self._table.tensors = self._table.tensors, saved
        try:
            with backwards_here():
                found = torch.autograd.grad(
                    [root for root, _ in given],
                    self._ends,
                    [each for _, each in given],
                    retain_graph=True,
                    allow_unused=True,
                )
        finally:
            self._table.tensors = before
        summed: dict[int, torch.Tensor | None] = dict.fromkeys(self.leaves)
        for leaf, each in zip(self._leaf_of_end, found, strict=True):
            if each is not None:
                so_far = summed[leaf]
                summed[leaf] = each if so_far is None else so_far + each
        return list(summed.values())


def _nodes(roots: Sequence[GradientEdge]) -> Iterator[Any]:
    waiting, seen = [root.node for root in roots], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [before for before, _ in node.next_functions]


def _require_numbers_only(node: Any) -> None:
    if isinstance(node, BackwardCFunction):
        held = Tree(frozenset(), every=True)
        try:
            held.add_root("ctx", vars(node))
        except NotDescribed as error:
            raise CaptureFailed(f"its {node.name()} keeps more than numbers: {error}") from None
        if held.leaves:
            where = held.path(held.leaf_places[0]).replace("ctx['", "ctx.").replace("']", "")
            raise CaptureFailed(
                f"its {node.name()} keeps a tensor in {where}; needed: ctx.save_for_backward"
            )
        return
    space, _, name = node.name().rpartition("::")
    if space and not (space == "torch::autograd" and name in _OWN_NODES):
        raise CaptureFailed(f"its backward has a {node.name()}, which may keep tensors unseen")
