"""The operator that a failed capture names is the one that it failed in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pygraph import _engine
from pygraph.capturing import hold, pipeline
from pygraph.capturing.device import CaptureFailed
from pygraph.capturing.record import Capture


class Nodes:
    """A capture that has a node more at each look, until it becomes invalid."""

    def __init__(self) -> None:
        self.count = 0
        self.valid = True

    def __call__(self) -> int:
        self.count += 1
        return self.count if self.valid else -1


def test_an_operator_that_raises_is_under_way() -> None:
    with hold.hold_buffers((), [], Nodes()) as mode:
        x = torch.ones(2, 3).relu()
        with pytest.raises(RuntimeError):
            torch.mm(x, x)
    assert mode.under_way == "aten.mm.default"


def test_what_fails_between_operators_names_none() -> None:
    with hold.hold_buffers((), [], Nodes()) as mode:
        torch.ones(2).relu()
    assert mode.under_way is None
    names = {name for _, _, name in mode.launched}
    assert names >= {"aten.ones.default", "aten.relu.default"}


def test_an_operator_that_silently_invalidates_the_capture_is_named() -> None:
    nodes = Nodes()
    with torch.library._scoped_library("pygraph_quiet", "DEF") as library:
        library.define("stop(Tensor x) -> Tensor")

        def stop(x: torch.Tensor) -> torch.Tensor:
            nodes.valid = False
            return x.clone()

        library.impl("stop", stop, "CPU")
        with hold.hold_buffers((), [], nodes), pytest.raises(CaptureFailed) as failed:
            x = torch.ones(2)
            torch.ops.pygraph_quiet.stop(x).relu()
    assert failed.value.operator == "pygraph_quiet.stop.default"
    assert str(failed.value) == "pygraph_quiet.stop.default invalidated the capture"


@pytest.mark.parametrize(
    "operate",
    [lambda there: torch.zeros_like(there, device="cpu"), lambda there: torch.zeros(2).to("meta")],
    ids=["reads", "makes"],
)
def test_an_operator_on_a_gpu_that_is_not_captured_is_named(operate: Any) -> None:
    there = torch.ones(2, device="meta")
    with (
        hold.hold_buffers((), [], Nodes(), apart=lambda value: getattr(value, "is_meta", False)),
        pytest.raises(CaptureFailed, match=r" works on meta; the first call had nothing there"),
    ):
        torch.ones(2).relu()
        operate(there)


def test_generated_code_that_invalidates_the_capture_blames_no_operator() -> None:
    nodes = Nodes()
    with hold.hold_buffers((), [], nodes), pytest.raises(CaptureFailed) as failed:
        x = torch.ones(2)
        nodes.valid = False  # a launch that passes no operator
        x.relu()
    assert failed.value.operator is None


def test_a_node_leads_to_the_operator_that_launched_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    launched = [(0, 1, "aten.mm.default"), (2, 4, "mylib.foo.default")]
    capture = Capture(nothing, [], [], [], [], [], nothing, [], launched, {}, False, frozenset())
    names = [capture.operator_of(node) for node in range(5)]
    foo = "mylib.foo.default"
    assert names == ["aten.mm.default", None, foo, foo, None]

    def refuse(**_: Any) -> Any:
        raise _engine.UnsupportedGraph("node 3 of the captured graph is a host function")

    monkeypatch.setattr(_engine, "link", refuse)
    phantom = SimpleNamespace(base=0, reserved_bytes=0)
    device = SimpleNamespace(space=lambda: phantom, smallest_loan=1, twin=True, peers=())
    request: Any = SimpleNamespace(device=device, spreads=lambda attempt: False)
    attempt: Any = SimpleNamespace(
        policy=SimpleNamespace(scratch_apart=False), arena_in_pieces=False
    )
    regions: Any = SimpleNamespace(places=[], copies=lambda planned: [])
    graph: Any = SimpleNamespace(handle=None)
    object.__setattr__(capture, "graph", graph)
    with pytest.raises(CaptureFailed, match="node 3") as failed:
        pipeline._link(
            capture, capture, request, attempt, regions, nothing, computed=(), peak_slack=None
        )
    assert failed.value.operator == foo
