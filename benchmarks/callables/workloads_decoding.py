"""Decoding, a token at a time: a Llama-like model with a static cache, alone and in a loop of 64
tokens, and transformers' generate."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.callables.program import Goal, Program, Row, Sample
from benchmarks.harness.modes import Step, Tensors
from pygraph.demo.models import needing

SPREAD = 0.02
"""Of the random weights."""
BY_HAND = (
    "generate() calls its model with caches and shapes of its own: nobody captures that by hand"
)
MUTATED = "torch makes no graphs of a forward that writes its cache: it runs as default does"
"""torch 2.11: "skipping cudagraphs due to mutated inputs"."""


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    heads: int
    kept_heads: int
    """Of keys and values."""
    inner: int
    tokens: int
    length: int
    """Of the cache."""

    @property
    def head(self) -> int:
        return self.width // self.heads


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        return F.rms_norm(x, x.shape[-1:], self.weight, 1e-5)


def rotated(x: Any, cosine: Any, sine: Any) -> Any:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class Attention(nn.Module):
    """Grouped queries over all places of the cache, those ahead masked."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kept = shape.kept_heads * shape.head
        self.queries = nn.Linear(shape.width, shape.width, bias=False)
        self.keys = nn.Linear(shape.width, kept, bias=False)
        self.values = nn.Linear(shape.width, kept, bias=False)
        self.project = nn.Linear(shape.width, shape.width, bias=False)
        size = (1, shape.kept_heads, shape.length, shape.head)
        self.register_buffer("known_keys", torch.zeros(size))
        self.register_buffer("known_values", torch.zeros(size))

    def forward(self, x: Any, place: Any, turn: Tensors, seen: Any) -> Any:
        split = functools.partial(self._split, x.shape[0])
        q = rotated(split(self.queries(x)), *turn)
        self.known_keys.index_copy_(2, place, rotated(split(self.keys(x)), *turn))
        self.known_values.index_copy_(2, place, split(self.values(x)))
        found = F.scaled_dot_product_attention(
            q, self.known_keys, self.known_values, attn_mask=seen, enable_gqa=True
        )
        return self.project(found.transpose(1, 2).reshape(x.shape))

    def _split(self, batch: int, x: Any) -> Any:
        return x.view(batch, 1, -1, self.shape.head).transpose(1, 2)


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norms = nn.ModuleList([Norm(shape.width) for _ in range(2)])
        self.attention = Attention(shape)
        self.gate = nn.Linear(shape.width, shape.inner, bias=False)
        self.up = nn.Linear(shape.width, shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: Any, place: Any, turn: Tensors, seen: Any) -> Any:
        x = x + self.attention(self.norms[0](x), place, turn, seen)
        inner = self.norms[1](x)
        return x + self.down(F.silu(self.gate(inner)) * self.up(inner))


