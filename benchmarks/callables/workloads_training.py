"""Training steps of DCGAN, both of its networks, and of a small GPT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.callables.program import Goal, Program, Row, Sample, fused_options
from benchmarks.harness.modes import Tensors
from benchmarks.training.nets import Discriminator, Generator

BETAS = (0.5, 0.999)
MOST_NORM = 1.0
SCALE = 4096.0
"""Of the losses at first: with torch's 65536 the first steps overflow, and update nothing."""


class Adversaries(Program):
    """An iteration of DCGAN: the discriminator on real and on generated images, the generator.
    Dynamo does not take all of it: it breaks at the first backward, and what it compiles behind
    that fails at the second."""

    compiled = ("generator", "discriminator")

    def __init__(self, device: torch.device, noise: int, width: int) -> None:
        super().__init__()
        self.generator: Any = Generator(noise, width).to(device)
        self.discriminator: Any = Discriminator(width).to(device)
        self.modules |= {"generator": self.generator, "discriminator": self.discriminator}
        options = {"lr": 2e-4, "betas": BETAS, **fused_options(device)}
        self.generator_optimizer = torch.optim.Adam(self.generator.parameters(), **options)
        self.discriminator_optimizer = torch.optim.Adam(self.discriminator.parameters(), **options)
        self.optimizers |= {
            "generator_adam": self.generator_optimizer,
            "discriminator_adam": self.discriminator_optimizer,
        }

    def unit(self, *inputs: Any) -> Any:
        real, noise = inputs
        self.discriminator_optimizer.zero_grad(set_to_none=True)
        on_real = self._loss(real, 1.0)
        on_real.backward()
        made = self.generator(noise)
        on_made = self._loss(made.detach(), 0.0)
        on_made.backward()
        self.discriminator_optimizer.step()
        self.generator_optimizer.zero_grad(set_to_none=True)
        loss = self._loss(made, 1.0)
        loss.backward()
        self.generator_optimizer.step()
        return (on_real + on_made).detach(), loss.detach()

    def _loss(self, images: Any, label: float) -> Any:
        found = self.discriminator(images)
        return F.binary_cross_entropy(found, torch.full_like(found, label))


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    heads: int
    length: int
    tokens: int


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norms = nn.ModuleList([nn.LayerNorm(width, bias=False) for _ in range(2)])
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.wide = nn.Linear(width, 4 * width, bias=False)
        self.narrow = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        packed = self.queries_keys_values(self.norms[0](x)).view(batch, length, 3, self.heads, -1)
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


class GPT(nn.Module):
    """From tokens and the tokens that follow them to the loss."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.tokens, shape.width)
        self.place = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.norm = nn.LayerNorm(shape.width, bias=False)
        self.head = nn.Linear(shape.width, shape.tokens, bias=False)
        self.head.weight = self.token.weight
        for each in self.parameters():
            if each.dim() == 2:
                nn.init.normal_(each, 0.0, 0.02)

    def forward(self, tokens: Any, following: Any) -> Any:
        x = self.token(tokens) + self.place.weight
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())


class Language(Program):
    """A step in fp16 with a gradient scaler, and in bf16 with one on the CPU."""

    compiled = ("model",)

    def __init__(self, device: torch.device, shape: Shape) -> None:
        super().__init__()
        self.model: Any = GPT(shape).to(device)
        self.weights = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.weights, lr=1e-3, **fused_options(device))
        self.scaler = torch.amp.GradScaler(device.type, init_scale=SCALE)
        self.scaler.scale(torch.zeros(1, device=device))  # makes its tensors
        self.kind = device.type
        self.half = torch.float16 if self.kind == "cuda" else torch.bfloat16
        self.modules["model"] = self.model
        self.optimizers["adamw"] = self.optimizer
        self.tensors["scale"] = self.scaler._scale
        self.tensors["growth"] = self.scaler._growth_tracker

    def unit(self, *inputs: Any) -> Any:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.kind, dtype=self.half):
            loss = self.model(*inputs)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.weights, MOST_NORM, foreach=True)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach(), norm


def images_and_noise(batch: int, noise: int) -> Sample:
    def sample(generator: torch.Generator, _: int) -> Tensors:
        real = torch.rand(batch, 3, 64, 64, generator=generator) * 2 - 1
        return real, torch.randn(batch, noise, 1, 1, generator=generator)

    return sample


def text(batch: int, shape: Shape) -> Sample:
    def sample(generator: torch.Generator, _: int) -> Tensors:
        drawn = torch.randint(shape.tokens, (batch, shape.length + 1), generator=generator)
        return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()

    return sample


def rows(tiny: bool) -> list[Row]:
    images, noise, width = (2, 4, 2) if tiny else (32, 100, 64)
    shape = Shape(2, 16, 2, 8, 32) if tiny else Shape(6, 384, 6, 128, 8192)
    batch = 2 if tiny else 8
    return [
        Row(
            "dcgan",
            "an iteration of DCGAN, generator and discriminator, fused Adam, fp32",
            images,
            lambda device: Adversaries(device, noise, width),
            images_and_noise(images, noise),
            goal=Goal(1.10, "floor"),
        ),
        Row(
            "gpt",
            "a step of a GPT, 6 layers of 384 over 128 tokens: fp16 autocast, gradient scaler, "
            "clipping, fused AdamW",
            batch,
            lambda device: Language(device, shape),
            text(batch, shape),
            half=True,
            goal=Goal(1.05, "floor"),
        ),
    ]
