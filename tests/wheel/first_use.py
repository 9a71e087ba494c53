"""What a user does first with an installed wheel. tools/wheel.py runs it in a clean environment."""

from __future__ import annotations

import importlib.util
import sys

import torch
from torch import nn

import pygraph

CALLS = 6

assert importlib.util.find_spec("numpy") is None, "the environment is not clean: it has numpy"
assert pygraph.__file__.startswith(sys.prefix), f"not the wheel's: {pygraph.__file__}"

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4))
compiled = torch.compile(model, backend="pygraph", options={"device": "twin"})
with torch.no_grad():
    for call in range(CALLS):
        x = torch.randn(16, 8)
        torch.manual_seed(call)
        found = compiled(x)
        torch.manual_seed(call)
        assert torch.equal(found, model(x)), f"call {call} differs from eager's"

report = pygraph.report()
print(report)
(graph,) = report.graphs
assert graph.graphed, f"no graph: {graph.blame}"
assert graph.replays >= CALLS - 3, f"{graph.replays} of {CALLS} calls were replayed"
