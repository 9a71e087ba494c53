"""The loops of PyTorch's post "Accelerating PyTorch with CUDA Graphs" and of torch's notes on CUDA
graphs, with their sizes; and a function that is too short for anything but the host to count."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn

from benchmarks.callables.program import Goal, Program, Row, Sample
from benchmarks.harness.modes import Tensors

SIZES = (640, 4096, 2048, 1024)
"""The post's N, D_in, H and D_out."""
TINY_SIZES = (8, 16, 8, 4)
RATE = 0.1
WHOLE, PART, OURS = (
    "make_graphed_callables",
    "make_graphed_callables-part",
    "pygraph-make_graphed_callables",
)
WAITS = "the step waits for a value in the middle (.item()): no graph holds all of it"


class Perceptron(nn.Module):
    """The post's layers, in two halves, of which one can be graphed alone."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        _, inputs, hidden, outputs = sizes
        self.head = nn.Sequential(nn.Linear(inputs, hidden), nn.Dropout(p=0.2))
        self.tail = nn.Sequential(nn.Linear(hidden, outputs), nn.Dropout(p=0.1))

    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x))


class Loop(Program):
    """The post's first loop: the whole network is safe to capture."""

    def __init__(self, device: torch.device, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.model = Perceptron(sizes).to(device)
        self.loss = nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        self.modules["model"] = self.model
        self.optimizers["optimizer"] = self.optimizer

    def unit(self, *inputs: Any) -> Any:
        data, target = inputs
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.model(data), target)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def callables(self, whole: bool, inputs: Tensors) -> Mapping[str, Tensors]:
        return {"model" if whole else "model.head": (inputs[0].clone(),)}


class Branching(Program):
    """The post's second loop: a value of the GPU decides which layer comes next, so that no graph
    holds the step, and the layers are graphed one by one."""

    def __init__(self, device: torch.device, sizes: tuple[int, ...]) -> None:
        super().__init__()
        _, inputs, hidden, outputs = sizes
        self.first = nn.Linear(inputs, hidden).to(device)
        self.second = nn.Linear(hidden, outputs).to(device)
        self.third = nn.Linear(hidden, outputs).to(device)
        self.modules |= {"first": self.first, "second": self.second, "third": self.third}
        self.loss = nn.MSELoss()
        parameters = chain(*(each.parameters() for each in self.modules.values()))
        self.optimizer = torch.optim.SGD(parameters, lr=RATE)
        self.optimizers["optimizer"] = self.optimizer

    def unit(self, *inputs: Any) -> Any:
        data, target = inputs
        self.optimizer.zero_grad(set_to_none=True)
        made = self.first(data)
        made = self.second(made) if made.sum().item() > 0 else self.third(made)
        loss = self.loss(made, target)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def callables(self, whole: bool, inputs: Tensors) -> Mapping[str, Tensors]:
        data = inputs[0].clone()
        hidden = torch.randn(
            len(data), self.second.in_features, device=data.device, requires_grad=True
        )
        return {"first": (data,), "second": (hidden,), "third": (hidden,)}


class Short(Program):
    """Three small kernels."""

    def unit(self, *inputs: Any) -> Any:
        a, b, c, d = inputs
        return (a + b) * (c - d)


def data_and_target(sizes: tuple[int, ...]) -> Sample:
    def sample(generator: torch.Generator, _: int) -> Tensors:
        rows, inputs, _, outputs = sizes
        data = torch.randn(rows, inputs, generator=generator)
        return data, torch.randn(rows, outputs, generator=generator)

    return sample


def four(generator: torch.Generator, _: int) -> Tensors:
    return tuple(torch.randn(64, generator=generator) for _ in range(4))


def rows(tiny: bool) -> list[Row]:
    sizes = TINY_SIZES if tiny else SIZES
    return [
        Row(
            "blog",
            "the post's training loop: two linear layers with dropout, SGD",
            sizes[0],
            lambda device: Loop(device, sizes),
            data_and_target(sizes),
            random=True,
            callables=(WHOLE, PART, OURS),
            goal=Goal(2.7, "eager", "host_us", inverse=True),
        ),
        Row(
            "blog-branch",
            "the post's loop with a branch on a value of the GPU, three layers graphed one by one",
            sizes[0],
            lambda device: Branching(device, sizes),
            data_and_target(sizes),
            callables=(WHOLE, OURS),
            skips={"torch.cuda.graph": WAITS, "floor": WAITS},
        ),
        Row(
            "host",
            "(a + b) * (c - d) of 64 numbers each, without gradients: host time alone counts",
            64,
            lambda device: Short(),
            four,
            training=False,
            goal=Goal(8.0, field="host_us"),
        ),
    ]
