"""A transformed graph that cannot be compiled costs nothing but the transformation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._inductor import compile_fx
from transform_support import OnDevice, trace

import pygraph
from pygraph.frontends.compile import hook
from pygraph.transform import pipeline

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "fresh_report")


@pytest.fixture
def fresh_report() -> None:
    pygraph.reset()


def test_a_transformed_graph_that_cannot_be_compiled_is_compiled_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    graphs: list[tuple[Any, ...]] = []

    def compile_fx_inner(gm: Any, examples: Any, **kwargs: Any) -> str:
        graphs.append((gm, kwargs))
        if gm is not module:
            raise ValueError("planted\nin this line")
        return "as it is"

    def wrap(model: Any, static_input_idxs: Any, **_: Any) -> Any:
        return model

    monkeypatch.setattr(compile_fx, "compile_fx_inner", compile_fx_inner)
    module = trace(lambda x, s: (x * s,), OnDevice(torch.randn(4, 4)), torch.tensor(1.5))
    with hook.installed(wrap, passes=("bring",)) as routed:
        pass
    examples = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    given = {"static_input_idxs": [1], "is_backward": False}
    assert routed["inner_compile"](module, examples, **given) == "as it is"
    assert [(gm is module, kwargs["static_input_idxs"]) for gm, kwargs in graphs] == [
        (False, []),
        (True, [1]),
    ]
    assert "in this line" in caplog.text
    (event,) = pygraph.report().events
    assert event.endswith("could not be: planted")


@pytest.fixture
def broken_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(pipeline, "in_parts", broken)


def test_a_pass_that_fails_is_an_event(monkeypatch: pytest.MonkeyPatch, broken_pass: None) -> None:
    monkeypatch.setattr(compile_fx, "compile_fx_inner", lambda gm, *_, **__: gm)
    module = trace(lambda x: (x * 2,), OnDevice(torch.randn(4)))
    with hook.installed(lambda model, *_, **__: model, passes=("bring",)) as routed:
        pass
    assert routed["inner_compile"](module, []) is module
    (event,) = pygraph.report().events
    assert event.endswith("a pass has failed: planted")


def test_a_pass_that_fails_without_inductor_is_an_event(broken_pass: None) -> None:
    x = torch.randn(4)
    fast = torch.compile(lambda x: x * 2, backend="pygraph", options={"device": "twin"})
    with torch.no_grad():
        assert torch.equal(fast(x), x * 2)
    (event,) = pygraph.report().events
    assert event.endswith("a pass has failed: planted")


def test_an_unmet_requirement_is_no_such_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_fx_inner(gm: Any, *_: Any, **__: Any) -> str:
        assert gm is not module, "the graph has been compiled as it is"
        raise pygraph.RequirementNotMet("planted")

    monkeypatch.setattr(compile_fx, "compile_fx_inner", compile_fx_inner)
    module = trace(lambda x, s: (x * s,), OnDevice(torch.randn(4, 4)), torch.tensor(1.5))
    with hook.installed(lambda model, *_, **__: model, passes=("bring",)) as routed:
        pass
    examples = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    with pytest.raises(pygraph.RequirementNotMet, match="planted"):
        routed["inner_compile"](module, examples)
    assert not pygraph.report().events
