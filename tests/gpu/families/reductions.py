"""Reductions and scans over odd shapes."""

from __future__ import annotations

import torch

from families.registry import simple

simple(
    "sum and mean",
    "one and several blocks per result, partial sums in scratch memory",
    lambda x: [x.sum(), x.sum(0), x.sum((1, 2)), x.mean(-1), x.mean(1, keepdim=True)],
    lambda make: [make.randn(37, 53, 11)],
)
simple(
    "sum over many blocks",
    "global reduction with semaphores that must be zero",
    lambda x: [x.sum(), x.sum(0), x.double().mean(), x.norm()],
    lambda make: [make.randn(2047, 513)],
)
simple(
    "var, std, norm",
    "Welford's method, several norms",
    lambda x: [
        x.var(1),
        *torch.var_mean(x, (0, 2)),
        x.std(unbiased=False),
        torch.linalg.vector_norm(x, 3, dim=2),
        torch.linalg.vector_norm(x, float("inf"), dim=(0, 1)),
    ],
    lambda make: [make.randn(13, 41, 19)],
)
simple(
    "extrema and their positions",
    "values and indices",
    lambda x: [x.argmax(), x.argmin(1), x.amax((0, 2)), *x.max(1), *x.min(0), *x.aminmax(dim=2)],
    lambda make: [make.randn(9, 31, 45)],
)
simple(
    "logsumexp, prod, any, all",
    "reductions of other kinds",
    lambda x: [
        x.logsumexp((0, 1)),
        x.prod(1),
        (x > 0).any(1),
        (x > -3).all(),
        x.nansum(0),
        torch.count_nonzero(x, 1),
    ],
    lambda make: [make.randn(21, 35, 5)],
)
simple(
    "cumsum, cumprod, logcumsumexp, cummax",
    "scans within rows, and over one long row",
    lambda x, y: [
        x.cumsum(1),
        x.cumprod(0),
        x.logcumsumexp(1),
        *x.cummax(1),
        y.cumsum(0),
    ],
    lambda make: [make.randn(17, 130), make.whole(50_000)],
)
simple(
    "cdist and pairwise distances",
    "by products, and by torch's own kernel",
    lambda x, y: [
        torch.cdist(x, y),
        torch.cdist(x, y, p=1.0),
        torch.cdist(x, y, p=3.0),
        torch.nn.functional.pdist(x[0]),
        torch.nn.functional.cosine_similarity(x[:, :30], y[:, :30], dim=-1),
    ],
    lambda make: [make.randn(2, 40, 9), make.randn(2, 30, 9)],
)
simple(
    "histograms",
    "integer atomics, so exact; range and size are given, so nothing synchronises",
    lambda x, index: [
        torch.histc(x, 16, -2, 2),
        torch.zeros(20, dtype=torch.int64, device=x.device).scatter_add_(
            0, index, torch.ones_like(index)
        ),
        torch.bucketize(x, torch.linspace(-1, 1, 9, device=x.device)),
        torch.searchsorted(x.sort().values, x[:40]),
    ],
    lambda make: [make.randn(3000), make.ints(20, 700)],
)
simple(
    "segment_reduce",
    "segments by offsets",
    lambda x, offsets: torch.segment_reduce(
        x, "sum", offsets=torch.cat([offsets.new_zeros(1), offsets.long()]), unsafe=True
    ),
    lambda make: [make.randn(60, 7), make.ascending(9, 60).long()],
)
