"""Operators that are not even tried in a capture, told by what a plan asks, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pygraph.capturing import hold
from pygraph.capturing.cuda import Cuda
from pygraph.capturing.device import CaptureFailed
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
