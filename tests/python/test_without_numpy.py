"""NumPy is no dependency of PyGraph, nor of torch: all works where it cannot be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pygraph.torch_private import support

#: As where it is not installed, for torch too.
_WITHOUT = "import sys; sys.modules['numpy'] = None\n"

_ON_THE_TWIN = """
import torch, pygraph

def function(x, weight):
    hidden = torch.nn.functional.dropout(torch.relu(x @ weight), 0.5)
    return hidden + torch.rand(4), hidden * torch.randn_like(hidden)

def same(left, right):
    return all(torch.equal(*pair) for pair in zip(left, right, strict=True))

with torch.no_grad():
    compiled = torch.compile(function, backend="pygraph", options={"device": "twin"})
    for _ in range(4):
        given = torch.randn(4, 4), torch.randn(4, 4)
        state = torch.random.get_rng_state()
        found = compiled(*given)
        torch.random.set_rng_state(state)
        assert same(found, function(*given))

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
trained = torch.compile(model, backend="pygraph", options={"device": "twin"})
for _ in range(4):
    trained(torch.randn(4, 4)).sum().backward()

graphs = pygraph.report().graphs
assert len(graphs) == 3 and all(graph.replays == 2 for graph in graphs), pygraph.report()
assert pygraph.plan(model, torch.randn(4, 4), training=True).error is None
"""


@pytest.mark.skipif(support.twin_problem() is not None, reason="the twin cannot be used")
@pytest.mark.parametrize(
    "code",
    [_ON_THE_TWIN, "from pygraph.cli import main\nmain()"],
    ids=["twin", "demo"],
)
def test_numpy_is_not_needed(code: str, tmp_path: Path) -> None:
    demo = ["demo", "--models", "mlp-1", "--twin-model", "lstm", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT + code, *demo], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
