"""Graphs that work on several GPUs of one process, and copy between them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import Mlp, assert_same, only_graph

import pygraph

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

CALLS = 12


class Stages(torch.nn.Module):
    """A model in two halves, one on each GPU."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.front = Mlp(width).to("cuda:0")
        self.back = Mlp(width).to("cuda:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(self.front(x).to("cuda:1"))


def round_trip(model: Stages, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    there = model(x)
    return there, there.to("cuda:0") + x


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(function, backend="pygraph", options={"select": "always"} | options)


def assert_replayed(calls: int = CALLS - 2) -> None:
    """On which of the two it begins is up to Inductor."""
    graph = only_graph()
    assert graph.state == "graphed", graph.reason
    assert graph.proof == "bit-equal"
    assert graph.peers in ("cuda:0", "cuda:1")
    assert graph.replays >= calls and graph.copies == 0


@torch.no_grad()
def test_a_model_in_stages_is_one_graph() -> None:
    model = Stages()
    called = compiled(model)
    kept = []
    for _ in range(CALLS):
        x = torch.randn(16, 64, device="cuda:0")
        kept.append((called(x), model(x)))
    for found, expected in kept:
        assert found.device == torch.device("cuda:1")
        assert_same(found, expected)
    assert_replayed()


@torch.no_grad()
def test_there_and_back_again() -> None:
    model = Stages()
    called = compiled(lambda x: round_trip(model, x))
    for _ in range(CALLS):
        x = torch.randn(16, 64, device="cuda:0")
        for found, expected in zip(called(x), round_trip(model, x), strict=True):
            assert found.device == expected.device
            assert_same(found, expected)
    assert_replayed()


@torch.no_grad()
def test_a_call_stands_in_the_order_of_both_streams() -> None:
    """What it takes is made on one GPU's stream right before, what it returns is used on the other
    one's right behind, and the memory of both is used again at once."""
    model = Stages(256)

    def function(x: torch.Tensor, there: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made, back = round_trip(model, x + there.to("cuda:0"))
        return made, there.mul_(0.5), back

    called = compiled(function)
    mine, other = torch.cuda.Stream(0), torch.cuda.Stream(1)
    sums, wanted = [], []
    for streams in ((None, None), (mine, other), (mine, None), (None, other)):
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        with torch.cuda.stream(streams[1]), torch.cuda.stream(streams[0]):
            for n in range(CALLS):
                x = torch.full((64, 256), float(n), device="cuda:0")
                with torch.cuda.device(n % 2):  # the one that lags behind
                    torch.cuda._sleep(20_000_000)
                with torch.cuda.device(1):
                    there = torch.full((64, 256), 0.5 * n, device="cuda:1")
                    before = there.clone()
                found, halved, back = called(x, there)
                total = back.sum()
                with torch.cuda.device(1):
                    sums.append((found.sum(), halved.clone(), total))
                    del found, back
                    for index in range(2):
                        torch.empty(64, 256, device=f"cuda:{index}").fill_(float("nan"))
                    made, back = round_trip(model, x + before.to("cuda:0"))
                    wanted.append((made.sum(), before * 0.5, back.sum()))
    torch.cuda.synchronize(1)
    for found, expected in zip(sums, wanted, strict=True):
        assert_same(found, expected)
    assert_replayed(4 * CALLS - 4)


@torch.no_grad()
def test_arguments_that_are_copied() -> None:
    """Of both GPUs, one of them written, made on a stream that lags behind."""
    model = Stages()

    def function(x: torch.Tensor, there: torch.Tensor) -> tuple[torch.Tensor, ...]:
        there.mul_(0.5)
        return round_trip(model, x + there.to("cuda:0"))

    called, kept = compiled(function, arguments="copied", launch="after_guards"), []
    for n in range(CALLS):
        with torch.cuda.device(n % 2):
            torch.cuda._sleep(20_000_000)
        x, there = (torch.randn(16, 64, device=f"cuda:{index}") for index in range(2))
        before = there.clone()
        kept.append(([*called(x, there), there.clone()], [*function(x, before), before]))
        there.fill_(float("nan"))
    for found, expected in kept:
        assert_same(found, expected)
    graph = only_graph()
    assert graph.state == "graphed, partly copied", graph.reason
    assert graph.replays >= CALLS - 2 and graph.bytes_copied > 0


@torch.no_grad()
def test_a_model_that_begins_on_the_other_gpu() -> None:
    model = Stages()
    called = compiled(lambda x: model.front(model.back(x).to("cuda:0")))
    for _ in range(CALLS):
        x = torch.randn(16, 64, device="cuda:1")
        assert_same(called(x), model.front(model.back(x).to("cuda:0")))
    graph = only_graph()
    assert (graph.state, graph.peers) == ("graphed", "cuda:0"), graph.reason


def trained(model: Any, step: Callable[[Any, torch.Tensor], Any]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    batches = [torch.randn(16, 64, device="cuda:0") for _ in range(CALLS)]
    return [step(model, each).detach().cpu() for each in batches]


def test_training_in_stages() -> None:
    model, optimizers = Stages(), dict[int, Any]()

    @torch.enable_grad()
    def step(called: Any, batch: torch.Tensor) -> Any:
        own = optimizers.setdefault(id(called), torch.optim.SGD(called.parameters(), lr=0.1))
        loss = called(batch).square().mean()
        loss.backward()
        own.step()
        own.zero_grad()
        return loss

    eager = trained(copy.deepcopy(model), step)
    assert_same(trained(compiled(model), step), eager)
    graphs = pygraph.report().graphs
    assert [(each.state, each.peers) for each in graphs] == 2 * [("graphed", "cuda:1")], [
        each.reason for each in graphs
    ]
    assert all(each.replays >= CALLS - 3 for each in graphs)


def test_a_whole_step_in_stages() -> None:
    model = Stages()

    def step(made: Stages) -> Any:
        optimizer = torch.optim.AdamW(made.parameters(), lr=1e-3, fused=True)

        @torch.enable_grad()
        def one(x: torch.Tensor) -> torch.Tensor:
            loss = made(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return one

    eager, ours = copy.deepcopy(model), model
    one, captured = step(eager), pygraph.capture(step(ours))
    torch.manual_seed(0)
    for _ in range(CALLS):
        batch = torch.randn(16, 64, device="cuda:0")
        assert_same(captured(batch), one(batch))
    assert_same(list(ours.parameters()), list(eager.parameters()))
    graph = only_graph()
    assert (graph.state, graph.peers) == ("graphed", "cuda:1"), graph.reason
    assert graph.replays >= CALLS - 4


@torch.no_grad()
def test_a_captured_call_that_makes_something_there() -> None:
    model = Stages()
    captured = pygraph.capture(lambda x: round_trip(model, x))
    for _ in range(CALLS):
        x = torch.randn(16, 64, device="cuda:0")
        for found, expected in zip(captured(x), round_trip(model, x), strict=True):
            assert found.device == expected.device
            assert_same(found, expected)
    graph = only_graph()
    assert (graph.state, graph.peers) == ("graphed", "cuda:1"), graph.reason


@torch.no_grad()
def test_random_numbers_of_the_other_gpu_fall_back() -> None:
    captured = pygraph.capture(lambda x: torch.nn.functional.dropout(x.to("cuda:1")))
    for _ in range(CALLS):
        x = torch.ones(64, 64, device="cuda:0")
        torch.manual_seed(3)
        found = captured(x)
        torch.manual_seed(3)
        assert torch.equal(found, torch.nn.functional.dropout(x.to("cuda:1")))
    graph = only_graph()
    assert graph.state == "fallback" and graph.reason is not None
    assert "draws random numbers on cuda:1" in graph.reason


@torch.no_grad()
def test_copies_of_every_kind() -> None:
    """Of one piece, of a view that is not, to another dtype, over what was there."""
    there = torch.zeros(64, 64, device="cuda:1")

    def function(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
        target.copy_(x.t())
        half = x[:, ::2].to("cuda:1", dtype=torch.float16)
        filled = torch.zeros(64, device="cuda:1")
        filled[:32] = target[0, :32]
        return half, filled, (target * 2).to("cuda:0"), target[3].to("cuda:0")

    captured = pygraph.capture(function)
    for _ in range(CALLS):
        x = torch.randn(64, 64, device="cuda:0")
        found, target = captured(x, there), there.clone()
        for one, other in zip(found, function(x, target), strict=True):
            assert one.device == other.device and torch.equal(one, other)
        assert torch.equal(there, target)
    graph = only_graph()
    assert (graph.state, graph.peers) == ("graphed", "cuda:1"), graph.reason


@torch.no_grad()
def test_scratch_is_on_its_own_gpu() -> None:
    """Of each there is no more than its own half needs."""
    model = Stages(1024)
    called = compiled(model)
    x = torch.randn(4096, 1024, device="cuda:0")
    for _ in range(4):
        called(x)
    peaks = []
    for function in (called, model):
        torch.cuda.synchronize(1)
        before = [torch.cuda.memory_allocated(n) for n in range(2)]
        for n in range(2):
            torch.cuda.reset_peak_memory_stats(n)
        made = function(x)
        peaks.append([torch.cuda.max_memory_allocated(n) - before[n] for n in range(2)])
        del made
    ours, eager = peaks
    assert all(own <= 1.1 * theirs for own, theirs in zip(ours, eager, strict=True)), peaks
    assert_replayed(2)


def drawn(seed: int) -> Callable[..., Any]:
    """A program that computes now on one GPU and now on the other, writes in place, and returns
    some of what it has made. All values are alike but for where they are."""
    choose = random.Random(seed)
    steps: list[tuple[int, int, int]] = []
    count = 2
    for _ in range(choose.randint(4, 30)):
        what = choose.randrange(6)
        steps.append((what, choose.randrange(count), choose.randrange(count)))
        count += what < 5
    returned = choose.sample(range(2, count), min(3, count - 2))

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = [x + 0, y + 0]
        for what, first, second in steps:
            one, other = made[first], made[second]
            there = other.to(one.device)
            if what == 0:
                made.append(one.to("cuda:1" if one.device.index == 0 else "cuda:0"))
            elif what == 1:
                made.append(torch.tanh(one @ there))
            elif what == 2:
                made.append(one.t()[::2].to(other.device).repeat(2, 1))
            elif what == 3:
                made.append(one + there)
            elif what == 4:
                made.append(torch.zeros_like(one).copy_(other))
            else:
                one.mul_(0.5).add_(other.to(one.device, copy=True), alpha=0.25)
        return tuple(made[number] for number in returned)

    return program


@pytest.mark.parametrize("way", ["compiled", "captured"])
@torch.no_grad()
def test_drawn_programs(way: str) -> None:
    spread = 0
    for seed in range(8 if way == "compiled" else 40):
        torch.compiler.reset()
        pygraph.reset()
        program = drawn(seed)
        called = compiled(program) if way == "compiled" else pygraph.capture(program)
        for _ in range(6):
            inputs = [torch.randn(64, 64, device=f"cuda:{index}") for index in range(2)]
            found, expected = called(*inputs), program(*inputs)
            for one, other in zip(found, expected, strict=True):
                assert one.device == other.device, seed
                if way == "compiled":
                    assert_same(one, other)
                else:
                    assert torch.equal(one, other), seed
        graphs = pygraph.report().graphs
        assert all(graph.state == "graphed" for graph in graphs), (seed, graphs[0].reason)
        spread += sum(graph.peers is not None and graph.replays > 0 for graph in graphs)
    assert spread >= (4 if way == "compiled" else 30)
