"""Matrix products: cuBLAS, cuBLASLt and CUTLASS in every type, with epilogues and scales."""

from __future__ import annotations

from typing import Any

import torch

from families.registry import Case, Make, Tensor, family, simple

F = torch.nn.functional
BF16, FP16 = torch.bfloat16, torch.float16
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def _mm(name: str, why: str, dtype: torch.dtype, m: int = 96, k: int = 128, n: int = 160) -> None:
    simple(
        name,
        why,
        lambda x, w: x @ w,
        lambda make: [make.randn(m, k, dtype=dtype)],
        lambda make: [make.randn(k, n, dtype=dtype)],
    )


_mm("mm fp32", "cuBLAS, workspace from the allocator", torch.float32)
_mm("mm fp32, odd shape", "cuBLAS kernels for unaligned rows", torch.float32, 37, 67, 131)
_mm("mm fp64", "cuBLAS DGEMM on tensor cores", torch.float64)
_mm("mm bf16", "nvjet: one packed block passed in extra", BF16, 256, 256, 256)
_mm("mm bf16, split K", "partial sums in the workspace", BF16, 64, 8192, 64)
_mm("mm fp16", "nvjet or xmma, fp16 accumulators off", FP16, 256, 128, 64)
_mm("mm complex64", "cuBLAS CGEMM", torch.complex64, 32, 48, 40)


def _tf32(x: Tensor, w: Tensor) -> Tensor:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return x @ w
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


simple(
    "mm tf32",
    "cuBLAS with TF32 allowed",
    _tf32,
    lambda make: [make.randn(128, 256)],
    lambda make: [make.randn(256, 192)],
)
simple(
    "addmm with bias",
    "cuBLASLt epilogue: the bias is an address inside the kernel's block",
    lambda x, b, w: torch.addmm(b, x, w),
    lambda make: [make.randn(64, 128, dtype=BF16)],
    lambda make: [make.randn(256, dtype=BF16), make.randn(128, 256, dtype=BF16)],
)
simple(
    "addmm with bias and GELU",
    "cuBLASLt epilogue with an activation",
    lambda x, b, w: torch._addmm_activation(b, x, w, use_gelu=True),
    lambda make: [make.randn(64, 128, dtype=BF16)],
    lambda make: [make.randn(256, dtype=BF16), make.randn(128, 256, dtype=BF16)],
)
simple(
    "addmm with bias and ReLU",
    "cuBLASLt epilogue with an activation, fp32",
    lambda x, b, w: torch._addmm_activation(b, x, w),
    lambda make: [make.randn(64, 128)],
    lambda make: [make.randn(256), make.randn(128, 256)],
)
simple(
    "linear, transposed operands",
    "the weight is read transposed, the input is a view",
    lambda x, w, b: F.linear(x.mT, w, b),
    lambda make: [make.randn(2, 64, 48, dtype=FP16)],
    lambda make: [make.randn(32, 64, dtype=FP16), make.randn(32, dtype=FP16)],
)
simple(
    "bmm fp32 and bf16",
    "strided batches",
    lambda x, y: [torch.bmm(x, y), torch.bmm(x.to(BF16), y.to(BF16))],
    lambda make: [make.randn(8, 32, 64), make.randn(8, 64, 48)],
)
simple(
    "baddbmm",
    "reads its output's initial value from a copy",
    lambda c, x, y: torch.baddbmm(c, x, y, beta=0.5, alpha=2.0),
    lambda make: [make.randn(4, 16, 24), make.randn(4, 16, 32), make.randn(4, 32, 24)],
)
simple(
    "vector products",
    "mv, dot, outer, addr: cuBLAS GEMV and DOT with the result on the device",
    lambda a, x, y: [a @ x, torch.dot(x, x), torch.outer(y, x), torch.addr(a, y, x)],
    lambda make: [make.randn(96, 64), make.randn(64), make.randn(96)],
)
simple(
    "einsum",
    "several contractions that become batched products and permutations",
    lambda x, y, z: torch.einsum("bik,bkj,jl->bil", x, y, z),
    lambda make: [make.randn(4, 16, 24), make.randn(4, 24, 20), make.randn(20, 12)],
)
simple(
    "int8 product",
    "cuBLASLt IMMA, int32 result",
    lambda x, w: torch._int_mm(x, w.t()),
    lambda make: [make.ints(255, 64, 128, low=-127).to(torch.int8)],
    lambda make: [make.ints(255, 96, 128, low=-127).to(torch.int8)],
)


