"""Operators that are not even tried in a capture, told by what a plan asks, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from training_support import fresh

from pygraph.capturing import cuda, hold
from pygraph.capturing.cuda import Cuda
from pygraph.capturing.device import CaptureFailed, Device
from pygraph.capturing.twin import twin_device
from pygraph.capturing.unsafe import Watch

aten = torch.ops.aten


def test_what_breaks_its_library_is_noted_and_runs() -> None:
    x = torch.eye(3)
    with Watch(twin_device()) as watch:
        (x + 1).sum()
        assert watch.reason is None
        values, _ = torch.linalg.eigh(x)
        torch.linalg.svd(x)
    assert watch.found == "aten._linalg_eigh.default"  # the first
    assert watch.reason == f"{watch.found} leaves its library unusable when it is captured"
    assert torch.equal(values, torch.ones(3))


def test_all_that_breaks_its_library_is_noted() -> None:
    """Some have other obstacles besides: the shapes of lstsq's results follow from data."""
    x = torch.eye(3)
    for solve in (
        torch.linalg.eigh,
        torch.linalg.eigvalsh,
        torch.linalg.svd,
        torch.linalg.eig,
        torch.linalg.eigvals,
        lambda x: torch.linalg.lstsq(x, x),
    ):
        with Watch(twin_device()) as watch:
            solve(x)
        assert watch.reason is not None, solve


def test_what_does_not_work_on_the_device_is_not_noted() -> None:
    with Watch(Cuda(0)) as watch:
        torch.linalg.eigh(torch.eye(3))
    assert watch.reason is None


@pytest.fixture
def beside_another(monkeypatch: pytest.MonkeyPatch) -> Device:
    """The twin, and a device that stands for a second one."""
    device = twin_device()
    monkeypatch.setattr(type(device), "apart", lambda _, value: on_meta(value))
    return device


def on_meta(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "meta"


def test_what_works_on_another_device_is_noted_and_runs(beside_another: Device) -> None:
    with Watch(beside_another) as watch:
        x = torch.ones(2) + 1
        assert not watch.others
        moved = x.to("meta")
    assert on_meta(moved)
    assert watch.others == {None} and watch.reason is None


def test_random_numbers_on_another_device_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    device, states = twin_device(), {1: 0, 2: 0}
    monkeypatch.setattr(type(device), "states_elsewhere", lambda _: dict(states))
    with Watch(device) as watch:
        torch.rand(2)
    assert watch.reason is None
    with Watch(device) as watch:
        states[2] += 4
    assert watch.reason is None, "another thread's"
    with Watch(device) as watch:
        watch.others |= {1, 2}
        states[2] += 4
    assert watch.reason == (
        "it draws random numbers on cuda:2; a graph draws those of its first GPU alone"
    )


@pytest.mark.parametrize("way", ["made", "given"])
def test_a_callable_that_works_on_two_devices_runs_as_it_is(
    beside_another: Device, way: str
) -> None:
    def function(arguments: list[Any]) -> list[Any]:
        x, there = arguments
        return [x + 1, x.to("meta") if way == "made" else there]

    with fresh("twin") as place, torch.no_grad():
        graph = place.graphed(function)
        there = torch.empty(2, device="meta") if way == "given" else None
        for _ in range(4):
            x = place.randn(2)
            found = graph.dispatcher([x, there])
            assert torch.equal(found[0], x + 1) and on_meta(found[1])
        assert graph.report.state == "fallback"
        assert graph.report.reason == "it works on several devices"


@pytest.mark.parametrize("index", [0, 1])
def test_a_gpu_beside_another(index: int) -> None:
    with FakeTensorMode():
        x = torch.empty(2, device=f"cuda:{index}")
    assert Cuda(0).apart(x) == (index == 1)
    assert not Cuda(0).apart(torch.ones(2)) and not Cuda(0).apart(1)


@pytest.mark.parametrize("reach", [True, False])
def test_gpus_are_peers_where_they_reach_each_other(
    reach: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: reach)
    monkeypatch.setattr(cuda, "device_of", Cuda)
    if reach:
        joined = Cuda(1).joined_by({2, 0, 1})
        assert (joined.index, joined.peers) == (1, (0, 2))
        assert not joined.private_scratch
        with FakeTensorMode():
            tensors = [torch.empty(2, device=f"cuda:{index}") for index in range(4)]
        assert [joined.apart(each) for each in tensors] == [False, False, False, True]
        assert [joined.peer_of(each) for each in tensors[:3]] == [0, None, 2]
        assert [joined.number_of(joined.peer_of(each)) for each in tensors[:3]] == [1, 0, 2]
        assert [joined.number_of(each.device.index) for each in tensors[:3]] == [1, 0, 2]
    else:
        with pytest.raises(CaptureFailed, match="cuda:1, which cannot access memory of cuda:0"):
            Cuda(1).joined_by({0})


def test_higher_order_operators_are_let_through() -> None:
    """A plan has nothing against those that are not known."""
    x = torch.ones(2)
    kept: list[Any] = []
    with Watch(twin_device()) as watch, hold.hold_buffers((), kept):
        result = torch.ops.higher_order.wrap(lambda y: y + 1, x)
    assert torch.equal(result, x + 1) and watch.reason is None


def backward(seed: torch.Tensor) -> Any:
    """Attention's, on the device that stands for a GPU's but for the seed."""
    x = torch.empty(2, 4, 8, 16, dtype=torch.float16, device="meta")
    sums, cumulated = torch.empty(2, 4, 8, device="meta"), torch.empty(0, device="meta")
    before = [x, x, x, x, x, sums, cumulated, cumulated, 8, 8, 0.1, False]
    return aten._scaled_dot_product_flash_attention_backward.default(*before, seed, seed)


def test_a_seed_on_the_host_is_refused_in_a_capture() -> None:
    kept: list[Any] = []
    with hold.hold_buffers((), kept):
        on_device, on_host = (torch.empty((), dtype=torch.int64, device=d) for d in ("meta", "cpu"))
        backward(on_device)
        with pytest.raises(CaptureFailed) as failure:
            backward(on_host)
    assert failure.value.operator == "aten._scaled_dot_product_flash_attention_backward.default"
    assert str(failure.value) == f"{failure.value.operator} reads a random seed on the host"


def test_a_seed_on_the_host_is_right_outside_of_one() -> None:
    with Watch(Cuda(0)) as watch:
        backward(torch.empty((), dtype=torch.int64))
    assert watch.reason is None
