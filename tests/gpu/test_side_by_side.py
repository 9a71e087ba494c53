"""Nodes that run side by side on a GPU: right, in bounded memory, and no lanes without an order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pygraph
from pygraph.capturing import observing
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


def expect_in_a_row(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    report = pygraph.report().graphs[-1]
    assert all(map(torch.equal, found, expected))
    assert report.lanes == 1 and report.state == "graphed"


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


def test_an_order_that_is_missing_is_found_by_the_proof(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody writes, it is said, so nothing waits."""
    model = net()
    expected = results(model, "off")
    monkeypatch.setattr(accesses, "writing", lambda tensor, *_: accesses.reading(tensor))
    monkeypatch.setattr(observing, "fault", lambda *_: None)
    expect_in_a_row(results(model, 16), expected)
    assert "lanes a proof failed" in caplog.text


def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel in five is said to write nothing."""
    real, calls = accesses.writing, [0]

    def sometimes(tensor: torch.Tensor, *made: bool) -> Any:
        calls[0] += 1
        return accesses.reading(tensor) if calls[0] % 5 == 0 else real(tensor, *made)

    monkeypatch.setattr(accesses, "writing", sometimes)


def test_an_order_that_is_missing_shows_in_delays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without them the order is often right."""
    model = net()
    expected = results(model, "off")
    seldom(monkeypatch)
    monkeypatch.setattr(observing, "fault", lambda *_: None)
    expect_in_a_row(results(model, 4), expected)
    assert "lanes a proof failed" in caplog.text


def test_what_nobody_has_said_to_be_written_is_found(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = net()
    expected = results(model, "off")
    seldom(monkeypatch)
    expect_in_a_row(results(model, 4), expected)
    assert "writes memory that it is not said to write" in caplog.text


class Shapes(nn.Module):
    """Of `cosine` only the shape is looked at in the end: what is drawn may take its place. `rows`
    is laid out as every second column, and copied with the others."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cosine = x.cos()
        sine = cosine.sin()
        rows = torch.slice_scatter(x.exp()[..., ::2], sine[1:3, ::2], 0, 1, 3)
        return sine, rows, torch.randn_like(cosine) * x


def test_places_of_values_that_are_gone_and_gaps_may_be_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch._dynamo.reset()
    pygraph.reset()
    options = {"select": "always", "parallel": 2, "compiler": "aot"}
    made = torch.compile(Shapes(), backend="pygraph", options=options)
    with torch.no_grad():
        for seed in range(4):
            x = torch.randn(4, 64, device="cuda")
            torch.manual_seed(seed)
            found = made(x)
            torch.manual_seed(seed)
            assert all(map(torch.equal, found, Shapes()(x)))
    assert pygraph.report().graphs[-1].lanes == 2
    assert "not said to write" not in caplog.text


def test_clocks_choose_lanes_for_branches() -> None:
    """Four branches of short kernels: more than one lane is faster on any GPU."""
    model = net()
    expected = results(model, "off")
    found = results(model, "auto")
    report = pygraph.report().graphs[-1]
    assert all(map(torch.equal, found, expected))
    assert report.lanes > 1 and report.proof_passed
    (chosen,) = [each for each in report.selection if each.what == "lanes"]
    assert chosen.graph and chosen.with_us["latency"] < chosen.without_us["latency"]
    assert chosen.with_us["pipelined"] <= chosen.without_us["pipelined"]


class Steps(nn.Module):
    """A chain with two large kernels that do not depend on each other: each fills the GPU."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ x, y @ y


def test_clocks_leave_kernels_that_fill_the_gpu_in_a_row() -> None:
    torch._dynamo.reset()
    pygraph.reset()
    options = {"select": "always", "parallel": "auto"}
    made = torch.compile(Steps(), backend="pygraph", options=options)
    with torch.no_grad():
        for _ in range(4):
            x, y = (torch.randn(4096, 4096, device="cuda").half() for _ in range(2))
            assert all(map(torch.equal, made(x, y), Steps()(x, y)))
    assert pygraph.report().graphs[-1].lanes == 1


def test_a_state_that_moves_on_is_where_it_would_be() -> None:
    """Clocks and observation run the graph many times."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("at", torch.zeros((), dtype=torch.long))
            self.register_buffer("seen", torch.zeros(8, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.index_copy_(0, self.at.view(1), x.view(1, -1))  # the ninth would raise
            self.at.add_(1)
            return torch.stack([(self.seen * n).sum(0).cos() for n in range(4)])

    torch._dynamo.reset()
    pygraph.reset()
    model, expected = Counting().cuda(), Counting().cuda()
    options = {"select": "always", "parallel": "auto"}
    made = torch.compile(model, backend="pygraph", options=options)
    with torch.no_grad():
        for _ in range(8):
            x = torch.randn(64, device="cuda")
            torch.testing.assert_close(made(x), expected(x))
    torch.cuda.synchronize()
    assert int(model.at) == 8 and torch.equal(model.seen, expected.seen)
