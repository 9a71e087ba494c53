"""A graph is launched in front of guards only where that pays."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
import torch
from places import Place
from speculation_support import BUSY, check, counts
from training_support import fresh

import pygraph
from pygraph.twin import faults

pytestmark = pytest.mark.usefixtures("one_thread", "behind_dynamo")

IDS = torch.tensor([1, 5, 0])


def launches(compiled: Any, model: Any, calls: int, given: torch.Tensor = IDS) -> list[bool]:
    """Whether each of some calls was launched before its guards."""
    seen = []
    for _ in range(calls):
        before, _ = counts(compiled)
        check(compiled, model, given.clone())
        launched, landed = counts(compiled)
        assert launched == landed
        seen.append(launched > before)
    return seen


def linked(twin: Place, *layers: torch.nn.Module, given: torch.Tensor = IDS) -> tuple[Any, Any]:
    """Compiled, and launched before the guards once: what the host does behind them is known."""
    model = torch.nn.Sequential(*layers)
    compiled = twin.compile(model, launch="before_guards")
    assert launches(compiled, model, 4, given) == [False, False, False, True]
    return compiled, model


def outlast_a_guess(compiled: Any, model: Any) -> None:
    """The graph is seen running for long, in one call."""
    with faults.failing_call("cuStreamQuery", BUSY, nth=2, lasting=True):
        assert launches(compiled, model, 1) == [True]


@pytest.mark.parametrize(
    ("layer", "given", "looked_at"),
    [(torch.nn.Embedding(6, 4), IDS, IDS.nbytes), (torch.nn.Linear(6, 4), torch.ones(2, 6), 0)],
)
def test_a_guess_that_is_longer_than_the_graph_does_not_pay(
    layer: torch.nn.Module, given: torch.Tensor, looked_at: int
) -> None:
    """On the twin it has run by the time that the stream is asked."""
    with fresh("twin") as twin:
        compiled, model = linked(twin, layer, given=given)
        pauses = [True, False, True, False, False, True, *[False] * 4, True, *[False] * 8, True]
        assert launches(compiled, model, len(pauses), given) == pauses
        (graph,) = pygraph.report().graphs
        assert graph.before_guards and graph.bytes_looked_at == looked_at * (1 + sum(pauses))


def test_a_guess_that_is_shorter_than_graph_and_guards_pays() -> None:
    with fresh("twin") as twin:
        more = (torch.nn.Linear(4, 4) for _ in range(50))  # for the guards
        compiled, model = linked(twin, torch.nn.Embedding(6, 4), *more)
        outlast_a_guess(compiled, model)
        # What the host does elsewhere may make a guess long, now and then.
        assert sum(launches(compiled, model, 16)) >= 12


def test_a_guess_that_is_longer_than_the_guards_does_not_pay() -> None:
    with fresh("twin") as twin:
        compiled, model = linked(twin, torch.nn.Embedding(6, 4))
        outlast_a_guess(compiled, model)
        with faults.slow_call("cuMemcpyDtoHAsync", 300_000):
            assert launches(compiled, model, 6) == [True, False, True, False, False, True]


@pytest.mark.parametrize(
    ("seconds", "asked", "pays"), [(0.02, 2, False), (0.3, 2, True), (0.3, 1, False)]
)
def test_a_graph_has_to_outlast_what_the_host_does_behind_the_guards(
    seconds: float, asked: int, pays: bool
) -> None:
    """There 0.1 seconds: the forward saves 51 tensors. The stream is busy as often as it is asked.
    Of one answer it is not known how long ago it was true."""

    def pack(saved: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return saved

    def call() -> None:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            compiled(torch.ones(1, 4))

    layers = [torch.nn.Linear(4, 4) for _ in range(50)]  # for the guards
    with fresh("twin") as twin:
        compiled = twin.compile(torch.nn.Sequential(*layers), launch="before_guards")
        for _ in range(4):
            call()
        assert counts(compiled) == (1, 1)
        with contextlib.ExitStack() as faulty:
            faulty.enter_context(faults.slow_call("cuStreamQuery", int(1e6 * seconds)))
            for _ in range(asked):
                faulty.enter_context(faults.failing_call("cuStreamQuery", BUSY, nth=2))
            call()
        launched, _ = counts(compiled)
        for _ in range(4):
            call()
        more = counts(compiled)[0] - launched
        assert more >= 3 if pays else more == 1


def test_what_stands_behind_a_graph_break_is_not_waited_for() -> None:
    """The host may wait for the graph itself there."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(50)))

    def forward(given: torch.Tensor) -> torch.Tensor:
        result = layers(given)
        torch._dynamo.graph_break()
        time.sleep(0.1)
        return result

    given = torch.ones(2, 4)
    with fresh("twin") as twin, torch.no_grad():
        compiled = twin.compile(forward, launch="before_guards")
        for _ in range(4):
            compiled(given)
        with (
            faults.slow_call("cuStreamQuery", 20_000),
            faults.failing_call("cuStreamQuery", BUSY, nth=2),
            faults.failing_call("cuStreamQuery", BUSY, nth=2),
        ):
            compiled(given)
        before, _ = counts(compiled)
        for _ in range(4):
            compiled(given)
        assert counts(compiled)[0] - before >= 3


def test_how_long_a_graph_runs_is_not_told_behind_other_work() -> None:
    with fresh("twin") as twin:
        compiled, model = linked(twin, torch.nn.Linear(6, 4), given=torch.ones(2, 6))
        with faults.failing_call("cuStreamQuery", BUSY, lasting=True):
            assert any(launches(compiled, model, 3, torch.ones(2, 6)))
        assert sum(launches(compiled, model, 8, torch.ones(2, 6))) <= 4
