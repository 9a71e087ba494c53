"""Captured callables that read DTensors, and tensors whose memory comes and goes, as FSDP2's do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from callable_support import Unseen
from places import only_graph
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import pygraph

WIDTH = 8
CALLS = 8
Change = Callable[[Any], None]


@pytest.fixture(autouse=True)
def alone(fresh_dynamo: None) -> Iterator[None]:
    """A group of this process alone."""
    pygraph.reset()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh.cache_clear()
    yield
    dist.destroy_process_group()


def capture(function: Callable[..., Any]) -> Any:
    return pygraph.capture(function, device="twin")


@functools.cache
def mesh() -> Any:
    return init_device_mesh("cpu", (1,))


def placed(value: torch.Tensor, placement: Any = None) -> DTensor:
    return distribute_tensor(value, mesh(), [placement or Replicate()])


def part(value: torch.Tensor) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def replays() -> int:
    return sum(each.replays for each in pygraph.report().graphs)


def test_dtensors_are_given_and_returned() -> None:
    function = capture(lambda x: x * 2 + 1)
    kept = []
    for number in range(CALLS):
        x = placed(torch.full((4, 2), float(number)), Shard(0))
        found = function(x)
        assert isinstance(found, DTensor) and found.placements == (Shard(0),)
        kept.append(found)
    assert [each.to_local()[0, 0].item() for each in kept] == [2 * n + 1 for n in range(CALLS)]
    assert only_graph().replays >= CALLS - 4


def test_one_that_lies_otherwise_gets_a_program_of_its_own() -> None:
    def told(x: DTensor) -> torch.Tensor:
        return x.to_local() * (2 if x.placements == (Replicate(),) else 3)

    function = capture(told)
    for _ in range(CALLS):
        x = torch.randn(4, 2)
        assert torch.equal(function(placed(x)), x * 2)
        assert torch.equal(function(placed(x, Shard(0))), x * 3)
    assert len(pygraph.report().graphs) == 2 and replays() >= 2 * (CALLS - 4)


def test_a_parameter_is_returned_as_itself() -> None:
    layer = nn.Linear(WIDTH, WIDTH)
    layer.weight = nn.Parameter(placed(torch.randn(WIDTH, WIDTH)))
    function = capture(lambda x: (x @ layer.weight.to_local(), layer.weight))
    with torch.no_grad():
        for _ in range(CALLS):
            x = torch.randn(2, WIDTH)
            found, weight = function(x)
            assert weight is layer.weight and torch.equal(found, x @ weight.to_local())
    assert only_graph().replays


def test_a_layout_that_is_put_in_place_of_another_is_seen() -> None:
    x = placed(torch.randn(4, 2))
    function = capture(lambda: x.to_local() * len(x.placements[0].__class__.__name__))
    for _ in range(CALLS):
        assert torch.equal(function(), x.to_local() * len("Replicate"))
    x._spec = placed(torch.randn(4, 2), Shard(0))._spec
    assert torch.equal(function(), x.to_local() * len("Shard"))
    assert replays()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Training:
    """A model of FSDP2's and its steps; and the same, never captured."""

    def __init__(self, block: Callable[[], nn.Module] = Block, begin: bool = False) -> None:
        self.begin = begin
        torch.manual_seed(3)
        self.model, self.plain = (nn.Sequential(block(), block()) for _ in range(2))
        self.plain.load_state_dict(self.model.state_dict())
        for model in (self.model, self.plain):
            for each in (*model, model):
                fully_shard(each)
        self.step, self.expected = capture(self._of(self.model)), self._of(self.plain)

    def _of(self, model: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

        def step(x: torch.Tensor) -> torch.Tensor:
            if self.begin:
                optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            if not self.begin:
                optimizer.zero_grad()
            return loss.detach()

        return step

    def steps(self, count: int = CALLS) -> None:
        for _ in range(count):
            x = torch.randn(2, WIDTH)
            assert torch.equal(self.step(x), self.expected(x))
        for one, other in zip(self.model.parameters(), self.plain.parameters(), strict=True):
            assert torch.equal(part(one), part(other))

    def both(self, change: Change) -> None:
        change(self.model)
        change(self.plain)


def test_a_whole_step_is_replayed() -> None:
    training = Training()
    training.steps()
    graph = only_graph()
    assert graph.replays == CALLS - 3 and graph.reason is None


def test_gradients_that_stay_are_new_in_each_step() -> None:
    training = Training(begin=True)
    training.steps()
    gradient = next(training.model.parameters()).grad
    assert isinstance(gradient, DTensor) and only_graph().replays
    before = gradient.to_local().clone()
    training.steps(1)
    assert next(training.model.parameters()).grad is not gradient
    assert torch.equal(gradient.to_local(), before)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.set_requires_gradient_sync(False),
        lambda model: model.set_reshard_after_backward(False),
        lambda model: model[0].unshard(),
        lambda model: model[1].set_is_last_backward(False),
        lambda model: model[0].up.weight.requires_grad_(False),
    ],
    ids=["sync", "reshard", "unshard", "last", "frozen"],
)
def test_what_the_program_changes_is_seen(change: Change) -> None:
    training = Training()
    training.steps()
    assert replays()
    training.both(change)
    training.steps()


class Reading(Block):
    """Its forward cannot be captured."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 if x.sum().item() < 1e9 else 2)


def test_a_capture_that_fails_leaves_fsdp_as_it_was() -> None:
    training = Training(Reading)
    for _ in range(CALLS):
        training.steps(1)
        for module in training.model:
            for group in module._get_fsdp_state()._fsdp_param_groups:
                for each in group.fsdp_params:
                    assert each.unsharded_param.untyped_storage().nbytes() == 0
    (graph,) = pygraph.report().graphs
    assert graph.replays == 0 and "_local_scalar_dense" in (graph.reason or "")


def test_a_tensor_without_memory_may_not_have_some() -> None:
    held = torch.ones(WIDTH)
    held.untyped_storage().resize_(0)
    function = capture(lambda x: x * (2 if held.untyped_storage().nbytes() else 3))
    for _ in range(CALLS):
        x = torch.randn(2)
        assert torch.equal(function(x), x * 3)
    assert replays()
    held.untyped_storage().resize_(WIDTH * 4)
    for _ in range(CALLS):
        x = torch.randn(2)
        assert torch.equal(function(x), x * 2)
    held.untyped_storage().resize_(0)
    assert torch.equal(function(x), x * 3)


def test_memory_of_the_programs_is_not_given_away_in_a_capture() -> None:
    """Its values would be gone, or it would have memory of the capture's afterwards."""
    hidden = Unseen("resized", torch.ones(WIDTH))

    def function(x: torch.Tensor) -> torch.Tensor:
        storage = hidden.get().untyped_storage()
        size = storage.nbytes()
        storage.resize_(0)
        storage.resize_(size)
        return x + 1

    captured = capture(function)
    for _ in range(CALLS):
        x = torch.randn(WIDTH)
        assert torch.equal(captured(x), x + 1)
    graph = only_graph()
    assert graph.replays == 0 and "it resizes a storage of 32 bytes" in (graph.reason or "")


def test_a_step_of_ddp_runs_as_it_is() -> None:
    """Its reducer would be left in the middle of a step."""
    model = DistributedDataParallel(Block())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    captured = capture(step)
    x = torch.randn(2, WIDTH)
    losses = [captured(x).item() for _ in range(CALLS)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
    assert replays() == 0
    notes = [each for each in pygraph.report().events if "is a Reducer" in str(each)]
    assert notes
