"""Sizes that change from call to call, in inference and in training: right at every size, with a
bounded number of programs.

Every program runs compiled by PyGraph and by torch's aot_eager, and must compute the same bits.
"""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import pytest
import torch
from places import Place
from torch import nn
from training_support import Attending, Compile, agree, gradients, is_ours, net, role_of, serves

import pygraph
from pygraph.decide import budget, signatures
from pygraph.runtime import registry

TRAINED = ("forward", "backward")


@pytest.fixture(params=[False, True], ids=["no_grad", "training"])
def training(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may be evicted at any time."""
    monkeypatch.setattr(budget, "PATIENCE", 0.0)


class Summing(nn.Module):
    """Little to compute per word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.words(words)).mean(1)


def learn(result: torch.Tensor, module: nn.Module, training: bool) -> list[Any]:
    if not training:
        return [result]
    module.zero_grad()
    result.square().sum().backward()
    return [result, *gradients(module)]


def roles(training: bool) -> tuple[str, ...]:
    return TRAINED if training else ("inference",)


def read(place: Place, fast: Any, module: nn.Module, training: bool, sizes: Any) -> list[Any]:
    """One call (and its backward) for each batch and length."""
    kept: list[Any] = []
    with torch.set_grad_enabled(training):
        for batch, length in sizes:
            words = torch.randint(11, (batch, length), device=place.torch)
            kept += learn(fast(words), module, training)
    return kept


def test_sizes_that_are_marked_dynamic(place: Place, training: bool) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        kept: list[Any] = []
        with torch.set_grad_enabled(training):
            for step in range(12):
                x = place.randn(3 + step % 3, 6)
                torch._dynamo.mark_dynamic(x, 0)
                kept += learn(fast(x), module, training)
        return kept

    report = agree(place, program)
    serves(report, *roles(training), replays=6)
    assert [graph.programs for graph in report.graphs] == [3] * len(roles(training))


def test_sizes_that_turn_out_to_be_dynamic(place: Place, training: bool) -> None:
    """The second size has Dynamo compile anew, with a number in the place of the size."""

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        kept: list[Any] = []
        with torch.set_grad_enabled(training):
            for rows in (5, 5, 5, 5, 7, 7, 7, 7, 9, 9, 9, 5, 7, 9):
                kept += learn(fast(place.randn(rows, 6)), module, training)
        return kept

    report = agree(place, program)
    serves(report, *roles(training), *roles(training), replays=2)


def test_batch_and_length_that_vary(place: Place, training: bool) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = Attending().to(place.torch)
        sizes = [(2 + step % 3, 4 + 3 * (step % 2)) for step in range(30)]
        return read(place, compiled(module, dynamic=True), module, training, sizes)

    report = agree(place, program)
    serves(report, *roles(training), replays=15)
    assert [graph.programs for graph in report.graphs] == [6] * len(roles(training))


@pytest.mark.usefixtures("impatient")
def test_programs_are_bounded(place: Place, training: bool) -> None:
    """The one that was longest unused makes room for one that comes up four times meanwhile, in the
    forward and in the backward. It comes back after more calls than at first."""

    def program(compiled: Compile) -> list[Any]:
        module = Attending().to(place.torch)
        fast = compiled(module, dynamic=True)
        kept: list[Any] = []

        def call(lengths: list[int], **figures: int) -> None:
            kept.extend(read(place, fast, module, training, [(3, length) for length in lengths]))
            for graph in pygraph.report().graphs if is_ours(compiled) else ():
                assert {name: getattr(graph, name) for name in figures} == figures, str(graph)

        call([4, 4, 4, 5, 5, 5, 4], programs=2, evictions=0, replays=3)
        call([6] * 6 + [4], programs=2, evictions=1, replays=5)  # 6 takes the place of 5
        call([5] * 7, programs=2, evictions=1, replays=5)
        call([5, 4], programs=2, evictions=2, proofs=4)  # 5 that of 6
        return kept

    agree(place, program, max_programs=2)


def known(role: str) -> int:
    """Signatures that the graphs of a role remember."""
    graphs = [g for g in registry._graphs if role_of(g.report) == role]
    return sum(len(graph._signatures._known) for graph in graphs)


LENGTHS = list(range(2, 202))


