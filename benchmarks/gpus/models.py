"""Stacks of blocks as large language models have them, written so that torch's own plans split
them: each projection is a Linear of its own, and heads are counted by what a rank has of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import gelu, rms_norm, scaled_dot_product_attention, silu


class LlamaBlock(nn.Module):
    """RMSNorm, rotary attention, gated feed-forward; with a cache of keys and values or without."""

    def __init__(self, width: int, heads: int, cache: tuple[int, int] | None, ranks: int) -> None:
        """`cache`: (batch, positions). Each rank keeps its own heads' part of it."""
        super().__init__()
        self.size = width // heads
        hidden = 8 * width // 3 // 64 * 64 or 64
        self.first, self.second = (nn.Parameter(torch.ones(width)) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)
        if cache is not None:
            batch, positions = cache
            for name in ("keys", "values"):
                held = torch.zeros(batch, heads // ranks, positions, self.size)
                self.register_buffer(name, held, persistent=False)
        self.cached = cache is not None

    def forward(self, x: torch.Tensor, turns: Any, position: Any, mask: Any) -> torch.Tensor:
        batch, length, width = x.shape
        y = rms_norm(x, (width,), self.first)
        q, k, v = (
            each(y).view(batch, length, -1, self.size).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        q, k = _turned(q, turns), _turned(k, turns)
        if self.cached:
            self.keys.index_copy_(2, position, k)
            self.values.index_copy_(2, position, v)
            k, v = self.keys, self.values
        y = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=not self.cached)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, -1))
        y = rms_norm(x, (width,), self.second)
        return x + self.down(silu(self.gate(y)) * self.up(y))


def _turned(x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cosine, sine = turns
    low, high = x.chunk(2, -1)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)


class Llama(nn.Module):
    """A stack of them; a decode step where there is a cache: one token at a position."""

    def __init__(
        self, layers: int, width: int, heads: int, cache: tuple[int, int] | None, ranks: int
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, cache, ranks) for _ in range(layers))
        positions = 4096 if cache is None else cache[1]
        size = width // heads
        angles = torch.outer(torch.arange(positions), 10000.0 ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)
        self.register_buffer("places", torch.arange(positions), persistent=False)

    def forward(self, x: torch.Tensor, position: torch.Tensor | None = None) -> torch.Tensor:
        if position is None:
            turns = self.cosine[: x.shape[1]], self.sine[: x.shape[1]]
            mask = None
        else:
            turns = self.cosine[position], self.sine[position]
            mask = (self.places <= position)[None, None, None]
        for block in self.blocks:
            x = block(x, turns, position, mask)
        return x

    plan = {
        **dict.fromkeys(("q", "k", "v", "gate", "up"), ColwiseParallel),
        **dict.fromkeys(("o", "down"), RowwiseParallel),
    }


class GptBlock(nn.Module):
    """LayerNorm, attention, feed-forward with GELU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        y = self.first(x)
        q, k, v = (
            each(y).view(batch, length, -1, self.size).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, -1))
        return x + self.down(gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    plan = {
        **dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel),
        **dict.fromkeys(("o", "down"), RowwiseParallel),
    }


def staged(model: Any, devices: Sequence[torch.device]) -> Any:
    """Gives each device as many blocks as the others. What a block is called with is brought to its
    device, and the result back to the first, by functions in place of `forward`, as accelerate
    puts them there."""
    each = -(-len(model.blocks) // len(devices))
    model.to(devices[0])
    for number, block in enumerate(model.blocks):
        here = devices[number // each]
        block.to(here).forward = functools.partial(_brought, here, block.forward)
    model.forward = functools.partial(_brought_back, devices[0], model.forward)
    return model


def _brought(device: torch.device, forward: Callable[..., Any], *given: Any) -> Any:
    return forward(*_on(device, given))


def _brought_back(device: torch.device, forward: Callable[..., Any], *given: Any) -> Any:
    return _on(device, forward(*given))


def _on(device: torch.device, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_on(device, each) for each in value)
    return value.to(device) if isinstance(value, torch.Tensor) else value


def tensor_parallel(model: Any, mesh: Any) -> Any:
    """Splits each block among the ranks of the mesh."""
    for block in model.blocks:
        parallelize_module(block, mesh, {name: make() for name, make in model.plan.items()})
    return model
