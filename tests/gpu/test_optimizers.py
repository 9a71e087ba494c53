"""Optimizers compiled by Inductor, with a learning rate that a scheduler changes at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pygraph

STEPS = 8
LINKED = 2  #: calls of a graph before it replays

Make = Callable[[list[Any], Any], torch.optim.Optimizer]

#: Foreach takes a rate that is a tensor only if it is capturable.
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, foreach=False),
    "sgd foreach": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, foreach=True),
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr, foreach=False),
    "adam foreach": lambda p, lr: torch.optim.Adam(p, lr=lr, foreach=True, capturable=True),
    "adamw foreach": lambda p, lr: torch.optim.AdamW(p, lr=lr, foreach=True, capturable=True),
}
RATES: dict[str, Callable[[], Any]] = {
    "on the host": lambda: torch.tensor(0.1),  # as torch's tutorial has it
    "on the device": lambda: torch.tensor(0.1, device="cuda"),
}


def train(make: Make, rate: Any, **options: Any) -> list[torch.Tensor]:
    """The parameters after each step, from the same start and with the same gradients."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    parameters = [
        torch.nn.Parameter(torch.randn(size, device="cuda")) for size in (7, 300, 1025, 64)
    ]
    optimizer = make(parameters, rate)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    step = torch.compile(optimizer.step, **options)
    seen: list[torch.Tensor] = []
    for _ in range(STEPS):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        step()
        schedule.step()
        seen += [parameter.detach().clone() for parameter in parameters]
    return seen


@pytest.mark.parametrize("where", RATES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rate_that_changes_at_every_step_needs_no_new_graph(name: str, where: str) -> None:
    make, rate = OPTIMIZERS[name], RATES[where]
    expected = train(make, rate())
    found = train(make, rate(), backend="pygraph")
    report = pygraph.report()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    served = [graph for graph in report.graphs if graph.graphed]
    assert served, [graph.blame for graph in report.graphs]
    for graph in served:
        assert (graph.programs, graph.relinks, graph.evictions) == (1, 0, 0), graph.name
        assert graph.replays >= STEPS - 1 - LINKED, (graph.name, graph.calls, graph.replays)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rate_that_is_a_plain_float_is_right(name: str) -> None:
    """Dynamo compiles anew for each value, or makes a number on the host of it; what becomes of
    that is in the report."""
    make = OPTIMIZERS[name]
    expected = train(make, 0.1)
    found = train(make, 0.1, backend="pygraph")
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("where", RATES)
def test_a_fused_optimizer_runs_as_it_is(where: str, capturable: bool) -> None:
    """Dynamo does not trace it ("don't trace into fused optimizer", torch/_dynamo/eval_frame.py):
    torch.compile leaves its one kernel to eager code, and there is nothing to make a graph of."""
    rate = RATES[where]

    def make(parameters: list[Any], lr: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=lr, fused=True, capturable=capturable)

    expected = train(make, rate())
    found = train(make, rate(), backend="pygraph")
    assert pygraph.report().graphs == []
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
