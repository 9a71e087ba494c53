"""Normalisation, softmax, losses and embeddings."""

from __future__ import annotations

from typing import Any

import torch

from families.registry import Make, Tensor, simple

F = torch.nn.functional
BF16 = torch.bfloat16


def _statistics(make: Make, channels: int) -> list[Any]:
    return [make.randn(channels), make.rand(channels) + 0.5]


simple(
    "batch_norm, evaluation",
    "running statistics are constants that move",
    lambda x, mean, variance, w, b: F.batch_norm(x, mean, variance, w, b),
    lambda make: [make.randn(4, 16, 9, 9)],
    lambda make: [*_statistics(make, 16), make.randn(16), make.randn(16)],
)
simple(
    "batch_norm, training",
    "writes the running statistics, which are its arguments",
    lambda x, mean, variance, w, b: F.batch_norm(x, mean, variance, w, b, training=True),
    lambda make: [make.randn(4, 16, 9, 9), *_statistics(make, 16)],
    lambda make: [make.randn(16), make.randn(16)],
)
simple(
    "layer_norm forward and backward",
    "vectorised kernels; the weight's gradient is reduced in two steps",
    lambda x, grad, w, b: _layer_norm(x, grad, w, b),
    lambda make: [make.randn(24, 80), make.randn(24, 80)],
    lambda make: [make.randn(80), make.randn(80)],
)
simple(
    "group_norm forward and backward",
    "fused scale and shift through scratch memory",
    lambda x, grad, w, b: _group_norm(x, grad, w, b),
    lambda make: [make.randn(2, 12, 7, 7), make.randn(2, 12, 7, 7)],
    lambda make: [make.randn(12), make.randn(12)],
)
simple(
    "instance_norm",
    "batch norm over a view, weights repeated",
    lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
    lambda make: [make.randn(3, 6, 11, 11)],
    lambda make: [make.randn(6), make.randn(6)],
)
simple(
    "rms_norm",
    "fused where torch has the kernel, else pointwise and mean",
    lambda x, w: F.rms_norm(x, (128,), w),
    lambda make: [make.randn(4, 10, 128, dtype=BF16)],
    lambda make: [make.randn(128, dtype=BF16)],
)


def _layer_norm(x: Tensor, grad: Tensor, w: Tensor, b: Tensor) -> list[Any]:
    y, mean, rstd = torch.native_layer_norm(x, (80,), w, b, 1e-5)
    backward = torch.ops.aten.native_layer_norm_backward
    return [y, *backward(grad, x, [80], mean, rstd, w, b, [True, True, True])]


def _group_norm(x: Tensor, grad: Tensor, w: Tensor, b: Tensor) -> list[Any]:
    y, mean, rstd = torch.native_group_norm(x, w, b, 2, 12, 49, 3, 1e-5)
    backward = torch.ops.aten.native_group_norm_backward
    return [y, *backward(grad, x, mean, rstd, w, 2, 12, 49, 3, [True, True, True])]


simple(
    "softmax, over the last and a middle dimension",
    "persistent and spatial kernels",
    lambda x: [torch.softmax(x, -1), torch.softmax(x, 1), torch.softmax(x.flatten(), 0)],
    lambda make: [make.randn(4, 33, 65)],
)
simple(
    "log_softmax and its gradient",
    "rows longer than a block",
    lambda x, grad: _log_softmax(x, grad),
    lambda make: [make.randn(6, 5000), make.randn(6, 5000)],
)


def _log_softmax(x: Tensor, grad: Tensor) -> list[Any]:
    y = torch.log_softmax(x, -1)
    backward = torch.ops.aten._log_softmax_backward_data
    return [y, backward(grad, y, -1, torch.float32)]


simple(
    "cross_entropy",
    "log_softmax and nll_loss, targets by index, weights per class",
    lambda x, target, w: [
        F.cross_entropy(x, target, w),
        F.cross_entropy(x, target, reduction="none", label_smoothing=0.1),
    ],
    lambda make: [make.randn(32, 50), make.ints(50, 32)],
    lambda make: [make.rand(50)],
)
simple(
    "other losses",
    "mse, smooth l1, kl, bce with logits",
    lambda x, y: [
        F.mse_loss(x, y),
        F.smooth_l1_loss(x, y, reduction="none"),
        F.kl_div(torch.log_softmax(x, -1), torch.softmax(y, -1), reduction="sum"),
        F.binary_cross_entropy_with_logits(x, torch.sigmoid(y)),
    ],
    lambda make: [make.randn(16, 40), make.randn(16, 40)],
)
simple(
    "embedding and its gradient",
    "rows by index; the gradient sorts the indices",
    lambda index, grad, w: [
        F.embedding(index, w),
        torch.ops.aten.embedding_dense_backward(grad, index, 100, -1, False),
    ],
    lambda make: [make.ints(100, 4, 12), make.randn(4, 12, 32)],
    lambda make: [make.randn(100, 32)],
)


def _bags(index: Tensor, offsets: Tensor, weight: Tensor) -> list[Any]:
    modes = ("sum", "mean", "max")
    return [F.embedding_bag(index, weight, offsets, mode=mode) for mode in modes]


simple(
    "embedding_bag",
    "sum, mean and max of bags that begin at offsets",
    _bags,
    lambda make: [make.ints(100, 40), _bag_offsets(make)],
    lambda make: [make.randn(100, 16)],
)


def _bag_offsets(make: Make) -> Tensor:
    offsets = make.ascending(6, 40).long()
    return torch.cat([torch.zeros_like(offsets[:1]), offsets[:-1]])


simple(
    "one_hot",
    "with the number of classes given, by scatter",
    lambda index: torch.zeros(*index.shape, 20, device=index.device).scatter_(
        -1, index.unsqueeze(-1), 1.0
    ),
    lambda make: [make.ints(20, 8, 9)],
)
