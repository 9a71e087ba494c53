"""Callables whose graphs are launched in front of guards: how they end, copies, threads."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from places import Place, assert_bits
from speculation_support import counts, inputs, network, warm

import pygraph
from pygraph.torch_private.dynamo import hooks_of

pytestmark = pytest.mark.usefixtures("one_thread")


def test_after_a_reset_nothing_is_launched(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model)
    warm(compiled, model, place, 5)
    before = counts(compiled)
    pygraph.reset()
    warm(compiled, model, place, 5)
    assert counts(compiled) == before


def test_an_exception_ends_the_call(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model)
    warm(compiled, model, place, 5)

    def fail() -> Callable[[], None]:
        raise RuntimeError("another one of the list")

    hooks = hooks_of(compiled)
    hooks.append(fail)
    with pytest.raises(RuntimeError, match="another one"):
        compiled(inputs(place))
    assert pygraph.report().graphs[0].dropped == 1
    hooks.remove(fail)
    before = counts(compiled)
    warm(compiled, model, place, 6)
    assert counts(compiled)[1] > before[1]


def test_a_stance_without_dynamo(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model)
    warm(compiled, model, place, 5)
    landed = counts(compiled)[1]
    with torch.compiler.set_stance("force_eager"):
        warm(compiled, model, place, 20)
    launched, now = counts(compiled)
    assert now == landed and launched <= landed + 5  # it guesses less and less
    warm(compiled, model, place, 40)
    assert counts(compiled)[1] > landed


def test_a_copy_of_the_callable(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model)
    warm(compiled, model, place, 5)
    same = copy.deepcopy(compiled)
    assert counts(same) == (0, 0)
    warm(same, model, place, 2)
    warm(compiled, model, place, 2)


def test_nothing_is_kept_alive(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model)
    warm(compiled, model, place, 5)
    weight, x = weakref.ref(model[0].weight), inputs(place)
    given = weakref.ref(x)
    with torch.no_grad():
        compiled(x)
    del x
    assert given() is None
    del compiled, model
    torch._dynamo.reset()
    pygraph.reset()
    gc.collect()
    assert weight() is None


@pytest.mark.parametrize("launch", ["always", "before_guards"])
def test_threads_have_calls_of_their_own(place: Place, launch: str) -> None:
    model = network(place)
    compiled = place.compile(model, launch=launch)
    warm(compiled, model, place, 5)
    problems: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(30):
                x = inputs(place)
                with torch.no_grad():
                    assert_bits([compiled(x)], [model(x)])
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not problems


def test_a_callable_within_another(place: Place) -> None:
    inner = network(place)
    compiled = place.compile(inner)

    @torch._dynamo.disable
    def through(x: Any) -> Any:
        return compiled(x)

    def outer(x: Any) -> Any:
        y = x * 2
        return (through(y) + 1,)

    both = place.compile(outer)
    for _ in range(8):
        x = inputs(place)
        with torch.no_grad():
            assert_bits(list(both(x)), [inner(x * 2) + 1])
    for each in (compiled, both):
        launched, landed = counts(each)
        assert launched == landed == 5
