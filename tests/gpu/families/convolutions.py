"""Convolutions: cuDNN forward and backward in both layouts, and torch's own depthwise kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from families.registry import Make, Tensor, simple

F = torch.nn.functional
LAST = torch.channels_last
FP16 = torch.float16


def _nchw(make: Make, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return make.randn(*shape, dtype=dtype)


def _nhwc(make: Make, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return make.randn(*shape, dtype=dtype).contiguous(memory_format=LAST)


Layout = Callable[..., Tensor]


def _forward(name: str, why: str, layout: Layout, dtype: torch.dtype) -> None:
    simple(
        name,
        why,
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        lambda make: [layout(make, 2, 16, 20, 20, dtype=dtype)],
        lambda make: [layout(make, 32, 16, 3, 3, dtype=dtype), make.randn(32, dtype=dtype)],
    )


def _backward(name: str, layout: Layout, dtype: torch.dtype) -> None:
    def gradients(grad: Tensor, x: Tensor, w: Tensor) -> list[Any]:
        return list(
            torch.ops.aten.convolution_backward(
                *(grad, x, w, [32], [1, 1], [1, 1], [1, 1]),
                *(False, [0, 0], 1, [True, True, True]),
            )
        )

    simple(
        name,
        "cuDNN's gradients of data and weight; the weight's may be added by atomics",
        gradients,
        lambda make: [
            layout(make, 2, 32, 16, 16, dtype=dtype),
            layout(make, 2, 16, 16, 16, dtype=dtype),
        ],
        lambda make: [layout(make, 32, 16, 3, 3, dtype=dtype)],
    )


_forward("conv2d NCHW fp32", "cuDNN, with layout kernels in front and behind", _nchw, torch.float32)
_forward("conv2d NCHW fp16", "cuDNN on tensor cores, layout kernels", _nchw, FP16)
_forward("conv2d NHWC fp16", "cuDNN in its own layout; strides are kept", _nhwc, FP16)
_forward("conv2d NHWC bf16", "cuDNN in its own layout", _nhwc, torch.bfloat16)
_backward("conv2d backward NCHW", _nchw, torch.float32)
_backward("conv2d backward NHWC", _nhwc, FP16)
simple(
    "conv1d, strided and dilated",
    "a convolution whose input gets a dimension",
    lambda x, w: F.conv1d(x, w, stride=2, dilation=2, padding=3),
    lambda make: [make.randn(2, 8, 50)],
    lambda make: [make.randn(12, 8, 5)],
)
simple(
    "conv3d",
    "cuDNN, three dimensions",
    lambda x, w, b: F.conv3d(x, w, b, stride=2),
    lambda make: [make.randn(1, 4, 8, 12, 12)],
    lambda make: [make.randn(8, 4, 3, 3, 3), make.randn(8)],
)
simple(
    "transposed convolution",
    "cuDNN's gradient of data used forwards",
    lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1),
    lambda make: [make.randn(2, 8, 10, 10)],
    lambda make: [make.randn(8, 6, 4, 4), make.randn(6)],
)
simple(
    "depthwise convolution",
    "torch's own kernel",
    lambda x, w, b: F.conv2d(x, w, b, padding=2, groups=24),
    lambda make: [make.randn(2, 24, 14, 14)],
    lambda make: [make.randn(24, 1, 5, 5), make.randn(24)],
)
simple(
    "grouped convolution",
    "cuDNN with groups",
    lambda x, w: F.conv2d(x, w, padding=1, groups=4),
    lambda make: [make.randn(2, 16, 12, 12, dtype=FP16)],
    lambda make: [make.randn(32, 4, 3, 3, dtype=FP16)],
)
