"""What the GPU tests share."""

from __future__ import annotations

from typing import Any

import torch

import pygraph
from pygraph.reporting import GraphReport


class Mlp(torch.nn.Module):
    """Linear, ReLU, Linear: small, with scratch memory between."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = torch.nn.Linear(width, width)
        self.second = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def only_graph() -> GraphReport:
    """The report of the one compiled graph of the test."""
    graphs = pygraph.report().graphs
    assert len(graphs) == 1, [graph.name for graph in graphs]
    return graphs[0]


def assert_replays(*, copies: int | None = 0) -> GraphReport:
    """The one graph is proven and has replayed; no input was copied unless `copies` says so."""
    graph = only_graph()
    assert graph.state == "graphed", (graph.state, graph.reason)
    assert graph.proof == "bit-equal"
    assert graph.replays > 0
    if copies is not None:
        assert graph.copies == copies
    return graph


def assert_same(found: Any, expected: Any) -> None:
    """Equal up to rounding, and of the same form."""
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


def randn(*shape: int, **kwargs: Any) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", **kwargs)
