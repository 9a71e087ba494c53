"""Which of Inductor's graphs are launched before Dynamo has checked its guards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pygraph

pytestmark = pytest.mark.gpu


def report_of(model: Any, *given: torch.Tensor) -> Any:
    torch._dynamo.reset()
    pygraph.reset()
    compiled = torch.compile(model, backend="pygraph")
    with torch.no_grad():
        for _ in range(6):
            fresh = [each.clone() for each in given]
            torch.testing.assert_close(compiled(*fresh), model(*fresh), rtol=1e-3, atol=1e-3)
    (graph,) = pygraph.report().graphs
    assert graph.replays == 4, graph.blame
    return graph


def convolutions() -> torch.nn.Module:
    layers = (
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 3 * 3, 5),
    )
    return torch.nn.Sequential(*layers).cuda().eval()


def test_a_network_of_convolutions_is() -> None:
    assert report_of(convolutions(), torch.randn(2, 3, 8, 8, device="cuda")).early


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(64, 192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.inner(x).view(2, 16, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return torch.nn.functional.scaled_dot_product_attention(*parts)


def test_attention_is() -> None:
    assert report_of(Attention().cuda().eval(), torch.randn(2, 16, 64, device="cuda")).early


def test_one_operator_for_a_whole_layer_is() -> None:
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda().eval()
    assert report_of(layer, torch.randn(2, 16, 64, device="cuda")).early


def test_one_that_looks_up_an_embedding_is_not() -> None:
    layers = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 3)
    ids = torch.randint(50, (4, 6), device="cuda")
    assert not report_of(torch.nn.Sequential(*layers).cuda(), ids).early
