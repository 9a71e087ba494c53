"""pygraph.explain(), on the twin: what is counted, what blocks, and what it concerns."""

from __future__ import annotations

import gc
import unittest.mock
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import pygraph
from pygraph import _engine
from pygraph.decide.culprits import CULPRITS
from pygraph.frontends.compile.explain import observed
from pygraph.planning import KINDS
from pygraph.runtime import kernels, registry

TWIN = {"device": "twin"}


@pytest.fixture(autouse=True)
def fresh(one_thread: None) -> Iterator[None]:
    torch._dynamo.reset()
    pygraph.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    _engine.twin_reset_faults()
    pygraph.reset()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


def test_a_whole_graph_has_no_blockers() -> None:
    found = pygraph.explain(Net(), torch.randn(4, 8), options=TWIN)
    assert (found.name, found.coverage, found.blockers) == ("Net", 1.0, [])
    assert (found.inside, found.outside, found.counted) == (3, 0, "calls of graphs")
    assert [graph.state for graph in found.report.graphs] == ["graphed"]
    assert found.build_ms > 0 and found.seconds > 0
    assert len(found.compiled) == 1 and "test_explain.py" in found.compiled[0]


def test_a_break_and_its_line_are_a_blocker_once() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()  # here
        return y.cos()

    with observed("all") as seen:
        for size in (4, 5):
            found = pygraph.explain(function, torch.randn(size), options=TWIN)
    (blocker,) = seen.explanation.blockers
    line = function.__code__.co_firstlineno + 2
    assert blocker.source == f"test_explain.py:{line}" and "# here" in (blocker.code or "")
    assert blocker.remedy and "graph_break" in blocker.what
    assert any(", again, for " in each for each in found.compiled), found.compiled
    assert len(found.report.graphs) == 2


def test_a_fallback_names_operator_line_and_remedy() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.masked_select(x, x > 0) * 2

    options = {**TWIN, "require": "any"}
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        unittest.mock.patch.object(CULPRITS, "worth_compiling", lambda outside: False),
    ):
        found = pygraph.explain(function, torch.randn(9), options=options)
    assert (found.inside, found.outside) == (0, 3)
    (blocker,) = found.blockers
    assert blocker.operator == "aten.masked_select.default"
    assert "masked_select(x, x > 0)" in (blocker.code or "")
    assert (blocker.source or "").endswith(f":{function.__code__.co_firstlineno + 1}")
    assert blocker.remedy == KINDS["data-dependent shape"].remedy


def test_an_operator_outside_is_named() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.masked_select(x * 3, x > 0) * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found = pygraph.explain(function, torch.randn(9), options=TWIN, calls=6)
    assert found.inside > 0
    assert "compiled once more with aten::masked_select outside" in str(found)


def test_only_graphs_that_were_called_are_shown() -> None:
    other = torch.compile(torch.sin, backend="pygraph", options=TWIN)
    fast = torch.compile(Net(), backend="pygraph", options=TWIN)
    for _ in range(3):
        other(torch.randn(4))
        fast(torch.randn(4, 8))
    found = pygraph.explain(fast, torch.randn(4, 8))
    (graph,) = found.report.graphs
    assert graph.constants == 2 and graph.calls == 10 and found.inside == 3
    with pytest.raises(ValueError, match="options are for a function that is not compiled yet"):
        pygraph.explain(fast, torch.randn(4, 8), options=TWIN)


def test_too_few_calls_are_a_note() -> None:
    found = pygraph.explain(Net(), torch.randn(4, 8), options={**TWIN, "capture_at": 20}, calls=1)
    assert found.outside == 3 and not found.blockers
    assert any("called too seldom" in note for note in found.notes)


def test_what_another_backend_compiles_has_no_graph() -> None:
    found = pygraph.explain(torch.compile(torch.sin, backend="eager"), torch.randn(4))
    assert not found.report.graphs and any("another backend" in each for each in found.notes)


def test_a_program_without_a_device_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    found = pygraph.explain(torch.sin, torch.randn(4), options={"compiler": "aot"})
    (blocker,) = found.blockers
    assert "no CUDA driver" in blocker.what or "finds no CUDA device" in blocker.what
    assert "'device': 'twin'" in blocker.remedy


def test_what_the_function_raises_is_raised() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        pygraph.explain(function, torch.randn(4), options=TWIN)
    with registry.kept() as kept:
        pass
    assert registry._keepers == [] and kept == []


def test_reports_outlive_their_graphs() -> None:
    with registry.kept() as kept:
        fast = torch.compile(torch.sin, backend="pygraph", options=TWIN)
        for _ in range(5):
            fast(torch.randn(8))
        del fast
        torch._dynamo.reset()
        gc.collect()
    assert not registry.report().graphs
    assert [(graph.calls, graph.replays) for graph in kept] == [(5, 3)]


def event(category: str, name: str, correlation: int, duration: float = 1.0) -> dict[str, Any]:
    return {
        "cat": category,
        "name": name,
        "ts": 0.0,
        "dur": duration,
        "args": {"correlation": correlation},
    }


def test_kernels_outside_of_graphs_are_listed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        event("cuda_runtime", "cudaGraphLaunch", 1),
        *(event("kernel", "inside", 1) for _ in range(6)),
        event("cuda_driver", "cuLaunchKernelEx", 2),
        event("kernel", "short", 2, 2.0),
        *(event("cuda_runtime", "cudaLaunchKernel", n) for n in (3, 4)),
        *(event("kernel", "long", n, 5.0) for n in (3, 4)),
    ]
    launched = kernels.summarize(events, 2)
    assert launched.outside == (("long", 1.0, 5.0), ("short", 0.5, 1.0))
    with observed("f") as seen:
        seen._take(launched)
    found = seen.explanation
    assert (found.counted, found.inside, found.outside) == ("kernels", 3.0, 1.5)
    assert [each.name for each in found.kernels_outside] == ["long", "short"]
    assert not any("are not counted" in note for note in found.notes)
