"""Pooling, resizing, sampling, padding."""

from __future__ import annotations

from typing import Any

import torch

from families.registry import Tensor, simple

F = torch.nn.functional

simple(
    "max_pool2d with indices and its gradient",
    "NCHW and NHWC kernels; the indices are a second result",
    lambda x, grad: _max_pool(x, grad),
    lambda make: [make.randn(2, 8, 20, 20), make.randn(2, 8, 10, 10)],
)


def _max_pool(x: Tensor, grad: Tensor) -> list[Any]:
    y, index = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    last = x.contiguous(memory_format=torch.channels_last)
    backward = torch.ops.aten.max_pool2d_with_indices_backward
    gradient = backward(grad, x, [3, 3], [2, 2], [1, 1], [1, 1], False, index)
    return [y, index, F.max_pool2d(last, 3, 2, 1), gradient]


simple(
    "avg_pool1d, 2d and 3d",
    "torch's own kernels",
    lambda x: [
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        F.avg_pool1d(x.flatten(2), 4),
        F.avg_pool3d(x.unsqueeze(1), 2),
    ],
    lambda make: [make.randn(2, 6, 16, 18)],
)
simple(
    "adaptive pooling",
    "average and maximum to sizes that do not divide",
    lambda x: [
        F.adaptive_avg_pool2d(x, (5, 3)),
        *F.adaptive_max_pool2d(x, (4, 7), return_indices=True),
        F.adaptive_avg_pool2d(x, 1),
    ],
    lambda make: [make.randn(2, 6, 17, 19)],
)
simple(
    "interpolate",
    "nearest, bilinear, bicubic, area",
    lambda x: [
        F.interpolate(x, scale_factor=2, mode="nearest"),
        F.interpolate(x, size=(23, 31), mode="bilinear", align_corners=False),
        F.interpolate(x, size=(9, 40), mode="bicubic", align_corners=True),
        F.interpolate(x, size=(5, 5), mode="area"),
    ],
    lambda make: [make.randn(2, 5, 14, 15)],
)
simple(
    "interpolate, antialiased",
    "separable kernels with shared memory",
    lambda x: F.interpolate(x, size=(11, 9), mode="bilinear", antialias=True),
    lambda make: [make.randn(2, 3, 32, 30)],
)
simple(
    "bilinear gradient",
    "added by atomics; of whole numbers and quarters, so exact",
    lambda grad: torch.ops.aten.upsample_bilinear2d_backward(
        grad, [20, 24], [2, 4, 10, 12], False, None, None
    ),
    lambda make: [make.whole(2, 4, 20, 24)],
)
simple(
    "grid_sample and affine_grid",
    "reads where a second argument says",
    lambda x, theta: [
        F.grid_sample(
            x,
            F.affine_grid(theta, [2, 3, 12, 12], align_corners=False),
            mode=mode,
            padding_mode="border",
            align_corners=False,
        )
        for mode in ("bilinear", "nearest", "bicubic")
    ],
    lambda make: [make.randn(2, 3, 16, 16), make.randn(2, 2, 3)],
)
simple(
    "pixel_shuffle and unfold",
    "copies of views, im2col and col2im",
    lambda x: [
        F.pixel_shuffle(x, 2),
        F.pixel_unshuffle(x, 2),
        F.unfold(x, 3, padding=1),
        F.fold(F.unfold(x, 2, stride=2), (8, 10), 2, stride=2),
    ],
    lambda make: [make.randn(2, 8, 8, 10)],
)
simple(
    "pad",
    "constant, reflect, replicate, circular",
    lambda x: [
        F.pad(x, (1, 2, 3, 0), value=0.25),
        *(F.pad(x, (2, 1, 1, 2), mode=mode) for mode in ("reflect", "replicate", "circular")),
    ],
    lambda make: [make.randn(2, 3, 9, 10)],
)
