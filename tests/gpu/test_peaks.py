"""Backwards that are cut into parts, for the sake of the peak of the memory that they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import randn
from torch import nn

import pygraph
from pygraph.capturing.cuda import Cuda

Compile = Callable[..., Any]

LAYERS, WIDTH, ROWS = 24, 512, 1024
ROOM = 256 << 20  #: more than the model takes, with all that it saves


def test_the_slack_is_of_what_is_really_allocated(
    compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a capture torch counts 20 MiB for a tensor of 2, of each that is made: a share of that
    would be more than the share of all that this model has."""
    slacks: list[int] = []
    slack = Cuda.peak_slack
    monkeypatch.setattr(Cuda, "peak_slack", lambda self: slacks.append(slack(self)) or slacks[-1])
    layers = (layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))
    model = nn.Sequential(*layers).cuda()
    allowed = max(2 << 20, int(0.005 * (torch.cuda.memory_allocated() + ROOM)))
    fast = compiled(model)
    with torch.enable_grad():
        for _ in range(5):
            model.zero_grad()
            fast(randn(ROWS, WIDTH)).sum().backward()
    graphs = pygraph.report().graphs
    assert [(graph.state, graph.replays > 0) for graph in graphs] == [("graphed", True)] * 2
    assert slacks and max(slacks) <= allowed
