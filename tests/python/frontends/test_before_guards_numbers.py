"""Graphs with numbers among their arguments, which Dynamo makes new tensors of in each call, are
launched before the guards as well. On a GPU only compiled code has numbers so (tests/gpu); results
have to be right in any case."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from places import Place
from speculation_support import check, counts, inputs

import pygraph

pytestmark = pytest.mark.usefixtures("one_thread")


def scaled(x: Any, by: Any, plus: Any = 0.25) -> Any:
    y = x.cos() * by
    return (y + plus, y)


class Scaled(torch.nn.Module):
    def __init__(self, by: Any) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Any) -> Any:
        return (x.cos() * self.by, x + self.by)


def value(n: int) -> float:
    """Where torch's own kernels run, numbers stay on the host, and each has a program: so a few
    take turns, more than there are shapes of calls. (tests/gpu has compiled code, which takes
    any.)"""
    return 0.1 + n % 6


def warm(place: Place, compiled: Any, call: Callable[[int], None]) -> None:
    """Until a number of calls in a row are served."""
    for n in range(36):
        call(n)
    assert place.name == "cuda" or counts(compiled)[1] > 0


@pytest.mark.parametrize("numpys", [None, "float32", "float64"])
def test_a_float_of_the_callers(place: Place, numpys: str | None) -> None:
    make: Any = float if numpys is None else getattr(pytest.importorskip("numpy"), numpys)
    compiled = place.compile(scaled)

    def call(n: int) -> None:
        check(compiled, scaled, inputs(place), make(value(n)))

    warm(place, compiled, call)
    launched, claimed = counts(compiled)
    for n in range(12):
        call(n)
    check(compiled, scaled, inputs(place), 3)  # of another type: no guess
    if place.name == "twin":
        assert counts(compiled) == (launched + 12, claimed + 12)
        assert any(graph.before_guards for graph in pygraph.report().graphs)


def test_floats_that_are_equal_once(place: Place) -> None:
    """The first call that is learned from does not tell which is which."""
    compiled = place.compile(scaled)
    for n in range(20):
        pair = (0.5, 0.5) if n < 6 else ((0.5, 2.0), (2.0, 0.5))[n % 2]
        check(compiled, scaled, inputs(place), *pair)


def test_a_float_that_the_callable_has(place: Place) -> None:
    model = Scaled(pytest.importorskip("numpy").float64(1.5))
    compiled = place.compile(model)
    for _ in range(8):
        check(compiled, model, inputs(place))
    launched, claimed = counts(compiled)
    assert place.name == "cuda" or claimed > 0
    model.by = type(model.by)(2.5)
    for _ in range(8):  # the first guess is wrong
        check(compiled, model, inputs(place))
    after = counts(compiled)
    assert place.name == "cuda" or after[0] - launched > after[1] - claimed
    check(compiled, model, inputs(place))


def test_a_tensor_on_the_host_that_the_callable_has(place: Place) -> None:
    """The same object in each call: what it holds now counts, not what it held."""
    model = Scaled(torch.tensor(1.5, dtype=torch.float64))
    compiled = place.compile(model)
    for n in range(16):
        model.by.fill_(1.5 + n % 2)
        check(compiled, model, inputs(place))
    model.by = torch.tensor(7.5, dtype=torch.float64)
    for _ in range(4):
        check(compiled, model, inputs(place))


@pytest.mark.parametrize("value", [float("nan"), -0.0, 0.0, float("inf"), 1, True, None])
def test_other_values_come_to_their_own(place: Place, value: Any) -> None:
    """A guess goes by the type; the guards, and what arrives, decide."""

    def function(x: Any, by: Any) -> Any:
        return (x if by is None else x.cos() / by, x + 1)

    compiled = place.compile(function)
    for n in range(24):
        check(compiled, function, inputs(place), value if n % 6 == 5 else 0.5 + n % 2)


def test_a_float_that_decides_is_guarded(place: Place) -> None:
    def function(x: Any, by: float) -> Any:
        return (x * by if by > 1 else x - by, x.sin())

    compiled = place.compile(function)
    for n in range(24):
        check(compiled, function, inputs(place), (0.5, 2.5, 0.25, 1.5)[n % 4])


def test_threads_have_numbers_of_their_own(place: Place) -> None:
    """The tensor that stands for a number belongs to all calls."""
    compiled = place.compile(scaled)
    for n in range(12):
        check(compiled, scaled, inputs(place), 0.5 + n % 4)
    failed: list[BaseException] = []

    def call(value: float) -> None:
        try:
            for _ in range(200):
                check(compiled, scaled, inputs(place), value)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=call, args=(0.5 + n,)) for n in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed
