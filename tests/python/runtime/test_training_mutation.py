"""What a program writes, and what is written behind its back: arguments, buffers, parameters.

Every program runs compiled by PyGraph and by torch's aot_eager, and must compute the same bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from places import Place
from training_support import (
    UNGRAPHED,
    Compile,
    Net,
    agree,
    gradients,
    net,
    raised,
    role_of,
    serves,
    values,
)

TRAINED = ("forward", "backward")


@pytest.fixture(params=[False, True], ids=["no_grad", "training"])
def training(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def learn(result: torch.Tensor, module: torch.nn.Module, training: bool) -> list[Any]:
    """A backward and its gradients, where there is one."""
    if not training:
        return [result]
    module.zero_grad()
    result.square().sum().backward()
    return [result, *gradients(module)]


def roles(training: bool) -> tuple[str, ...]:
    return TRAINED if training else ("inference",)


# ------------------------------------------------------------------- written by the program


def test_a_counter_of_the_caller(place: Place, training: bool) -> None:
    """Eager code reads and writes it between calls, and every call counts as a write to it."""

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        counter = torch.zeros(3, device=place.torch)

        def count(x: torch.Tensor) -> torch.Tensor:
            counter.add_(1)
            counter[0].mul_(2)
            return module(x) * counter[0]

        fast = compiled(count)
        kept: list[Any] = []
        with torch.set_grad_enabled(training):
            for step in range(8):
                version = counter._version
                kept += learn(fast(place.randn(5, 6)), module, training)
                assert counter._version > version
                kept.append(counter.clone())
                if step % 3 == 0:
                    counter.sub_(0.5)
        return kept

    serves(agree(place, program), *roles(training), replays=6)


def by_slice(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> None:
    cache[:, 2:3] = new


def by_index(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> None:
    cache.index_copy_(1, at, new)


def by_a_view_of_a_view(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> None:
    cache.view(4, -1).view(4, 8, 6).narrow(1, 1, 2)[:, :1].copy_(new)


def by_scatter(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> None:
    cache.scatter_(1, at.view(1, 1, 1).expand_as(new), new)


@pytest.mark.parametrize("write", [by_slice, by_index, by_a_view_of_a_view, by_scatter])
@pytest.mark.parametrize("given", ["itself", "a view", "anew each time"])
def test_a_cache_that_is_written_in_part(place: Place, write: Any, given: str) -> None:
    """As decoding fills a key-value cache; what the program does not write stays."""

    def program(compiled: Compile) -> list[Any]:
        def decode(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            write(cache, at, new)
            return cache.softmax(1).sum(2)

        fast = compiled(decode)
        memory = place.randn(2, 4, 8, 6)
        cache = memory[0].clone()
        kept: list[Any] = []
        for step in range(8):
            if given == "a view":
                cache = memory[1]
            elif given == "anew each time":
                cache = cache.clone()
            at = torch.tensor([step], device=place.torch)
            version = cache._version
            kept += [fast(cache, at, place.randn(4, 1, 6)), cache.clone()]
            assert cache._version > version
        return [*kept, memory]

    with torch.no_grad():
        serves(agree(place, program), "inference", replays=6)


class Normed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.first(x))


class Moving(Normed):
    """Keeps an average and a count in buffers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        with torch.no_grad():
            self.mean.lerp_(y.mean(0), 0.1)
            self.count += 1
        return y - self.mean


@pytest.mark.parametrize("kind", [Normed, Moving])
def test_running_statistics(place: Place, kind: Callable[[], Normed], training: bool) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = kind().to(place.torch)
        fast = compiled(module)
        kept: list[Any] = []
        with torch.set_grad_enabled(training):
            for step in range(8):
                kept += learn(fast(place.randn(5, 6)), module, training)
                kept += values(module)
                if step == 5:
                    with torch.no_grad():
                        module.norm.reset_running_stats()
        return [*kept, module.eval()(torch.ones(5, 6, device=place.torch)).detach()]

    serves(agree(place, program), *roles(training), replays=5)


@pytest.mark.parametrize("written", ["input", "parameter", "result"])
def test_writing_what_is_saved_is_an_error_as_without_us(place: Place, written: str) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        kept: list[Any] = []
        for step in range(9):
            module.zero_grad()
            x = place.randn(5, 6)
            result = fast(x)
            loss = result.square().sum()
            if step % 3 == 2:
                tensors = {"input": x, "parameter": module.second.weight, "result": result}
                with torch.no_grad():
                    tensors[written].mul_(1.5)
            kept += [raised(loss.backward), *gradients(module)]
            assert ("modified by an inplace operation" in kept[-5]) == (step % 3 == 2)
        return kept

    serves(agree(place, program), *TRAINED, replays=4)


def test_a_result_of_one_graph_that_another_one_writes(place: Place) -> None:
    """pytorch#121861: a cache that one compiled function makes and the next one updates in place.
    Earlier ones, which the caller keeps, stay."""

    def program(compiled: Compile) -> list[Any]:
        def make(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.sin(x), torch.zeros_like(x)

        def update(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            cache[1].add_(x.sum(0))
            cache.mul_(0.5)
            return cache.sum(1)

        begin, go_on = compiled(make), compiled(update)
        kept: list[Any] = []
        with torch.no_grad():
            for _ in range(5):
                x, cache = begin(place.randn(4, 6))
                for row in (1, 1, 2):
                    kept.append(go_on(cache, x))
                    cache[row] += 1
                kept += [x, cache]
        return kept

    serves(agree(place, program), "inference", "inference", replays=3)


# ------------------------------------------------------------------- optimizers


def tensor_rate(place: Place, rate: float = 0.1) -> torch.Tensor:
    return torch.tensor(rate, device=place.torch)


OPTIMIZERS: dict[str, Callable[[Place, Any], torch.optim.Optimizer]] = {
    "sgd": lambda place, p: torch.optim.SGD(p, lr=tensor_rate(place), momentum=0.9),
    "sgd foreach": lambda place, p: torch.optim.SGD(
        p, lr=tensor_rate(place), momentum=0.9, nesterov=True, foreach=True
    ),
    "adam": lambda place, p: torch.optim.Adam(
        p, lr=tensor_rate(place), capturable=True, foreach=False
    ),
    "adam foreach": lambda place, p: torch.optim.Adam(
        p, lr=tensor_rate(place), capturable=True, foreach=True, amsgrad=True
    ),
    "adamw foreach": lambda place, p: torch.optim.AdamW(
        p, lr=tensor_rate(place), capturable=True, foreach=True, weight_decay=0.1
    ),
}


def train(
    place: Place, compiled: Compile, make: Callable[[Place, Any], torch.optim.Optimizer], steps: int
) -> list[Any]:
    """Compiled network and compiled optimizer, with another learning rate at every step."""
    module = net(place)
    optimizer = make(place, module.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    fast, step = compiled(module), compiled(optimizer.step)
    kept: list[Any] = []
    for _ in range(steps):
        fast(place.randn(5, 6)).square().sum().backward()
        step()
        optimizer.zero_grad()
        schedule.step()
        kept += values(module)
    state = optimizer.state_dict()["state"].values()
    return kept + [value for each in state for value in each.values()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_optimizer(place: Place, name: str) -> None:
    """A learning rate in a tensor changes without compiling anew; it is not baked into a graph."""
    compiled: list[int] = []

    def program(compile_with: Compile) -> list[Any]:
        kept = train(place, compile_with, OPTIMIZERS[name], 10)
        compiled.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        return kept

    report = agree(place, program)
    assert compiled[0] == compiled[1] <= 3  # Dynamo may compile a first step, without state, apart
    served = [graph for graph in report.graphs if graph.replays]
    assert sorted(map(role_of, served)) == ["backward", "forward", "inference"], str(report)
    assert all(graph.state == "graphed" for graph in served)
    assert served[-1].replays >= 10 - 1 - UNGRAPHED


@pytest.mark.parametrize("fused", [True, False])
def test_an_optimizer_with_a_plain_number_as_its_rate(place: Place, fused: bool) -> None:
    """Torch compiles it anew when the number changes, or not at all; it is right either way."""
    agree(
        place,
        lambda compiled: train(
            place, compiled, lambda _, p: torch.optim.AdamW(p, lr=0.1, fused=fused), 6
        ),
    )


# ------------------------------------------------------------------- written behind its back


def load(module: Net, other: dict[str, torch.Tensor]) -> None:
    module.load_state_dict(other)


def assign(module: Net, other: dict[str, torch.Tensor]) -> None:
    module.load_state_dict(other, assign=True)


def swap_data(module: Net, other: dict[str, torch.Tensor]) -> None:
    for name, parameter in module.named_parameters():
        parameter.data = other[name]


def copy_into(module: Net, other: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(other[name])


def merge_adapter(module: Net, other: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        module.second.weight += other["second.weight"] * 0.5


@pytest.mark.parametrize("change", [load, assign, swap_data, copy_into, merge_adapter])
def test_changed_weights_are_seen(place: Place, change: Any, training: bool) -> None:
    """vllm#48941: silently stale weights. What held the old ones is filled with NaN."""

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        kept: list[Any] = []
        with torch.set_grad_enabled(training):
            for step in range(12):
                if step in (4, 5, 9):
                    before = [parameter.data for parameter in module.parameters()]
                    change(module, net(place).state_dict())
                    for old, new in zip(before, module.parameters(), strict=True):
                        if old.data_ptr() != new.data_ptr():
                            old.fill_(torch.nan)
                out = learn(fast(place.randn(5, 6)), module, training)
                assert not any(value.isnan().any() for value in out)
                kept += out
        return kept

    report = agree(place, program)
    moves = change in (assign, swap_data)
    assert report.replays >= len(roles(training)) * (4 if moves else 8), str(report)


def test_gradients_are_those_of_weights_at_the_forward(place: Place) -> None:
    """An optimizer that writes the weights between two forwards changes what a later one saves."""

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        kept: list[Any] = []
        for _ in range(6):
            module.zero_grad()
            late = fast(place.randn(5, 6)).sum()
            with contextlib.suppress(RuntimeError):
                fast(place.randn(5, 6)).sum().backward()
            kept += [*gradients(module)]
            with torch.no_grad():
                module.second.weight.add_(0.1)
            kept += [raised(late.backward), *gradients(module)]
        assert "modified by an inplace operation" in str([x for x in kept if isinstance(x, str)])
        return kept

    serves(agree(place, program), "forward", "backward", replays=4)
