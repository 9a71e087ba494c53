"""Transformers on tokens: tied embeddings, causal attention, accumulation, checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from training.workload import Setup, Training


@dataclasses.dataclass(frozen=True)
class Size:
    words: int
    length: int
    width: int
    layers: int
    heads: int
    batch: int


SMALL = Size(words=61, length=12, width=32, layers=2, heads=4, batch=2)
FULL = Size(words=8192, length=128, width=384, layers=6, heads=6, batch=8)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.p = heads, causal, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).split(width, 2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.p if self.training else 0.0,
            is_causal=self.causal,
        )
        out: torch.Tensor = self.dropout(self.out(mixed.transpose(1, 2).reshape(x.shape)))
        return out


def _feed_forward(width: int, dropout: float, approximate: str) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, 4 * width),
        nn.GELU(approximate=approximate),
        nn.Linear(4 * width, width),
        nn.Dropout(dropout),
    )


# ---------------------------------------------------------------------------------------- GPT-2


class GPT2Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, 0.1, causal=True)
        self.mlp = _feed_forward(width, 0.1, "tanh")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class GPT2(nn.Module):
    """Returns the loss of predicting each next token."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.words, size.width)
        self.positions = nn.Embedding(size.length, size.width)
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.ModuleList(GPT2Layer(size.width, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.words, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def gpt2(setup: Setup) -> Training:
    size = setup.pick(SMALL, FULL)
    model = setup.place(GPT2(size))
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, step_size=10, gamma=0.7)
    compiled = setup.compile(model)

    def step(index: int) -> list[torch.Tensor]:
        optimiser.zero_grad()
        losses = []
        for _ in range(2):
            loss = compiled(setup.integers(size.words, size.batch, size.length))
            (loss / 2).backward()
            losses.append(loss.detach())
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        return [*losses, norm]

    return Training([model], [optimiser], step)


# ----------------------------------------------------------------------------------------- BERT


class BertLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads, 0.1, causal=False)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = _feed_forward(width, 0.1, "none")

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.attention(x, mask))
        out: torch.Tensor = self.norm2(x + self.mlp(x))
        return out


class Bert(nn.Module):
    """The loss of guessing the masked tokens. `run_layer` is how a layer is called."""

    def __init__(self, size: Size, run_layer: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.run_layer = run_layer
        self.tokens = nn.Embedding(size.words, size.width)
        self.positions = nn.Parameter(torch.randn(size.length, size.width) * 0.02)
        self.norm = nn.LayerNorm(size.width)
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.ModuleList(BertLayer(size.width, size.heads) for _ in range(size.layers))
        self.head = nn.Linear(size.width, size.words)

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        x = self.dropout(self.norm(self.tokens(tokens) + self.positions))
        for layer in self.layers:
            x = self.run_layer(layer, x, mask)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten(), ignore_index=-100)


def _masked_batch(setup: Setup, size: Size) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sentences of different lengths; a few tokens of each are hidden and to be guessed."""
    tokens = setup.integers(size.words - 1, size.batch, size.length) + 1
    lengths = setup.integers(size.length // 2, size.batch, 1) + size.length // 2 + 1
    real = torch.arange(size.length, device=setup.device) < lengths
    hidden = (setup.uniform(size.batch, size.length) < 0.3) & real
    hidden[:, 0] = True
    targets = tokens.masked_fill(~hidden, -100)
    return tokens.masked_fill(hidden, 0), real[:, None, None, :], targets


def bert(setup: Setup) -> Training:
    def run_layer(layer: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(layer, x, mask, use_reentrant=False)
        return out

    size = setup.pick(SMALL, FULL)
    model = setup.place(Bert(size, run_layer))
    return _bert_training(setup, size, model, setup.compile(model))


def bert_reentrant(setup: Setup) -> Training:
    """Every layer is compiled and its checkpoint is not. It first runs without gradients, and
    again with them in the middle of the backward pass, which then runs a backward of its own."""
    compiled: dict[Any, Any] = {}

    def run_layer(layer: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(compiled[layer], x, mask, use_reentrant=True)
        return out

    size = setup.pick(SMALL, FULL)
    model = setup.place(Bert(size, run_layer))
    compiled.update({layer: setup.compile(layer) for layer in model.layers})
    return _bert_training(setup, size, model, model)


def _bert_training(setup: Setup, size: Size, model: nn.Module, run: Any) -> Training:
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-4)

    def step(index: int) -> list[torch.Tensor]:
        tokens, mask, targets = _masked_batch(setup, size)
        optimiser.zero_grad()
        loss = run(tokens, mask, targets)
        loss.backward()
        optimiser.step()
        return [loss.detach()]

    return Training([model], [optimiser], step)
