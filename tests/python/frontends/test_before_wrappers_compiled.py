"""Forwards that torch.compile made, launched before the wrappers around them run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from places import Place, assert_bits
from training_support import agree

import pygraph


def steps(make: Callable[[Any], Any], place: Place, count: int = 6) -> Callable[[Any], list[Any]]:
    """A program that trains `make(place)`: losses, gradients, buffers."""

    def program(compile_: Any) -> list[Any]:
        model = make(place)
        compiled = compile_(model)
        values: list[Any] = []
        for _ in range(count):
            loss = compiled(torch.rand(4, 8, device=place.torch)).square().mean()
            loss.backward()
            values += [loss.detach().clone()]
            values += [p.grad.clone() for p in model.parameters() if p.grad is not None]
            values += [b.clone() for b in model.buffers()]
        return values

    return program


def normed(place: Place) -> Any:
    layers = torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.4)
    return torch.nn.Sequential(*layers).to(place.torch)


def test_a_forward_is_launched_ahead(place: Place) -> None:
    """Running statistics are written, and random numbers drawn, once in each step."""
    report = agree(place, steps(normed, place))
    forward, backward = report.graphs
    assert forward.before_wrappers and not forward.past_wrappers and not backward.before_wrappers
    assert forward.replays == backward.replays == 4


class Reads(torch.nn.Module):
    """Of a tensor that autograd knows, it uses what needs no gradient: AOTAutograd detaches it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(8))

    def forward(self, x: Any, y: Any) -> Any:
        return x * self.weight, (y > 0).float()


def test_not_where_a_wrapper_replaces_an_argument(place: Place) -> None:
    def program(compile_: Any) -> list[Any]:
        model = Reads().to(place.torch)
        compiled = compile_(model)
        values: list[Any] = []
        for _ in range(6):
            x = torch.rand(4, 8, device=place.torch)
            product, positive = compiled(x, model.weight * x)
            product.sum().backward()
            values += [product.detach(), positive, model.weight.grad.clone()]
        return values

    forward = agree(place, program).graphs[0]
    assert forward.state == "graphed" and forward.replays == 4, forward.blame
    assert not forward.before_wrappers


def test_not_where_proofs_are_repeated(place: Place) -> None:
    report = agree(place, steps(normed, place), debug="paranoid", debug_interval=2)
    assert not any(graph.before_wrappers for graph in report.graphs)
    assert report.graphs[0].proofs > 1


def test_a_written_cache_needs_no_wrappers(place: Place) -> None:
    """Without gradients; the entry point counts the versions of what is written."""

    def program(compile_: Any) -> list[Any]:
        cache = torch.zeros(6, 8, device=place.torch)

        def step(x: Any, cache: Any) -> Any:
            cache[1:].copy_(cache[:-1].clone())
            cache[0] = x
            return cache.sum(0)

        compiled = compile_(step)
        values: list[Any] = []
        with torch.no_grad():
            for _ in range(6):
                version = cache._version
                values += [compiled(torch.rand(8, device=place.torch), cache), cache.clone()]
                values += [cache._version > version]
        return values

    (graph,) = agree(place, program).graphs
    assert graph.past_wrappers and not graph.before_wrappers
    assert graph.replays == 4


def test_after_a_reset_the_wrappers_are_alone(place: Place) -> None:
    model = normed(place)
    compiled = place.compile(model)
    x = torch.rand(4, 8, device=place.torch)
    for _ in range(4):
        compiled(x).sum().backward()
    assert pygraph.report().graphs[0].before_wrappers
    pygraph.reset()
    torch.manual_seed(3)
    found = compiled(x)
    torch.manual_seed(3)
    assert_bits([found.detach()], [model(x).detach()])
