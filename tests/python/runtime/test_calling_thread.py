"""Backwards stay on the thread that calls them, and nobody else's setting is touched."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from training_support import reset

import pygraph

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    reset()
    assert enabled()
    yield
    reset()
    assert enabled()


def enabled() -> bool:
    return bool(torch._C._is_multithreading_enabled())


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))


def another() -> Any:
    """One that Dynamo compiles anew."""
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend="pygraph", options={"device": "twin", **options})


def train(function: Any, calls: int = 4) -> None:
    for n in range(calls):
        function(torch.full((3, 4), float(n + 1))).sum().backward()


def test_the_thread_of_a_forward_runs_its_backwards_from_the_first_on() -> None:
    function = compiled(network())
    loss = function(torch.ones(3, 4)).sum()
    assert not enabled()
    loss.backward()
    train(function)
    assert pygraph.report().graphs[0].replays and not enabled()


def test_the_gradients_are_the_same() -> None:
    model, same = network(), network()
    train(compiled(model), 6)
    train(same, 6)
    for ours, theirs in zip(model.parameters(), same.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_other_threads_are_left_alone() -> None:
    seen: list[bool] = []

    def elsewhere() -> None:
        train(compiled(network()))
        seen.append(enabled())

    other = threading.Thread(target=elsewhere)
    other.start()
    other.join()
    assert seen == [False] and enabled()
    train(compiled(another()))
    assert not enabled()


def test_whoever_turns_it_on_again_is_left_alone() -> None:
    train(compiled(network()))
    torch._C._set_multithreading_enabled(True)
    train(compiled(another()))
    assert len(pygraph.report().graphs) == 4 and enabled()


def test_whoever_turned_it_off_has_it_off_afterwards() -> None:
    with torch.autograd.set_multithreading_enabled(False):
        train(compiled(network()))
        pygraph.reset()
        assert not enabled()


def test_an_option_leaves_it_to_autograd() -> None:
    train(compiled(network(), backward_thread="autograd"))
    assert pygraph.report().graphs[0].replays and enabled()


def test_a_process_with_several_devices_leaves_it_to_autograd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pygraph.capturing.twin.Twin.alone", lambda _: False)
    train(compiled(network()))
    assert pygraph.report().graphs[0].replays and enabled()


def test_a_device_that_comes_later_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    function = compiled(network())
    train(function, 1)
    assert not enabled()
    monkeypatch.setattr("pygraph.capturing.twin.Twin.alone", lambda _: False)
    train(function)
    assert pygraph.report().graphs[0].replays and enabled()


def test_nothing_is_turned_off_where_nothing_trains() -> None:
    function = compiled(network())
    with torch.no_grad():
        for n in range(4):
            function(torch.full((3, 4), float(n)))
    assert pygraph.report().graphs[0].replays and enabled()
