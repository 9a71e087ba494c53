"""What torch.compile makes: Inductor's kernels, and AOTAutograd's graphs operator by operator."""

from __future__ import annotations

from typing import Any

import torch

from families.registry import AOT, INDUCTOR, Case, Make, Tensor, family, simple

F = torch.nn.functional


def _block(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    y = F.layer_norm(x, (64,), w[0], b)
    return x + F.gelu(y @ w) @ v


simple(
    "Inductor, pointwise",
    "one fused Triton kernel",
    lambda x, y: torch.tanh(x * y + 1).relu() - y.exp(),
    lambda make: [make.randn(65, 33), make.randn(65, 33)],
    path=INDUCTOR,
    gpu_only=True,
)
simple(
    "Inductor, reductions",
    "reductions in one block and over many, in two kernels",
    lambda x: [x.sum(), (x * x).mean(1), x.std(0)],
    lambda make: [make.randn(300, 2000)],
    path=INDUCTOR,
    gpu_only=True,
)
simple(
    "Inductor, persistent softmax",
    "one kernel that holds a row in registers",
    lambda x: torch.softmax(x * 0.1, -1) + 1,
    lambda make: [make.randn(48, 700)],
    path=INDUCTOR,
    gpu_only=True,
)
simple(
    "Inductor, transformer block",
    "Triton kernels between cuBLAS products, buffers reused",
    _block,
    lambda make: [make.randn(32, 64)],
    lambda make: [make.randn(64, 64), make.randn(64), make.randn(64, 64)],
    path=INDUCTOR,
    gpu_only=True,
)
simple(
    "Inductor, indexing and sorting",
    "generated gathers beside operators that are called",
    lambda x, i: [x[i] * 2, x.gather(0, i[:, None].expand(-1, 8)), x.sort(1).values + 1],
    lambda make: [make.randn(50, 8), make.ints(50, 30)],
    path=INDUCTOR,
    gpu_only=True,
)


@family("flex attention", "a template with the user's score function", path=INDUCTOR, gpu_only=True)
def _flex(make: Make) -> Case:
    from torch.nn.attention.flex_attention import flex_attention

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.where(q >= k, s + 0.1 * (k - q), -float("inf"))

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=score)

    return Case(function, lambda: [make.randn(1, 2, 128, 64, dtype=torch.float16) for _ in "qkv"])


simple(
    "AOTAutograd, transformer block",
    "the same block without code generation",
    _block,
    lambda make: [make.randn(32, 64)],
    lambda make: [make.randn(64, 64), make.randn(64), make.randn(64, 64)],
    path=AOT,
    gpu_only=True,
)
simple(
    "AOTAutograd, convolution and pooling",
    "cuDNN under AOTAutograd",
    lambda x, w: F.max_pool2d(F.relu(F.conv2d(x, w, padding=1)), 2),
    lambda make: [make.randn(2, 8, 16, 16)],
    lambda make: [make.randn(12, 8, 3, 3)],
    path=AOT,
    gpu_only=True,
)
