"""Inputs that several workloads make in the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness.program import Sample, Tensors

Sizes = tuple[int, ...]
Sampler = Callable[[bool], Sample]


def sized(make: Callable[..., Sample], real: Sizes, tiny: Sizes) -> Sampler:
    """`make` called with the sizes of the real or of the tiny version."""
    return lambda is_tiny: make(*(tiny if is_tiny else real))


def tokens(batch: int, length: int, vocabulary: int) -> Sample:
    return lambda generator, _: (_words(generator, 0, vocabulary, batch, length),)


def two_texts(batch: int, length: int, vocabulary: int, first: int = 3) -> Sample:
    """Two sequences of the same length; none of the first tokens, which libraries give meanings."""

    def sample(generator: torch.Generator, _: torch.device) -> Tensors:
        return tuple(_words(generator, first, vocabulary, batch, length) for _ in range(2))

    return sample


def tokens_and_mask(batch: int, length: int, vocabulary: int) -> Sample:
    def sample(generator: torch.Generator, _: torch.device) -> Tensors:
        words = _words(generator, 0, vocabulary, batch, length)
        return words, torch.ones(batch, length, dtype=torch.int64)

    return sample


def images(batch: int, size: int) -> Sample:
    return lambda generator, _: (torch.randn(batch, 3, size, size, generator=generator),)


def _words(generator: torch.Generator, first: int, vocabulary: int, *shape: int) -> Any:
    return torch.randint(first, vocabulary, shape, generator=generator)
