"""Tensors on the CPU: as inputs, in the model, and made in the forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from benchmarks.patterns.host_values import Scaled
from benchmarks.patterns.pattern import BY_HAND, WIDTH, Loaded, Pattern, Tensors, number, square


class Attribute(Loaded):
    """A number in a CPU tensor that is neither a parameter nor a buffer."""

    def place(self, device: torch.device) -> None:
        self.scale = torch.tensor(0.7)

    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x) * self.scale)


class AttributeClean(Attribute):
    def place(self, device: torch.device) -> None:
        self.scale = torch.tensor(0.7, device=device)


class Buffer(Loaded):
    """A registered buffer that was left on the CPU."""

    def place(self, device: torch.device) -> None:
        self.register_buffer("scale", torch.tensor(0.7))

    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x) * self.scale)


class BufferClean(Buffer):
    def place(self, device: torch.device) -> None:
        self.register_buffer("scale", torch.tensor(0.7, device=device))


class Positions(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x) + torch.arange(WIDTH).to(x.device) / WIDTH)


class PositionsClean(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x) + torch.arange(WIDTH, device=x.device) / WIDTH)


class MaskMade(Loaded):
    def forward(self, x: Any) -> Any:
        mask = torch.ones(WIDTH, WIDTH, dtype=torch.bool).tril().to(x.device)
        return self.tail(self.head(x).masked_fill(~mask, 0.0))


class MaskMadeClean(Loaded):
    def forward(self, x: Any) -> Any:
        mask = torch.ones(WIDTH, WIDTH, dtype=torch.bool, device=x.device).tril()
        return self.tail(self.head(x).masked_fill(~mask, 0.0))


class MaskGiven(Loaded):
    def forward(self, x: Any, mask: Any) -> Any:
        return self.tail(self.head(x).masked_fill(mask.to(x.device), 0.0))


class Moved(Loaded):
    """An input of one mebibyte."""

    def forward(self, x: Any, large: Any) -> Any:
        rows = large.to(x.device).view(-1, WIDTH, WIDTH)
        return self.tail(self.head(x) + rows.mean(0))


class MovedByHand(Moved):
    """In the compiled model the input is on the device already, and stays as it is."""

    by_hand = True

    def called(self, forward: Callable[..., Any], *inputs: Any) -> Any:
        x, large = inputs
        return forward(x, large.to(x.device))


class MovedLater(Loaded):
    def forward(self, x: Any, large: Any) -> Any:
        rows = large.to(x.device, non_blocking=True).view(-1, WIDTH, WIDTH)
        return self.tail(self.head(x) + rows.mean(0))


class MovedLaterByHand(MovedLater):
    by_hand = True

    def called(self, forward: Callable[..., Any], *inputs: Any) -> Any:
        x, large = inputs
        return forward(x, large.to(x.device, non_blocking=True))


class Table(Loaded):
    """A table of the model's that its forward moves."""

    def place(self, device: torch.device) -> None:
        self.table = torch.linspace(-1, 1, WIDTH * WIDTH).view(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x) + self.table.to(x.device))


class TableClean(Table):
    def place(self, device: torch.device) -> None:
        super().place(device)
        self.table = self.table.to(device)


class Buckets(Loaded):
    """The boundaries are a CPU tensor of the model's."""

    def place(self, device: torch.device) -> None:
        self.boundaries = torch.linspace(-2, 2, 33)

    def forward(self, x: Any) -> Any:
        places = torch.bucketize(x, self.boundaries.to(x.device))
        return self.tail(self.head(x) + places / 32)


class BucketsClean(Buckets):
    def place(self, device: torch.device) -> None:
        super().place(device)
        self.boundaries = self.boundaries.to(device)


class Bags(Loaded):
    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Parameter(torch.randn(1000, WIDTH))

    def forward(self, x: Any, words: Any, offsets: Any) -> Any:
        bags = functional.embedding_bag(words, self.rows, offsets.to(x.device), mode="mean")
        return self.tail(self.head(x) + bags)


def with_mask(generator: torch.Generator) -> Tensors:
    return (*square(generator), torch.rand(WIDTH, WIDTH, generator=generator) < 0.3)


def with_mebibyte(generator: torch.Generator) -> Tensors:
    return (*square(generator), torch.randn(512, 512, generator=generator))


def with_pinned(generator: torch.Generator) -> Tensors:
    x, large = with_mebibyte(generator)
    return x, large.pin_memory() if torch.cuda.is_available() else large


def with_bags(generator: torch.Generator) -> Tensors:
    words = torch.randint(1000, (4 * WIDTH,), generator=generator)
    lengths = torch.randint(1, 4, (WIDTH - 1,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return (*square(generator), words, offsets)


PATTERNS = (
    Pattern(
        "scalar_input",
        "a number in a CPU tensor, different in each call",
        Scaled,
        Scaled,
        values=lambda k: (torch.tensor(0.5 + number(k)),),
        one_copy_more=True,
    ),
    Pattern(
        "scalar_attribute",
        "the same as an attribute of the model",
        Attribute,
        AttributeClean,
        one_copy_more=True,
    ),
    Pattern(
        "scalar_buffer",
        "the same as a buffer left on the CPU",
        Buffer,
        BufferClean,
        one_copy_more=True,
    ),
    Pattern("arange_moved", "torch.arange on the CPU, and moved", Positions, PositionsClean),
    Pattern("mask_made", "a mask made on the CPU, and moved", MaskMade, MaskMadeClean),
    Pattern(
        "mask_input",
        "a mask on the CPU as input",
        MaskGiven,
        MaskGiven,
        with_mask,
        (1,),
        one_copy_more=True,
    ),
    Pattern(
        "input_1mb",
        f"an input of 1 MiB on the CPU, moved{BY_HAND} .to()",
        Moved,
        MovedByHand,
        with_mebibyte,
        (1,),
    ),
    Pattern(
        "input_pinned",
        f"the same in pinned memory, moved with non_blocking=True{BY_HAND} the same .to()",
        MovedLater,
        MovedLaterByHand,
        with_pinned,
        (1,),
    ),
    Pattern(
        "table_moved",
        "a table of 64 KiB on the CPU, moved each time",
        Table,
        TableClean,
        one_copy_more=True,
    ),
    Pattern("bucketize", "boundaries on the CPU", Buckets, BucketsClean, one_copy_more=True),
    Pattern("embedding_bag", "offsets on the CPU", Bags, Bags, with_bags, (2,), one_copy_more=True),
)
