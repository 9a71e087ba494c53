"""Scaled dot product attention by every back end, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from families.registry import Make, Tensor, simple

F = torch.nn.functional
aten = torch.ops.aten
FP16, BF16 = torch.float16, torch.bfloat16


def _qkv(make: Make, dtype: torch.dtype, count: int = 3, heads: int = 4) -> list[Any]:
    return [make.randn(2, heads, 64, 64, dtype=dtype) for _ in range(count)]


def _forward(
    name: str,
    why: str,
    backend: SDPBackend,
    dtype: torch.dtype,
    *,
    causal: bool = False,
    mask: bool = False,
    gpu_only: bool = True,
) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, *bias: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            attended = F.scaled_dot_product_attention(
                q, k, v, bias[0] if bias else None, is_causal=causal
            )
        # A layout of its own: back ends return transposed views.
        return attended.contiguous()

    def inputs(make: Make) -> list[Any]:
        bias = [make.randn(2, 4, 64, 64, dtype=dtype)] if mask else []
        return [*_qkv(make, dtype), *bias]

    simple(name, why, function, inputs, gpu_only=gpu_only)


_MATH, _FLASH = SDPBackend.MATH, SDPBackend.FLASH_ATTENTION
_EFFICIENT, _CUDNN = SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION

_forward("attention, math", "products and softmax", _MATH, torch.float32, gpu_only=False)
_forward(
    "attention, math, causal",
    "the mask is made by the callable",
    _MATH,
    FP16,
    causal=True,
    gpu_only=False,
)
_forward("attention, flash", "FlashAttention's parameter struct by value", _FLASH, FP16)
_forward("attention, flash, causal", "the same with a mask by index", _FLASH, BF16, causal=True)
_forward("attention, CUTLASS", "memory-efficient kernel, fp32", _EFFICIENT, torch.float32)
_forward("attention, CUTLASS, mask", "an additive mask as argument", _EFFICIENT, FP16, mask=True)
_forward("attention, CUTLASS, causal", "a mask by index", _EFFICIENT, BF16, causal=True)
_forward("attention, cuDNN", "a compiled cuDNN graph with TMA descriptors", _CUDNN, BF16)
_forward("attention, cuDNN, causal", "the same with a mask by index", _CUDNN, FP16, causal=True)
_forward("attention, cuDNN, mask", "an additive mask as argument", _CUDNN, FP16, mask=True)


def _boolean_mask(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, keep).contiguous()


simple(
    "attention, boolean mask",
    "torch chooses the back end; the mask becomes a bias first",
    _boolean_mask,
    lambda make: [
        *_qkv(make, FP16),
        make.bools(2, 1, 64, 64) | torch.eye(64, device=make.device).bool(),
    ],
)


def _gqa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True).contiguous()


simple(
    "attention, grouped queries",
    "fewer heads of keys and values than of queries",
    _gqa,
    lambda make: [make.randn(2, 8, 64, 64, dtype=BF16), *_qkv(make, BF16, 2, heads=2)],
)


def _flash_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor) -> list[Any]:
    out, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = (
        aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
    )
    gradients = aten._scaled_dot_product_flash_attention_backward(
        grad, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, 0.0, True, seed, offset
    )
    return [lse, *gradients]


def _efficient_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor) -> list[Any]:
    out, lse, seed, offset = aten._scaled_dot_product_efficient_attention(
        q, k, v, None, True, 0.0, False
    )
    gradients = aten._scaled_dot_product_efficient_attention_backward(
        grad, q, k, v, None, out, lse, seed, offset, 0.0, [True, True, True, False], False
    )
    return [lse, *gradients[:3]]


def _cudnn_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor) -> list[Any]:
    out, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = (
        aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True, False)
    )
    gradients = aten._scaled_dot_product_cudnn_attention_backward(
        grad, q, k, v, out, lse, seed, offset, None, cum_q, cum_k, max_q, max_k, 0.0, True
    )
    return list(gradients)


for _name, _function, _dtype in (
    ("flash", _flash_backward, BF16),
    ("CUTLASS", _efficient_backward, torch.float32),
    ("cuDNN", _cudnn_backward, FP16),
):
    simple(
        f"attention backward, {_name}",
        "forward and backward operators in one callable; may add by atomics",
        _function,
        lambda make, dtype=_dtype: _qkv(make, dtype, 4),
        gpu_only=True,
    )


def _multi_head(x: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor) -> Tensor:
    return F.multi_head_attention_forward(
        *(x, x, x, 64, 4, w_in, b_in, None, None, False, 0.0, w_out, b_out),
        training=False,
        need_weights=False,
    )[0]


simple(
    "multi-head attention",
    "projections, attention and output in one callable",
    _multi_head,
    lambda make: [make.randn(20, 3, 64)],
    lambda make: [
        make.randn(192, 64),
        make.randn(192),
        make.randn(64, 64),
        make.randn(64),
    ],
)
