"""How far apart tensors are. On a GPU the host waits once for all of them: a backward can have
hundreds of gradients that are never the same twice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from pygraph.capturing.tensors import batches

#: Elements that are compared at once, at most: in fp64, and several times over.
_AT_ONCE = 1 << 22

#: A piece of two tensors, flat, and which pair it is of.
_Piece = tuple[int, torch.Tensor, torch.Tensor]


def distances(lefts: Sequence[torch.Tensor], rights: Sequence[torch.Tensor]) -> list[float]:
    """Of each pair the largest absolute difference; infinity where one is NaN and the other is not;
    0 if there are no elements. The two of a pair have the same shape, dtype and device."""
    found = _largest(lefts, rights, _gaps)
    unclear = [number for number, gap in enumerate(found) if math.isnan(gap)]
    ours, theirs = ([values[number] for number in unclear] for values in (lefts, rights))
    for number, gap in zip(unclear, _largest(ours, theirs, _gaps_of_any), strict=True):
        found[number] = gap
    return found


def _largest(
    lefts: Sequence[torch.Tensor],
    rights: Sequence[torch.Tensor],
    gaps_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> list[float]:
    """NaN where one of the gaps is."""
    numbers: dict[torch.device, list[int]] = {}
    largest: dict[torch.device, list[torch.Tensor]] = {}
    for batch in batches(_pieces(lefts, rights), lambda _: _AT_ONCE):
        gaps = gaps_of(*(torch.cat(half) if len(half) > 1 else half[0] for half in _halves(batch)))
        sizes = [left.numel() for _, left, _ in batch]
        numbers.setdefault(gaps.device, []).extend(number for number, _, _ in batch)
        largest.setdefault(gaps.device, []).extend(each.max() for each in gaps.split(sizes))
    found = [0.0] * len(lefts)
    for device, values in largest.items():
        for number, gap in zip(numbers[device], torch.stack(values).tolist(), strict=True):
            if math.isnan(gap) or found[number] < gap:
                found[number] = gap
    return found


def _pieces(
    lefts: Sequence[torch.Tensor], rights: Sequence[torch.Tensor]
) -> Iterator[tuple[tuple[torch.device, torch.dtype], int, _Piece]]:
    """By device and dtype, with their number of elements."""
    for number, (left, right) in enumerate(zip(lefts, rights, strict=True)):
        flat = (tensor.reshape(-1).split(_AT_ONCE) for tensor in (left, right))
        for one, other in zip(*flat, strict=True):
            if one.numel():
                yield (one.device, one.dtype), one.numel(), (number, one, other)


def _halves(batch: list[_Piece]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return [left for _, left, _ in batch], [right for _, _, right in batch]


def _gaps(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """NaN where that does not tell: the same infinity, or a NaN. Few kernels: a process has to
    load each of them."""
    return (_precise(left) - _precise(right)).abs()


def _gaps_of_any(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    a, b = _precise(left), _precise(right)
    gaps = _gaps(a, b)
    gaps.masked_fill_(gaps.isnan(), math.inf)
    return gaps.masked_fill_((a == b) | (a.isnan() & b.isnan()), 0.0)


def _precise(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
