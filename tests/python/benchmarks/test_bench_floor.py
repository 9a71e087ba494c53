"""The order in which the floor is captured, without a GPU: its functions are stood in for."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.harness import floor  # noqa: E402
from benchmarks.harness.modes import Runner, replaying  # noqa: E402


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done on the stand-in of a GPU, in order."""
    found: list[str] = []

    def telling(what: str) -> Any:
        return lambda *_, **__: found.append(what)

    @contextlib.contextmanager
    def graph(_: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
        assert not gc.isenabled(), "what garbage gives back would end the capture"
        found.append(f"begin {capture_error_mode}")
        yield
        found.append("end")

    stream = SimpleNamespace(wait_stream=telling("wait"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "synchronize", telling("synchronize"))
    monkeypatch.setattr(floor, "drop_workspaces", telling("drop workspaces"))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    replay = SimpleNamespace(replay=telling("replay"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: replay)
    return found


def test_the_floor_has_gradients_and_inputs_of_its_own(done: list[str]) -> None:
    weight, given = torch.ones(2, requires_grad=True), torch.tensor([1.0, 2.0])

    def step(x: Any) -> Any:
        done.append("step" if weight.grad is None else "step onto gradients")
        weight.grad = None
        loss = (weight * x).sum()
        loss.backward()
        return loss.detach()

    @contextlib.contextmanager
    def complete() -> Iterator[None]:
        done.append("complete")
        yield

    found = floor.capture(step, (given,), [weight], complete, "thread_local")
    assert done == [
        *("wait", "step", "step onto gradients", "step onto gradients", "wait"),
        *("synchronize", "drop workspaces", "complete", "begin thread_local", "step", "end"),
        "synchronize",
    ]
    assert gc.isenabled() and weight.grad is None
    runner = replaying(Runner, found)
    assert runner.mode == "floor" and torch.equal(runner.gradients()[0], given)
    runner.forget()  # the graph's own stay
    assert torch.equal(runner.gradients()[0], given)
    assert float(runner.run((torch.tensor([5.0, 7.0]),))) == 3.0 and done[-1] == "replay"
    assert found.inputs[0].tolist() == [5.0, 7.0] and given.tolist() == [1.0, 2.0]


def test_a_capture_that_fails_leaves_the_collector_on(done: list[str]) -> None:
    def step() -> None:
        if "begin global" in done:
            raise ValueError("a host number is needed")

    with pytest.raises(ValueError, match="host number"):
        floor.capture(step, ())
    assert gc.isenabled()
