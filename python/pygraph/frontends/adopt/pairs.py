"""The tensors that two captures of the same work were made with, and what is asked of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from pygraph.capturing import tensors
from pygraph.capturing.device import is_strided
from pygraph.frontends.adopt.not_movable import NotMovable
from pygraph.frontends.adopt.ranges import Range
from pygraph.torch_private.dispatch import PLAIN


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """One of these tensors: where the first capture has it, and where the second."""

    name: str  #: for errors: "input 0"
    first: torch.Tensor
    second: torch.Tensor
    bytes: int  #: from its first element to behind its last

    @property
    def ranges(self) -> tuple[Range, Range]:
        """Its memory in both captures."""
        starts = self.first.data_ptr(), self.second.data_ptr()
        return (starts[0], starts[0] + self.bytes), (starts[1], starts[1] + self.bytes)

    @property
    def moves(self) -> bool:
        """Whether the captures have it in different memory."""
        (low, high), (start, end) = self.ranges
        return end <= low or high <= start

    @property
    def whole(self) -> bool:
        """Whether it is all of its storage in both captures, so that no kernel goes beyond it."""
        return all(
            each.untyped_storage().nbytes() == self.bytes for each in (self.first, self.second)
        )

    def holds(self, in_first: int, in_second: int) -> bool:
        """Whether an address of each capture is the same place of the tensor."""
        (low, high), (start, _) = self.ranges
        return low <= in_first < high and in_second - start == in_first - low

    def same_as(self, other: Pair) -> bool:
        """Whether it is that tensor, in both captures."""
        return self.ranges == other.ranges and layout(self.first) == layout(other.first)


def layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What must be the same of a tensor wherever it is: dtype, device, sizes and strides."""
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride()


def text_of(found: tuple[Any, ...]) -> str:
    """A layout in words."""
    dtype, device, sizes, strides = found
    name = str(dtype).removeprefix("torch.")
    return f"{name} of sizes {list(sizes)} and strides {list(strides)} on {device}"


def pairs_of(what: str, given: Iterable[Any]) -> list[Pair]:
    """The pairs that a caller names. `what`: "input", "output". Raises TypeError for what is none,
    NotMovable."""
    return [_pair(f"{what} {number}", each) for number, each in enumerate(given)]


def _pair(name: str, given: Any) -> Pair:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TypeError(
            f"{name} is a {type(given).__name__}; needed: a pair, the tensor of the first capture "
            "and that of the second"
        )
    first, second = given
    for tensor, where in ((first, "first"), (second, "second")):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{name} is a {type(tensor).__name__} in the {where} capture; needed: a tensor"
            )
        why = not_plain(tensor)
        if why is not None:
            raise NotMovable(f"{name} of the {where} capture", why, "a plain strided tensor")
    if layout(first) != layout(second):
        raise NotMovable(
            name,
            f"{text_of(layout(first))} in the first capture, {text_of(layout(second))} in the "
            "second",
            "two captures of the same work, with tensors that differ in their addresses alone",
        )
    return Pair(name, first, second, tensors.extent_bytes(first))


def not_plain(tensor: torch.Tensor) -> str | None:
    """What a tensor is, if an address, sizes and strides do not describe it."""
    if type(tensor).__torch_dispatch__ is not PLAIN:
        return f"a {type(tensor).__name__}"
    return None if is_strided(tensor) else tensors.describe(tensor)


def require_alone(pairs: Sequence[Pair]) -> None:
    """Raises NotMovable unless each of them has memory of its own in both captures, without gaps:
    else nothing tells what a word addresses."""
    for pair in pairs:
        if not pair.bytes:
            continue
        if not _is_dense(pair.first):
            raise NotMovable(
                pair.name,
                f"{text_of(layout(pair.first))}, whose elements do not fill the memory that they "
                "stand in",
                "a tensor without gaps and overlaps; for a part of a larger one, name that",
            )
        if not pair.moves:
            same = pair.first.data_ptr() == pair.second.data_ptr()
            raise NotMovable(
                pair.name,
                f"{'the same' if same else 'overlapping'} memory in both captures, at "
                f"{pair.first.data_ptr():#x}",
                "a second capture with a tensor of its own: its address shows by differing. What "
                "both captures have at one address stays there, and need not be named",
            )
    places = sorted(
        (start, end, number, where)
        for number, pair in enumerate(pairs)
        if pair.bytes
        for (start, end), where in zip(pair.ranges, ("first", "second"), strict=True)
    )
    for left, right in itertools.pairwise(places):
        if right[0] < left[1]:
            (_, _, one, where), (_, _, other, there) = sorted(
                (left, right), key=lambda each: each[2]
            )
            raise NotMovable(
                pairs[other].name,
                f"that in the {there} capture it shares memory with {pairs[one].name} of the "
                f"{where} one, at {right[0]:#x}",
                "tensors that share no memory; one that holds others is named instead of them",
            )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether each byte from its first element to behind its last is of one element."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
