"""What no graph is made of: each has to fall back, say why, and be right."""

from __future__ import annotations

from typing import Any

import torch

from families.registry import FALLS_BACK, Make, Tensor, simple

F = torch.nn.functional
NOT_ALLOWED = "not allow during a capture"

simple(
    ".item()",
    "the host waits for a value",
    lambda x: x * x.sum().item(),
    lambda make: [make.randn(40, 50)],
    expect=FALLS_BACK,
    reason=NOT_ALLOWED,
)
simple(
    "copy to the host",
    "the host waits for a tensor",
    lambda x: x * 2 + x.cpu().mean().to(x.device),
    lambda make: [make.randn(40, 50)],
    expect=FALLS_BACK,
    reason=NOT_ALLOWED,
)
simple(
    "nonzero",
    "the size of the result is data",
    lambda x: torch.nonzero(x > 0.5),
    lambda make: [make.randn(40, 50)],
    expect=FALLS_BACK,
)
simple(
    "masked_select and unique",
    "the size of the result is data",
    lambda x, keep: [x[keep], torch.unique(x.round())],
    lambda make: [make.randn(20, 25), make.bools(20, 25)],
    expect=FALLS_BACK,
)
simple(
    "bincount",
    "the host reads the largest value",
    lambda index: torch.bincount(index, minlength=30),
    lambda make: [make.ints(30, 200)],
    expect=FALLS_BACK,
)
simple(
    "CTC loss",
    "lengths are copied from the host",
    lambda x, target: F.ctc_loss(
        x.log_softmax(-1), target, (20, 18, 20), (5, 6, 4), reduction="none"
    ),
    lambda make: [make.randn(20, 3, 12), make.ints(12, 3, 6, low=1)],
    expect=FALLS_BACK,
)
simple(
    "repeat_interleave by a tensor",
    "the size of the result is data",
    lambda x, counts: torch.repeat_interleave(x, counts, dim=0),
    lambda make: [make.randn(10, 5), make.ints(4, 10)],
    expect=FALLS_BACK,
)


def _csr(crow: Tensor, column: Tensor, values: Tensor) -> Tensor:
    return torch.sparse_csr_tensor(crow, column, values, (8, 8), check_invariants=False)


def _csr_parts(make: Make) -> list[Any]:
    """Eight rows with three values each, their columns in order."""
    crow = torch.arange(0, 25, 3, device=make.device)
    column = make.rand(8, 8).argsort(1)[:, :3].sort(1).values.reshape(-1)
    return [crow, column, make.randn(24)]


simple(
    "sparse CSR argument",
    "its parts are tensors behind one argument",
    lambda a, x: a @ x,
    lambda make: [_csr(*_csr_parts(make)), make.randn(8, 6)],
    expect=FALLS_BACK,
    reason="sparse_csr",
)
simple(
    "sparse CSR product",
    "cuSPARSE on a matrix made in the callable from its parts",
    lambda crow, column, values, x: _csr(crow, column, values) @ x,
    lambda make: [*_csr_parts(make), make.randn(8, 6)],
)
