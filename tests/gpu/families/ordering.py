"""Sorting and selecting."""

from __future__ import annotations

import torch

from families.registry import simple

simple(
    "sort of rows",
    "bitonic sort inside a block",
    lambda x: [*x.sort(1), *x.sort(0, descending=True)],
    lambda make: [make.randn(12, 300)],
)
simple(
    "sort of long rows",
    "CUB's segmented radix sort, buffers from the allocator",
    lambda x: list(x.sort(dim=1, stable=True)),
    lambda make: [make.randn(3, 20_000)],
)
simple(
    "argsort",
    "radix sort of one row, integers and bf16",
    lambda x, y: [x.argsort(stable=True), y.argsort(stable=True, descending=True)],
    lambda make: [make.permutation(5000), make.permutation(5000).to(torch.float32)],
)
simple(
    "topk",
    "radix selection, in one block and in several",
    lambda x, y: [*x.topk(7, dim=1), *x.topk(5, dim=0, largest=False), *y.topk(100)],
    lambda make: [make.randn(20, 500), make.randn(100_000)],
)
simple(
    "kthvalue, median, quantile",
    "selection without a whole sort; the values are all different",
    lambda x: [*x.kthvalue(11, 1), *x.median(1), x.median(), x.quantile(0.3, dim=1)],
    lambda make: [make.permutation(64 * 33).float().view(33, 64)],
)