class Llama(nn.Module):
    """From a token and its place to the logits of the next one."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.tokens, shape.width)
        self.layers = nn.ModuleList([Layer(shape) for _ in range(shape.layers)])
        self.norm = Norm(shape.width)
        self.head = nn.Linear(shape.width, shape.tokens, bias=False)
        places = torch.arange(shape.length)
        speeds = 10000.0 ** -(torch.arange(0, shape.head, 2) / shape.head)
        angles = torch.outer(places.float(), speeds).repeat(1, 2)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())
        self.register_buffer("places", places)
        for each in self.parameters():
            if each.dim() == 2:
                nn.init.normal_(each, 0.0, SPREAD)

    def forward(self, token: Any, place: Any) -> Any:
        turn = self.cosine.index_select(0, place), self.sine.index_select(0, place)
        seen = (self.places <= place).view(1, 1, 1, -1)
        x = self.token(token)
        for layer in self.layers:
            x = layer(x, place, turn, seen)
        return self.head(self.norm(x))


class Decoder(Program):
    """One token in bf16."""

    def __init__(self, device: torch.device, shape: Shape) -> None:
        super().__init__()
        with device:
            self.model = Llama(shape).to(torch.bfloat16)
        self.modules["model"] = self.model.eval().requires_grad_(False)

    def unit(self, *inputs: Any) -> Any:
        token, place = inputs
        logits = self.model(token, place)
        return logits.argmax(-1), logits


class Reader(Decoder):
    """Tokens in a row, which are given: choosing each by the logits before it would let a rounded
    bit decide on all that follow, and the kernels are the same."""

    def __init__(self, device: torch.device, shape: Shape, tokens: int) -> None:
        super().__init__(device, shape)
        self.tokens, self.device = tokens, device

    def call(self, unit: Step) -> Step:
        # The loop's own: nothing of the program refers to what the unit is given.
        places = [torch.tensor([place], device=self.device) for place in range(self.tokens)]

        def read(*tokens: Any) -> Any:
            for place, token in zip(places, tokens, strict=True):
                chosen, logits = unit(token, place)
            return chosen, logits

        return read

    def unit_inputs(self, inputs: Tensors) -> Tensors:
        return inputs[0], torch.zeros(1, dtype=torch.int64, device=self.device)


class Generated(Program):
    """transformers' generate: greedy, with a static cache, in fp32, where rounding hardly ever
    decides on a token. The unit is the model's forward."""

    def __init__(self, device: torch.device, shape: Shape, tokens: int) -> None:
        super().__init__()
        with needing("transformers"):
            transformers = import_module("transformers")
            config = transformers.LlamaConfig(
                hidden_size=shape.width,
                intermediate_size=shape.inner,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                num_key_value_heads=shape.kept_heads,
                vocab_size=shape.tokens,
                max_position_embeddings=shape.length,
                attn_implementation="sdpa",
            )
            with device:
                self.model = transformers.LlamaForCausalLM(config).eval()
        self.modules["model"] = self.model.requires_grad_(False)
        self.unit = self.model.forward  # type: ignore[method-assign]
        self.options = {
            "max_new_tokens": tokens,
            "min_new_tokens": tokens,
            "do_sample": False,
            "cache_implementation": "static",
            "disable_compile": True,  # each mode compiles what it says
            "pad_token_id": 0,
        }

    def call(self, unit: Step) -> Step:
        self.model.forward = unit

        def generate(prompt: Any) -> Any:
            return self.model.generate(prompt, attention_mask=self.all_ones(prompt), **self.options)

        return generate

    def all_ones(self, prompt: Any) -> Any:
        return torch.ones_like(prompt)


def token_and_place(shape: Shape) -> Sample:
    def sample(generator: torch.Generator, number: int) -> Tensors:
        return torch.randint(shape.tokens, (1, 1), generator=generator), torch.tensor([number])

    return sample


def tokens_apart(shape: Shape, count: int) -> Sample:
    """Each a tensor of its own, as what chooses tokens makes them."""

    def sample(generator: torch.Generator, _: int) -> Tensors:
        drawn = torch.randint(shape.tokens, (count, 1, 1), generator=generator)
        return tuple(token.clone() for token in drawn)

    return sample


def prompt_of(shape: Shape, count: int) -> Sample:
    def sample(generator: torch.Generator, _: int) -> Tensors:
        return (torch.randint(shape.tokens, (1, count), generator=generator),)

    return sample


def rows(tiny: bool) -> list[Row]:
    shape = Shape(2, 32, 4, 2, 48, 64, 32) if tiny else Shape(8, 1024, 16, 4, 2816, 32000, 512)
    read, prompt, generated = (4, 3, 4) if tiny else (64, 16, 32)
    by_hand = Goal(1.0, "torch.cuda.graph")
    return [
        Row(
            "decode",
            "a token of a Llama-like model, 8 layers of 1,024, static cache, bf16",
            1,
            lambda device: Decoder(device, shape),
            token_and_place(shape),
            training=False,
            half=True,
            goal=by_hand,
        ),
        Row(
            "decode-64",
            "64 tokens of that model in a loop, which calls what is captured for one",
            1,
            lambda device: Reader(device, shape, read),
            tokens_apart(shape, read),
            training=False,
            half=True,
            goal=by_hand,
            least=3,
        ),
        Row(
            "generate",
            "transformers' generate, 32 tokens of a Llama of that size, static cache, fp32",
            1,
            lambda device: Generated(device, shape, generated),
            prompt_of(shape, prompt),
            training=False,
            skips={"torch.cuda.graph": BY_HAND, "floor": BY_HAND, "reduce-overhead": MUTATED},
            least=3,
        ),
    ]