def _int8_linear(x: Tensor, w: Tensor, scales: Tensor) -> Tensor:
    scale = x.abs().amax(dim=1, keepdim=True) / 127
    q = torch.round(x / scale).clamp(-127, 127).to(torch.int8)
    return torch._int_mm(q, w.t()) * scale * scales


simple(
    "quantised int8 linear",
    "dynamic quantisation, IMMA, and rescaling",
    _int8_linear,
    lambda make: [make.randn(32, 64)],
    lambda make: [make.ints(255, 48, 64, low=-127).to(torch.int8), make.rand(48)],
)
simple(
    "int8 weights, bf16 activations",
    "torch's own kernel for packed weights",
    lambda x, w, scales: torch._weight_int8pack_mm(x, w, scales),
    lambda make: [make.randn(16, 64, dtype=BF16)],
    lambda make: [make.ints(255, 32, 64, low=-127).to(torch.int8), make.rand(32).to(BF16)],
)


@family("int4 weights, bf16 activations", "tinygemm: weights packed 4 to a word", gpu_only=True)
def _int4(make: Make) -> Case:
    n, k, group = 64, 128, 32

    def constants() -> list[Any]:
        weight = make.ints(256, n, k // 2).to(torch.uint8)
        return [
            torch._convert_weight_to_int4pack(weight, 8),
            make.randn(k // group, n, 2, dtype=BF16),
        ]

    return Case(
        lambda x, w, scales: torch._weight_int4pack_mm(x, w, group, scales),
        lambda: [make.randn(16, k, dtype=BF16)],
        constants,
    )


def _fp8(name: str, why: str, left: torch.dtype, rowwise: bool = False) -> None:
    def scales(make: Make) -> list[Any]:
        return [make.rand(64, 1), make.rand(1, 96)] if rowwise else [make.rand(1), make.rand(1)]

    def product(x: Tensor, w: Tensor, scale_x: Tensor, scale_w: Tensor) -> Tensor:
        return torch._scaled_mm(x, w.t(), scale_a=scale_x, scale_b=scale_w, out_dtype=BF16)

    simple(
        name,
        why,
        lambda x, scale_x, w, scale_w: product(x, w, scale_x, scale_w),
        lambda make: [make.randn(64, 128).to(left), scales(make)[0]],
        lambda make: [make.randn(96, 128).to(E4M3), scales(make)[1]],
        gpu_only=True,
    )


_fp8("fp8 e4m3", "cuBLASLt, scales read through addresses in the block", E4M3)
_fp8("fp8 e5m2", "cuBLASLt with mixed fp8 types", E5M2)
_fp8("fp8 by rows", "CUTLASS with TMA descriptors as kernel parameters", E4M3, rowwise=True)


@family("functional scaled_mm", "the public name of fp8 products, with a bias", gpu_only=True)
def _scaled_mm(make: Make) -> Case:
    tensorwise = F.ScalingType.TensorWise

    def function(x: Tensor, a: Tensor, w: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        return F.scaled_mm(x, w.t(), a, tensorwise, b, tensorwise, bias=bias, output_dtype=BF16)

    return Case(
        function,
        lambda: [make.randn(64, 128).to(E4M3), make.rand(1)],
        lambda: [make.randn(96, 128).to(E4M3), make.rand(1), make.randn(96, dtype=BF16)],
    )


simple(
    "grouped product",
    "CUTLASS grouped GEMM: a kernel writes pointers and descriptors into device memory",
    lambda x, offsets, w: torch._grouped_mm(x, w.mT, offs=offsets),
    lambda make: [make.randn(64, 64, dtype=BF16), make.ascending(4, 64)],
    lambda make: [make.randn(4, 32, 64, dtype=BF16)],
    gpu_only=True,
)
