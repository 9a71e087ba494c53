"""Misbehaviour of the CPU twin on demand, as context managers.

Each imitates something that real kernels and drivers do. Whatever is linked from captures made
under a fault must compute the right result, or be refused, or fail its proof.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import torch

from pygraph import _engine


@dataclasses.dataclass
class _Plan:
    hide: tuple[int, ...] = ()  #: numbers of the pointers to hide, per kernel
    alignment: int = 1
    coincident: _Coincidences | None = None


@dataclasses.dataclass
class _Coincidences:
    """The words of the first capture under the fault, which later ones repeat."""

    words: list[int]
    captures: int = 0
    position: int = 0


_plan = _Plan()
#: Tables of hidden pointers. Kept for good: a graph may be launched after everything else has gone.
_tables: list[torch.Tensor] = []


def active() -> bool:
    return bool(_plan.hide) or _plan.alignment > 1 or _plan.coincident is not None


def begin_capture() -> None:
    if _plan.coincident is not None:
        _plan.coincident.captures += 1
        _plan.coincident.position = 0


def alignment() -> int:
    return _plan.alignment


def disturb(kinds: Sequence[str], words: list[int | float | bool]) -> str:
    """The kinds of a kernel's words under the present faults; changes `words` to match."""
    changed = list(kinds)
    pointers = [index for index, kind in enumerate(kinds) if kind == "p"]
    for number in _plan.hide:
        if -len(pointers) <= number < len(pointers):
            index = pointers[number]
            _tables.append(torch.tensor([words[index]], dtype=torch.int64, device="cpu"))
            words[index] = _tables[-1].data_ptr()
            changed[index] = "h"
    if _plan.alignment > 1:
        for index in pointers:
            if changed[index] == "p" and words[index] % _plan.alignment == 0:
                changed[index] = "a"
    if _plan.coincident is not None and pointers:
        known, position = _plan.coincident.words, _plan.coincident.position
        if _plan.coincident.captures == 1:
            known.append(int(words[pointers[0]]))
        words.append(known[position] if position < len(known) else 0)
        _plan.coincident.position = position + 1
        changed.append("c")
    return "".join(changed)


@contextlib.contextmanager
def padding_noise() -> Iterator[None]:
    """Bytes of a captured parameter block that mean nothing hold something else each time."""
    _engine.twin_padding_noise(True)
    try:
        yield
    finally:
        _engine.twin_padding_noise(False)


@contextlib.contextmanager
def coincident_words() -> Iterator[None]:
    """Every kernel gets one more number, which in the first capture made here is the address of
    its first tensor, and in the later ones is the same number again. A kernel whose number was
    changed fails its launch."""
    previous, _plan.coincident = _plan.coincident, _Coincidences([])
    try:
        yield
    finally:
        _plan.coincident = previous


@contextlib.contextmanager
def hidden_pointers(*numbers: int) -> Iterator[None]:
    """These pointers of every kernel (0: the first tensor, -1: the last, a result) stand in a table
    in memory, and the block holds the table's address: nothing can relocate them."""
    previous, _plan.hide = _plan.hide, numbers or (0,)
    try:
        yield
    finally:
        _plan.hide = previous


@contextlib.contextmanager
def alignment_demand(alignment: int) -> Iterator[None]:
    """Kernels fail their launch unless the addresses that were multiples of `alignment` bytes when
    captured still are: they were chosen for it, as vectorised kernels are."""
    previous, _plan.alignment = _plan.alignment, alignment
    try:
        yield
    finally:
        _plan.alignment = previous


@contextlib.contextmanager
def failing_call(symbol: str, code: int = 1, nth: int = 1, lasting: bool = False) -> Iterator[None]:
    """The driver's entry point `symbol` fails with `code` (1: invalid value) on its `nth` call from
    now on, once, or from then on. Leaving ends all planned failures and delays, and padding
    noise."""
    _engine.twin_fail(symbol, code, nth, lasting)
    try:
        yield
    finally:
        _engine.twin_reset_faults()


@contextlib.contextmanager
def slow_call(symbol: str, microseconds: int) -> Iterator[None]:
    """The driver's entry point `symbol` takes that much longer. Leaving ends what leaving
    failing_call() does."""
    _engine.twin_slow(symbol, microseconds)
    try:
        yield
    finally:
        _engine.twin_reset_faults()
