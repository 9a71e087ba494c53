"""Attention in training without dropout: its forward saves a random state that it never writes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import pygraph

BACK_ENDS = {
    "flash": (SDPBackend.FLASH_ATTENTION, torch.bfloat16),
    "CUTLASS": (SDPBackend.EFFICIENT_ATTENTION, torch.float32),
    "cuDNN": (SDPBackend.CUDNN_ATTENTION, torch.bfloat16),
}


class Attending(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixed = torch.nn.Linear(64, 192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.mixed(x).chunk(3, -1)
        )
        return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", BACK_ENDS)
def test_its_forward_and_backward_are_graphs(name: str, dynamic: bool) -> None:
    back_end, dtype = BACK_ENDS[name]

    def train(backend: str) -> list[torch.Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        module = Attending().to("cuda", dtype)
        fast = torch.compile(module, backend=backend, dynamic=dynamic)
        kept: list[torch.Tensor] = []
        with sdpa_kernel(back_end), torch.enable_grad():
            for step in range(8):
                # What is freed holds other values in each step: so does what nobody writes.
                torch.full((1 << 16,), step, dtype=torch.int64, device="cuda")
                length = 40 if not dynamic or step < 4 else 56
                module.zero_grad()
                result = fast(torch.randn(2, length, 64, device="cuda", dtype=dtype))
                result.square().sum().backward()
                assert module.mixed.weight.grad is not None
                kept += [result.detach(), module.mixed.weight.grad.clone()]
        return kept

    expected = train("inductor")
    pygraph.reset()
    found = train("pygraph")
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    graphs = pygraph.report().graphs
    assert len(graphs) == 2
    for graph in graphs:
        assert graph.state == "graphed", graph.blame
        assert graph.programs == (2 if dynamic else 1)
        assert graph.replays >= (3 if dynamic else 5), (graph.calls, graph.replays)
