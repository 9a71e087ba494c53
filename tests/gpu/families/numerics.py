"""FFT and linear algebra: cuFFT, cuSOLVER and cuBLAS with their workspaces and pointer tables."""

from __future__ import annotations

import torch

from families.registry import FALLS_BACK, simple

linalg = torch.linalg
#: What torch's own error checks read back on the host.
CHECKS = "torch looks at the error codes on the host"

simple(
    "fft, real to complex",
    "cuFFT, work area from the allocator",
    lambda x: [torch.fft.rfft(x), torch.fft.rfft(x, n=97, dim=0)],
    lambda make: [make.randn(12, 256)],
)
simple(
    "fft, complex to real",
    "cuFFT writes its input, so torch copies it first",
    lambda x: [torch.fft.irfft(x), torch.fft.irfft2(x)],
    lambda make: [make.randn(8, 33, dtype=torch.complex64)],
)
simple(
    "fft, two dimensions",
    "complex, forward and back, with shifts",
    lambda x: [torch.fft.fft2(x), torch.fft.fftshift(torch.fft.ifft2(x, norm="ortho"))],
    lambda make: [make.randn(3, 24, 40, dtype=torch.complex64)],
)
simple(
    "stft",
    "frames as a strided view, a window, cuFFT",
    lambda x, window: torch.stft(x, 64, 16, window=window, return_complex=True),
    lambda make: [make.randn(2, 800)],
    lambda make: [make.rand(64)],
)
simple(
    "Cholesky, unchecked",
    "cuSOLVER, error codes left on the device",
    lambda x: linalg.cholesky_ex(x).L,
    lambda make: [make.definite(n=48)],
)
simple(
    "Cholesky, batched",
    "a kernel writes a table of pointers into device memory",
    lambda x: linalg.cholesky_ex(x).L,
    lambda make: [make.definite(4, n=24)],
)
simple(
    "LU and solve, unchecked",
    "cuSOLVER and cuBLAS, pivots",
    lambda x, y: [*linalg.lu_factor_ex(x)[:2], linalg.solve_ex(x, y).result],
    lambda make: [make.definite(n=40), make.randn(40, 6)],
)
simple(
    "solve, batched and unchecked",
    "tables of pointers that kernels compute from base addresses",
    lambda x, y: linalg.solve_ex(x, y).result,
    lambda make: [make.definite(5, n=16), make.randn(5, 16, 3)],
)
simple(
    "triangular solve",
    "cuBLAS TRSM, one matrix and a batch",
    lambda x, y: [
        linalg.solve_triangular(x[0].triu(), y[0], upper=True),
        linalg.solve_triangular(x.triu(), y, upper=True),
    ],
    lambda make: [make.definite(3, n=24), make.randn(3, 24, 8)],
)
simple(
    "inverse, unchecked",
    "LU with the identity",
    lambda x: linalg.inv_ex(x).inverse,
    lambda make: [make.definite(n=24)],
)
simple(
    "QR",
    "cuSOLVER's geqrf and orgqr, or cuBLAS in batches",
    lambda x: list(linalg.qr(x)),
    lambda make: [make.randn(40, 24)],
)
simple(
    "matrix powers and chains",
    "products in an order that torch chooses",
    lambda x: [linalg.matrix_power(x, 5), linalg.multi_dot([x, x.mT, x])],
    lambda make: [make.randn(20, 20)],
)
simple(
    "eigh",
    CHECKS,
    lambda x: list(linalg.eigh(x)),
    lambda make: [make.definite(n=20)],
    expect=FALLS_BACK,
)
simple(
    "SVD",
    CHECKS,
    lambda x: list(linalg.svd(x, full_matrices=False)),
    lambda make: [make.randn(24, 16)],
    expect=FALLS_BACK,
)
simple(
    "Cholesky, checked",
    CHECKS,
    linalg.cholesky,
    lambda make: [make.definite(n=20)],
    expect=FALLS_BACK,
)
simple(
    "solve, checked",
    CHECKS,
    linalg.solve,
    lambda make: [make.definite(n=20), make.randn(20, 3)],
    expect=FALLS_BACK,
)
