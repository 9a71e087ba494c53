"""Calls of models whose parameters are DTensors: past the wrappers that take these apart, and past
the guards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from places import only_graph
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import pygraph
from pygraph.frontends.compile import entry_point, past_guards
from pygraph.torch_private.tensors import description_of, parts_of

WIDTH = 8


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.register_buffer("seen", torch.zeros(2, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x)
        return self.down(torch.relu(self.up(x))) + self.seen


@pytest.fixture(autouse=True)
def alone(fresh_dynamo: None) -> Iterator[None]:
    pygraph.reset()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with torch.no_grad():
        yield
    dist.destroy_process_group()


def split(model: Mlp) -> Any:
    mesh = init_device_mesh("cpu", (1,))
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


class Pair:
    """The same model split and compiled, and as it is."""

    def __init__(self) -> None:
        self.plain = Mlp()
        self.model = Mlp()
        self.model.load_state_dict(self.plain.state_dict())
        self.model = split(self.model)
        options = {"device": "twin", "compiler": "aot", "select": "always"}
        self.compiled = torch.compile(self.model, backend="pygraph", dynamic=False, options=options)

    def call(self, times: int = 1) -> None:
        for _ in range(times):
            x = torch.randn(2, WIDTH)
            version = self.model.seen._version
            found, expected = self.compiled(x), self.plain(x)
            assert torch.allclose(found, expected, atol=1e-5)
            assert torch.equal(self.model.seen, self.plain.seen)
            assert self.model.seen._version > version

    @property
    def misses(self) -> int:
        return sum(each.calls - each.replays for each in pygraph.report().graphs)


def test_calls_go_past_wrappers_that_take_parameters_apart() -> None:
    pair = Pair()
    pair.call(8)
    report = only_graph()
    assert report.past_wrappers and not report.before_wrappers
    through = past_guards.leads(pair.compiled)
    assert report.past_guards and through is not None
    served = through._calls.served
    pair.call(3)
    assert through._calls.served == served + 3
    assert pair.misses == 2


@pytest.mark.parametrize(
    "change", ["weight", "data", "local", "requires_grad", "placement", "spec", "mesh", "hook"]
)
def test_what_has_changed_is_computed_with(change: str) -> None:
    pair = Pair()
    pair.call(8)
    assert only_graph().past_guards
    weight, other = pair.model.up.weight, torch.randn(2 * WIDTH, WIDTH)
    mesh = weight.device_mesh
    if change == "weight":
        parameter = nn.Parameter(distribute_tensor(other, mesh, weight.placements))
        pair.model.up.weight = parameter
        pair.plain.up.weight = nn.Parameter(other)
    elif change == "data":
        weight.to_local().copy_(other)
        pair.plain.up.weight.copy_(other)
    elif change == "local":
        weight._local_tensor = other.clone()
        pair.plain.up.weight.copy_(other)
    elif change == "requires_grad":
        weight.requires_grad_(False)
    elif change == "placement":
        copied = DTensor.from_local(weight.to_local(), mesh, [Replicate()], run_check=False)
        pair.model.up.weight = nn.Parameter(copied)
    elif change == "spec":
        vars(weight._spec).update(placements=(Replicate(),), shard_order=())
    elif change == "mesh":
        parameter = distribute_tensor(other, init_device_mesh("cpu", (1,)), weight.placements)
        pair.model.up.weight = nn.Parameter(parameter)
        pair.plain.up.weight.copy_(other)
    else:
        pair.model.up.register_forward_hook(lambda module, given, result: result * 2)
        pair.plain.up.register_forward_hook(lambda module, given, result: result * 2)
    before = pair.misses
    pair.call(6)
    if change in ("requires_grad", "placement", "spec", "hook"):
        assert pair.misses > before, "its guards are others"
    else:
        assert pair.misses == before


def test_what_a_dtensor_is_made_of() -> None:
    weight = split(Mlp()).up.weight
    assert "_local_tensor" in parts_of(weight)
    described = description_of(weight)
    assert described is not None and described[0] == "_spec" and described[1] is weight._spec
    assert parts_of(torch.ones(2)) == [] and description_of(torch.ones(2)) is None
    assert parts_of(3) == []
    found = entry_point.parts_among((torch.ones(2), weight))
    assert found[0] == (1, "_local_tensor")
    local = weight._local_tensor
    ours = entry_point.parts_among((weight,))
    assert entry_point.arguments_between(lambda _: True, (weight,), [local], ours) == [1]
