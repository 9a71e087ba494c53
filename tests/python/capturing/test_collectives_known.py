"""Collectives that nobody has named, and what names ranks among arguments and results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from places import Place, assert_bits
from torch.distributed.device_mesh import DeviceMesh
from training_support import fresh

from pygraph.decide import agreement
from pygraph.operators import collectives
from pygraph.torch_private import distributed


@torch.library.custom_op("ncclX::summed", mutates_args=())
def summed(x: torch.Tensor) -> torch.Tensor:
    return x + 1


summed.register_fake(torch.empty_like)


@pytest.fixture
def place() -> Iterator[Place]:
    with fresh("twin") as here, torch.no_grad():
        yield here


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_kernel_of_nccls_that_no_collective_has_launched_is_refused(place: Place) -> None:
    graph = place.graphed(lambda arguments: [summed(arguments[0])])
    for _ in range(4):
        x = place.randn(8)
        assert_bits(graph.dispatcher([x]), [x + 1])
    assert graph.report.state == "fallback"
    assert graph.report.reason == (
        "ncclX.summed.default is a collective of a group that is not known"
    )


def test_a_mesh_is_the_same_in_each_call_that_is_served(place: Place, alone: None) -> None:
    def function(arguments: list[Any]) -> list[Any]:
        x, mesh = arguments
        return [x + mesh.ndim, mesh]

    graph = place.graphed(function)
    mesh, other = DeviceMesh("cpu", [0]), DeviceMesh("cpu", [[0]])
    for call in range(6):
        given = other if call == 4 else mesh
        x = place.randn(8)
        found = graph.dispatcher([x, given])
        assert_bits(found[:1], [x + given.ndim])
        assert found[1] is given
    report = graph.refresh_report()
    assert (report.state, report.replays) == ("graphed", 3), report.reason


def test_a_mesh_that_a_program_was_linked_with_lives_as_long(place: Place, alone: None) -> None:
    graph = place.graphed(lambda arguments: [arguments[0] + arguments[1].ndim])
    mesh = DeviceMesh("cpu", [0])
    for _ in range(3):
        graph.dispatcher([place.randn(8), mesh])
    (signature,) = graph._signatures.with_program
    assert any(each is mesh for each in signature.keep)


def test_what_else_is_no_tensor_is_refused_as_before(place: Place, alone: None) -> None:
    graph = place.graphed(lambda arguments: [arguments[0] + len(arguments[1])])
    for _ in range(4):
        graph.dispatcher([place.randn(8), "three"])
    assert "argument 1 is a str" in (graph.report.reason or "")


def test_a_group_of_one_rank_has_graphs_without_an_agreement(
    place: Place, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "Session", None)  # nobody calls it

    def function(arguments: list[Any]) -> list[Any]:
        total = torch.ops._c10d_functional.all_reduce(arguments[0], "sum", "0")
        return [torch.ops._c10d_functional.wait_tensor(total) * 2]

    graph = place.graphed(function)
    for _ in range(5):
        x = place.randn(8)
        assert_bits(graph.dispatcher([x]), [x * 2])
    report = graph.refresh_report()
    assert (report.state, report.replays) == ("graphed", 3), report.reason
    assert report.collectives == "1 x _c10d_functional.all_reduce.default of group '0'"


def test_groups_are_found_by_what_operators_are_given(alone: None) -> None:
    world = dist.group.WORLD
    assert distributed.group_named("0") is world and distributed.group_named(world) is world
    assert distributed.group_named("none such") is None and distributed.group_named(None) is None
    assert distributed.ranks_of(world) == [0] and distributed.own_rank(world) == 0
    assert distributed.time_out(world).total_seconds() > 0


def test_without_groups_nothing_is_known_of_any() -> None:
    assert not distributed.in_use() and distributed.group_named("0") is None
    assert not distributed.is_handle(object())


def test_which_operators_are_collectives() -> None:
    functional = torch.ops._c10d_functional
    assert collectives.is_collective(functional.all_reduce.default)
    assert not collectives.is_collective(functional.wait_tensor.default)
    assert collectives.waits(functional.wait_tensor.default)
    assert not collectives.is_collective(torch.ops.aten.add.Tensor)
    given = collectives.group_of(functional.all_reduce.default, (torch.ones(1), "sum", "7"), {})
    assert given == "7"
    assert collectives.names_one("c10d.allreduce_.default")
    assert not collectives.names_one("aten.add.Tensor") and not collectives.names_one("")
    assert collectives.is_between_two("c10d.send.default")
    assert not collectives.is_between_two("c10d.allreduce_.default")


def test_registration_is_forbidden_where_the_program_does_not_ask_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NCCL_GRAPH_REGISTER", raising=False)
    distributed.forbid_registration()
    assert os.environ["NCCL_GRAPH_REGISTER"] == "0"
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "1")
    distributed.forbid_registration()
    assert os.environ["NCCL_GRAPH_REGISTER"] == "1"
