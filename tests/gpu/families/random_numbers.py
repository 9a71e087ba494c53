"""Random numbers: drawn anew in every replay, and the callable's own after the same seed."""

from __future__ import annotations

import torch

from families.registry import simple

F = torch.nn.functional

simple(
    "dropout",
    "the generator's state is behind two pointers",
    lambda x: F.dropout(x, 0.4, training=True),
    lambda make: [make.randn(40, 50)],
)
simple(
    "random numbers",
    "several kernels draw, each a little further on",
    lambda x: [x + torch.rand_like(x), torch.bernoulli(x.sigmoid()), torch.randn_like(x)],
    lambda make: [make.randn(40, 50)],
)
simple(
    "attention with dropout",
    "draws in the kernel of attention",
    lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3).contiguous(),
    lambda make: [make.randn(2, 4, 32, 32, dtype=torch.float16)],
)
