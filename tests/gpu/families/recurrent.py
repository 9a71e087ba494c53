"""Recurrent layers: cuDNN's, which copies the weights into one block first, and torch's cells."""

from __future__ import annotations

from typing import Any

import torch

from families.registry import Make, Tensor, simple

SIZE, HIDDEN = 32, 48


def _weights(make: Make, gates: int, directions: int = 1) -> list[Any]:
    rows = gates * HIDDEN
    one = [(rows, SIZE), (rows, HIDDEN), (rows,), (rows,)]
    return [make.randn(*shape) / 8 for _ in range(directions) for shape in one]


def _lstm(x: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> Any:
    return torch._VF.lstm(x, (h, c), list(weights), True, 1, 0.0, False, len(weights) > 4, False)


def _gru(x: Tensor, h: Tensor, *weights: Tensor) -> Any:
    return torch._VF.gru(x, h, list(weights), True, 1, 0.0, False, False, False)


simple(
    "LSTM",
    "cuDNN, several streams inside, weights copied by copy nodes",
    _lstm,
    lambda make: [make.randn(12, 4, SIZE), make.randn(1, 4, HIDDEN), make.randn(1, 4, HIDDEN)],
    lambda make: _weights(make, 4),
)
simple(
    "LSTM, both directions",
    "the same with branches that run side by side",
    _lstm,
    lambda make: [make.randn(12, 4, SIZE), make.randn(2, 4, HIDDEN), make.randn(2, 4, HIDDEN)],
    lambda make: _weights(make, 4, directions=2),
)
simple(
    "GRU",
    "cuDNN",
    _gru,
    lambda make: [make.randn(12, 4, SIZE), make.randn(1, 4, HIDDEN)],
    lambda make: _weights(make, 3),
)
simple(
    "recurrent cells",
    "torch's fused LSTM and GRU cells",
    lambda x, h, c, *w: [
        *torch.lstm_cell(x, (h, c), *w[:4]),
        torch.gru_cell(x, h, *w[4:]),
    ],
    lambda make: [make.randn(6, SIZE), make.randn(6, HIDDEN), make.randn(6, HIDDEN)],
    lambda make: [*_weights(make, 4), *_weights(make, 3)],
)
