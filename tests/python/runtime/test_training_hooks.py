"""Hooks of autograd around compiled graphs: each is called, in order, with the right gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from places import Place
from training_support import Compile, Net, agree, gradients, net, serves, values


def on_tensors(module: Net, seen: list[Any]) -> None:
    def double(gradient: torch.Tensor) -> torch.Tensor:
        seen.append(gradient.clone())
        return gradient * 2

    module.first.weight.register_hook(double)


def on_modules(module: Net, seen: list[Any]) -> None:
    def note(_: Any, inputs: Any, outputs: Any) -> None:
        seen.extend(gradient.clone() for gradient in (*inputs, *outputs) if gradient is not None)

    module.second.register_full_backward_hook(note)


def behind_accumulation(module: Net, seen: list[Any]) -> None:
    """As an optimizer that works during the backward."""

    def step(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        seen.append(parameter.grad.clone())
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.1)
        parameter.grad = None

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(step)


@pytest.mark.parametrize("register", [on_tensors, on_modules, behind_accumulation])
def test_hooks(place: Place, register: Callable[[Net, list[Any]], None]) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        seen: list[Any] = []
        register(module, seen)
        fast = compiled(module)
        for _ in range(6):
            x = place.randn(5, 6, requires_grad=True)
            result = fast(x)
            result.register_hook(lambda gradient: gradient + 0.5)
            result.square().sum().backward()
            seen.append(x.grad)
        assert len(seen) > 6
        return seen + values(module)

    report = agree(place, program)
    # Where Dynamo makes a second graph for what has changed, the first one was called once.
    again = [graph for graph in report.graphs if graph.calls > 1]
    assert all(graph.state == "graphed" for graph in again), str(report)
    assert report.replays >= 8


def elsewhere() -> Any:
    """What is saved comes back at another address."""

    def pack(tensor: torch.Tensor) -> Any:
        return tensor if isinstance(tensor, torch.nn.Parameter) else tensor.detach().clone()

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed)


@pytest.mark.parametrize("hooks", [elsewhere, torch.autograd.graph.save_on_cpu])
def test_hooks_of_saved_tensors(place: Place, hooks: Callable[[], Any]) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        kept: list[Any] = []
        for _ in range(6):
            module.zero_grad()
            with hooks():
                loss = fast(place.randn(5, 6)).square().sum()
            loss.backward()
            kept += [loss, *gradients(module)]
        return kept

    serves(agree(place, program), "forward", "backward", replays=3)