def stream_of(kind: str) -> list[int]:
    choice = random.Random(0)
    lengths = list(LENGTHS)
    choice.shuffle(lengths)
    if kind == "some again":
        return [length for length in lengths[:20] for _ in range(8)] + lengths[20:]
    if kind == "mostly two":
        return [length for rare in lengths for length in (rare, choice.choice((17, 33)))]
    return lengths


@pytest.mark.parametrize("kind", ["each once", "some again", "mostly two"])
@pytest.mark.usefixtures("impatient")
def test_a_stream_of_two_hundred_lengths(place: Place, training: bool, kind: str) -> None:
    """pytorch#161294, #188913: neither programs nor what is known of sizes grow without bound, and
    only what is seen again is linked. Every seventh call is compared."""

    def program(compiled: Compile) -> list[Any]:
        module = Summing().to(place.torch)
        fast = compiled(module, dynamic=True)
        kept: list[Any] = []
        for number, length in enumerate(stream_of(kind)):
            if is_ours(compiled) or number % 7 == 0:
                torch.manual_seed(number)
                found = read(place, fast, module, training, [(2, length)])
                kept += found if number % 7 == 0 else []
        torch.manual_seed(0)
        if is_ours(compiled):
            bound = signatures._REMEMBERED + 2 + 1
            assert all(0 < known(role) <= bound for role in roles(training))
        return kept

    report = agree(place, program, max_programs=2)
    assert sorted(map(role_of, report.graphs)) == sorted(roles(training))
    programs, proofs, replays = {
        "each once": (0, 0, 0),
        "some again": (2, 20, 2 * 6 + 18 * 3),  # captured at the second, later the fifth sight
        "mostly two": (2, 2, 200 - 2),
    }[kind]
    for graph in report.graphs:
        found = graph.programs, graph.proofs, graph.replays
        assert found == (programs, proofs, replays), str(graph)


def test_a_stream_of_lengths_does_not_keep_linking(place: Place, training: bool) -> None:
    """pytorch#188913: when there is no room, linking has to wait until it is a small part of the
    time."""

    def program(compiled: Compile) -> list[Any]:
        module = Summing().to(place.torch)
        fast = compiled(module, dynamic=True)
        lengths = [length for length in LENGTHS[3:13] for _ in range(8)]
        return read(place, fast, module, training, [(2, length) for length in lengths])

    report = agree(place, program, max_programs=2)
    for graph in report.graphs:
        assert (graph.programs, graph.proofs, graph.evictions) == (2, 2, 0)


def test_listed_sizes_are_captured_in_both_directions(place: Place, training: bool) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = Attending().to(place.torch)
        fast = compiled(module, dynamic=True)
        sizes = [(3, 4), (3, 5), (2, 5), (3, 5), (2, 7), (3, 7), (3, 4), (3, 5), (2, 5), (3, 7)]
        return read(place, fast, module, training, sizes)

    report = agree(place, program, capture_sizes=[(3, 5), 7])
    for graph in report.graphs:
        assert (graph.state, graph.programs) == ("graphed", 3), str(graph)  # 3x5, 2x7, 3x7
        assert graph.replays >= 2


def test_what_has_no_rows(place: Place, training: bool) -> None:
    """An empty batch, and one of one row, among others."""

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module, dynamic=True)
        kept: list[Any] = []
        with torch.set_grad_enabled(training):
            for rows in (4, 4, 4, 0, 0, 0, 1, 1, 1, 4, 0, 1):
                kept += learn(fast(place.randn(rows, 6)), module, training)
        return kept

    report = agree(place, program)
    assert report.replays >= 2 * len(roles(training))


def test_nothing_of_a_linked_call_stays_alive(place: Place, training: bool) -> None:
    module = torch.nn.Linear(4, 4).to(place.torch)
    fast = place.compile(lambda x: torch.tanh(module(x)).sum(0), dynamic=True)
    alive = []
    for length in (5, 5, 5, 6, 6, 7, 7):
        x = place.randn(length, 4)
        with torch.set_grad_enabled(training):
            result = fast(x)
        if training:
            result.sum().backward()
        alive.append(weakref.ref(x))
        del x, result
    gc.collect()
    assert {graph.programs for graph in pygraph.report().graphs} == {3}
    assert not any(x() is not None for x in alive)
