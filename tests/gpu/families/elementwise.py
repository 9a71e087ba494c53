"""Pointwise operators and copies of views."""

from __future__ import annotations

from typing import Any

import torch

from families.registry import Tensor, simple

F = torch.nn.functional
BF16 = torch.bfloat16

simple(
    "activations",
    "vectorised kernels, several outputs",
    lambda x: [f(x) for f in (F.gelu, F.silu, torch.tanh, F.softplus, F.mish, F.hardswish)],
    lambda make: [make.randn(33, 65)],
)
simple(
    "bf16 pointwise",
    "mixed types, computed in fp32",
    lambda x, y: [x * y + 0.5, torch.exp(x) / (1 + y.abs()), x + y.float(), torch.lerp(x, y, 0.3)],
    lambda make: [make.randn(40, 72, dtype=BF16), make.randn(40, 72, dtype=BF16)],
)
simple(
    "complex pointwise",
    "products, exponentials, conjugates, real parts",
    lambda x, y: [
        x * y.conj(),
        torch.exp(x),
        torch.view_as_real(x / (y + 2)).clone(),
        x.real + y.imag,
        torch.polar(x.abs(), y.angle()),
    ],
    lambda make: [make.randn(24, 36, dtype=torch.complex64) for _ in range(2)],
)
simple(
    "integer and boolean pointwise",
    "bit operations, shifts, division, comparisons",
    lambda x, y: [x & y, x ^ y, x << (y % 5), x // (y + 1), x % (y + 1), (x > y) | (x == 0)],
    lambda make: [make.ints(1000, 31, 47), make.ints(1000, 31, 47)],
)
simple(
    "special functions",
    "compiled at run time by torch (NVRTC) or with long kernels",
    lambda x: [
        torch.special.erfinv(x - 0.5),
        torch.lgamma(x + 1),
        torch.special.i0e(x),
        torch.special.zeta(x + 1.5, torch.tensor(2.0)),
        torch.special.bessel_j0(x),
    ],
    lambda make: [make.rand(17, 29)],
)
simple(
    "broadcasting",
    "offset calculators by value, strides of zero, odd shapes",
    lambda x, y, z: [x + y, x * z, torch.maximum(y, z), torch.where(x > 0, y, z), x - 2 * y],
    lambda make: [make.randn(7, 1, 13), make.randn(1, 11, 13), make.randn(11, 1)],
)
simple(
    "views as arguments",
    "transposed, strided and expanded inputs keep their strides",
    lambda x, y, z: [x + 1, y * 2, z.exp(), x.mT @ y[:, :24]],
    lambda make: [
        make.randn(48, 20).mT,
        make.randn(40, 64)[::2, ::2],
        make.randn(1, 30).expand(9, 30),
    ],
)


def _slices(x: Tensor) -> list[Any]:
    y = x.relu()
    return [x[:, 3:11] + 1, y[2:, ::3] * 2, x.narrow(0, 5, 4).clone(), y[1].contiguous()]


simple(
    "slices",
    "addresses inside a region: addends that are not zero",
    _slices,
    lambda make: [make.randn(12, 33)],
)
simple(
    "cat of 16",
    "addresses in a table by value",
    lambda *tensors: torch.cat(tensors, 1),
    lambda make: [make.randn(6, 3 + i) for i in range(16)],
)
simple(
    "cat of 200 and stack",
    "more tensors than one launch takes",
    lambda *tensors: [torch.cat(tensors), torch.stack(tensors), torch.stack(tensors[:9], -1)],
    lambda make: [make.randn(5, 7) for _ in range(200)],
)
simple(
    "split, roll, flip",
    "copies of views in other orders",
    lambda x: [
        *(part + 1 for part in x.split(5, 1)),
        torch.roll(x, (3, -2), (0, 1)),
        torch.flip(x, (0, 2)),
        torch.rot90(x, 1, (1, 2)),
        x.repeat(2, 1, 3),
        x.repeat_interleave(3, dim=1),
    ],
    lambda make: [make.randn(4, 17, 6)],
)
simple(
    "as_strided copies",
    "overlapping windows",
    lambda x: [
        x.as_strided((6, 10), (7, 1), 4).clone(),
        x.unfold(0, 8, 3).contiguous(),
        x.view(16, 16).t().contiguous(),
        x.view(4, 4, 16).permute(2, 0, 1).contiguous(),
    ],
    lambda make: [make.randn(256)],
)
simple(
    "writes into views and arguments",
    "the callable writes one argument and parts of its scratch memory",
    lambda x, y: _write(x, y),
    lambda make: [make.randn(20, 30), make.randn(20, 30)],
)


def _write(x: Tensor, y: Tensor) -> Tensor:
    z = torch.zeros_like(x)
    z[:, 4:9].copy_(y[:, 4:9])
    z[3].fill_(2.0)
    y.mul_(0.5).add_(x)
    x[5:7, ::2].zero_()
    return z * x


simple(
    "fills and copies",
    "memset nodes and copy nodes",
    lambda x: [
        torch.zeros(33, 7, device=x.device),
        torch.full((5,), 7, dtype=torch.int64, device=x.device),
        torch.arange(3, 40, device=x.device),
        torch.linspace(0, 1, 19, device=x.device),
        torch.eye(6, device=x.device),
        x.clone(),
        torch.tril(x),
        torch.triu(x, 2),
    ],
    lambda make: [make.randn(30, 30)],
)
simple(
    "type conversions",
    "every width and fp8",
    lambda x: [
        x.to(t)
        for t in (
            BF16,
            torch.float16,
            torch.float64,
            torch.int32,
            torch.int8,
            torch.bool,
            torch.float8_e4m3fn,
            torch.complex64,
        )
    ],
    lambda make: [make.randn(21, 45)],
)
