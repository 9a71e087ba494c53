"""Convolutions' gradients, each computed by a call of its own while capturing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pygraph.capturing import hold, separate
from pygraph.torch_private import convolution

BACKWARD = torch.ops.aten.convolution_backward.default
LAST = torch.channels_last


@pytest.fixture(autouse=True)
def cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors' convolutions pass for cuDNN's."""
    choose = torch._C._ConvBackend.Cudnn
    monkeypatch.setattr(convolution, "select_backend", lambda *_, **__: choose)


def arguments(mask: list[bool], dimensions: int = 2) -> list[Any]:
    """Of a convolution of 3 to 4 channels without padding."""
    sizes = [5] * dimensions
    ones, zeros = [1] * dimensions, [0] * dimensions
    grad, x = torch.randn(2, 4, *sizes), torch.randn(2, 3, *(size + 2 for size in sizes))
    weight = torch.randn(4, 3, *[3] * dimensions)
    return [grad, x, weight, [4], ones, zeros, ones, False, zeros, 1, mask]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("data", [False, True])
def test_each_gradient_is_asked_for_alone(data: bool, weight: bool, bias: bool) -> None:
    args = arguments([data, weight, bias])
    calls = separate.calls_of(BACKWARD, args, {})
    wanted = data + weight + bias
    assert len(calls) == (wanted if wanted > 1 else 0)
    assert [sum(call[-1]) for call in calls] == [1] * len(calls)
    if calls:
        found = separate.joined([BACKWARD(*call) for call in calls])
        expected = BACKWARD(*args)
        assert [each is None for each in found] == [each is None for each in expected]
        for left, right in zip(found, expected, strict=True):
            assert left is right is None or torch.equal(left, right)


def test_a_capture_calls_so_and_keeps_each_result() -> None:
    args = arguments([True, True, False])
    expected = BACKWARD(*args)
    kept: list[Any] = []
    nodes = iter(range(100))
    with hold.hold_buffers((), kept, lambda: 4 * next(nodes)) as mode:
        found = BACKWARD(*args)
    assert all(
        torch.equal(left, right) for left, right in zip(found[:2], expected[:2], strict=True)
    )
    assert found[2] is None
    assert [each.data_ptr() for each in kept] == [each.data_ptr() for each in found[:2]]
    assert mode.operators == [(0, 4), (8, 12)]  # each launched its own nodes


@pytest.mark.parametrize("position", [0, 1, 2], ids=["gradient", "input", "weight"])
def test_what_would_be_converted_twice_is_one_call(position: int) -> None:
    args = arguments([True, True, False])
    assert separate.calls_of(BACKWARD, args, {})
    args[position] = args[position].contiguous(memory_format=LAST)
    assert separate.calls_of(BACKWARD, args, {}) == []


def test_one_dimensional_convolutions_are_one_call() -> None:
    assert separate.calls_of(BACKWARD, arguments([True, True, False], 1), {}) == []
    assert len(separate.calls_of(BACKWARD, arguments([True, True, False], 3), {})) == 2


def test_other_backends_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = torch._C._ConvBackend.Mkldnn
    monkeypatch.setattr(convolution, "select_backend", lambda *_, **__: choose)
    assert separate.calls_of(BACKWARD, arguments([True, True, True]), {}) == []


def test_other_operators_are_one_call() -> None:
    x = torch.ones(2)
    assert separate.calls_of(torch.ops.aten.add.Tensor, [x, x], {}) == []
    assert separate.calls_of(print, [], {}) == []


def test_a_call_with_names_is_one_call() -> None:
    *args, mask = arguments([True, True, True])
    assert separate.calls_of(BACKWARD, args, {"output_mask": mask}) == []
