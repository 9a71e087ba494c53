"""Nodes that run side by side on a GPU: right, in bounded memory, and no lanes without an order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pygraph
from pygraph.operators import accesses


class Block(nn.Module):
    """As in Inception: four branches of convolutions, whose results are channels of one tensor."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [
                conv(channels, 32, 1),
                nn.Sequential(conv(channels, 24, 1), conv(24, 32, 5)),
                nn.Sequential(conv(channels, 32, 1), conv(32, 48, 3), conv(48, 32, 3)),
                nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(channels, 32, 1)),
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def conv(given: int, made: int, size: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(given, made, size, padding=size // 2, bias=False), nn.BatchNorm2d(made), nn.ReLU()
    )


def net() -> nn.Module:
    torch.manual_seed(0)
    blocks = [Block(16), *(Block(128) for _ in range(4))]
    return nn.Sequential(*blocks).eval().cuda()


def results(model: nn.Module, parallel: Any) -> list[torch.Tensor]:
    torch._dynamo.reset()
    pygraph.reset()
    torch.manual_seed(1)
    options = {"select": "always", "parallel": parallel}
    made = torch.compile(model, backend="pygraph", options=options)
    return [made(torch.randn(1, 16, 28, 28, device="cuda")).clone() for _ in range(6)]


@pytest.mark.parametrize("parallel", [2, 4, 16])
def test_branches_run_side_by_side(parallel: int) -> None:
    model = net()
    expected = results(model, "off")
    serial = pygraph.report().graphs[-1]
    found = results(model, parallel)
    report = pygraph.report().graphs[-1]
    assert all(map(torch.equal, found, expected))
    assert 1 < report.lanes <= parallel and report.proof_passed
    assert report.arena_bytes <= max(1.05 * serial.arena_bytes, 2 << 20)


def test_an_order_that_is_missing_is_found_by_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes, it is said, so nothing waits."""
    model = net()
    expected = results(model, "off")
    monkeypatch.setattr(accesses, "writing", accesses.reading)
    found = results(model, 16)
    report = pygraph.report().graphs[-1]
    assert all(map(torch.equal, found, expected))
    assert report.lanes == 1 and report.state == "graphed"


def test_an_order_that_is_missing_shows_in_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel in five is said to write nothing. Without delays the order is often right."""
    model = net()
    expected = results(model, "off")
    real, calls = accesses.writing, [0]

    def sometimes(tensor: torch.Tensor) -> Any:
        calls[0] += 1
        return accesses.reading(tensor) if calls[0] % 5 == 0 else real(tensor)

    monkeypatch.setattr(accesses, "writing", sometimes)
    found = results(model, 4)
    report = pygraph.report().graphs[-1]
    assert all(map(torch.equal, found, expected))
    assert report.lanes == 1 and report.state == "graphed"
