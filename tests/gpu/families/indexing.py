"""Gathering, scattering and masking with results of known sizes."""

from __future__ import annotations

from typing import Any

import torch

from families.registry import Make, Tensor, simple


def _with_index(make: Make) -> list[Any]:
    return [make.randn(40, 24), make.ints(40, 15), make.ints(24, 15)]


simple(
    "index",
    "addresses of the indices in a table by value",
    lambda x, i, j: [x[i], x[i, j], x[:, j], x[i[:5, None], j[None, :6]]],
    _with_index,
)
simple(
    "index_put",
    "into a clone, at places that are all different",
    lambda x, i, v: torch.index_put(x, (i,), v),
    lambda make: [make.randn(40, 24), make.permutation(40)[:15], make.randn(15, 24)],
)
simple(
    "index_put, accumulating",
    "sorts the indices first, so it is deterministic",
    lambda x, i, v: torch.index_put(x, (i,), v, accumulate=True),
    lambda make: [make.randn(40, 24), make.ints(40, 90), make.randn(90, 24)],
)
simple(
    "gather and take",
    "gather, take, take_along_dim, index_select",
    lambda x, i: [
        x.gather(0, i),
        torch.take(x, i),
        torch.take_along_dim(x, i, dim=0),
        x.index_select(0, i[0]),
    ],
    lambda make: [make.randn(30, 25), make.ints(30, 12, 25)],
)
simple(
    "scatter",
    "values and a scalar at places that are all different",
    lambda x, i, v: [x.scatter(1, i, v), x.scatter(1, i, 3.0)],
    lambda make: [
        make.randn(16, 20),
        make.rand(16, 20).argsort(1)[:, :9],
        make.randn(16, 9),
    ],
)
simple(
    "scatter_add",
    "floating atomics, of whole numbers and so exact",
    lambda x, i, v: x.scatter_add(0, i, v),
    lambda make: [make.whole(8, 32), make.ints(8, 200, 32), make.whole(200, 32)],
)
simple(
    "scatter_add, rounding",
    "floating atomics in any order: within its own spread",
    lambda x, i, v: x.scatter_add(0, i, v),
    lambda make: [make.randn(4, 32), make.ints(4, 20_000, 32), make.randn(20_000, 32)],
)
simple(
    "scatter_reduce",
    "amax, amin, prod and mean of what meets",
    lambda x, i, v: [x.scatter_reduce(0, i, v, reduce=how) for how in ("amax", "amin", "mean")],
    lambda make: [make.whole(8, 32), make.ints(8, 50, 32), make.whole(50, 32)],
)
simple(
    "index_add, index_copy, index_fill",
    "rows by index; index_add by atomics",
    lambda x, i, j, v: [
        x.index_add(0, i, v),
        x.index_copy(0, j, v),
        x.index_fill(0, j, -1.0),
    ],
    lambda make: [
        make.whole(30, 18),
        make.ints(30, 12),
        make.permutation(30)[:12],
        make.whole(12, 18),
    ],
)


def _masks(x: Tensor, y: Tensor, keep: Tensor) -> list[Any]:
    return [
        x.masked_fill(keep, -1e9),
        torch.where(keep, x, y),
        x.masked_scatter(keep, y),
        torch.where(keep, x, 0.0).sum(0),
    ]


simple(
    "masked_fill, where, masked_scatter",
    "masks whose results have the size of their arguments",
    _masks,
    lambda make: [make.randn(19, 23), make.randn(19, 23), make.bools(19, 23)],
)
simple(
    "diagonals and triangles",
    "views that are written, indices of triangles",
    lambda x: [
        x.diagonal().clone(),
        torch.diag_embed(x),
        x.diagonal_scatter(torch.zeros(12, device=x.device)),
        x[tuple(torch.tril_indices(12, 12, device=x.device))],
    ],
    lambda make: [make.randn(12, 12)],
)
