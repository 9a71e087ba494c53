"""What a frontend lends of a callable: where its code takes memory from, and the tensors it holds.

A capture wraps the allocators while it lasts, so that every buffer has addresses of its own
(hold.py). The constants explain words that look like addresses and are no region's (foreign.py).
How either is found depends on what generated the code, which only the frontend knows.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from pygraph import _engine

#: Makes a launch, and is told what it reads and writes; returns what the launch does.
Tell = Callable[[Callable[[], Any], Callable[[], Sequence[_engine.Touch]]], Any]
#: While on, launches of kernels that pass no operator are made by who is told of them.
Observed = Callable[[Tell], AbstractContextManager[None]]
#: A function that makes buffers: the names of a module, and its own among them.
Allocator = tuple[dict[str, Any], str]


def _nothing() -> tuple[()]:
    return ()


def _none(words: Sequence[int]) -> None:
    return None


def _unobserved(tell: Tell) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


@dataclasses.dataclass(frozen=True)
class Holdings:
    """Asked anew at each link: a callable may make what it holds in its first call."""

    allocators: Callable[[], Iterable[Allocator]] = _nothing
    constants: Callable[[], Iterable[torch.Tensor]] = _nothing
    #: Those of some foreign words that point into tensors of the program, whoever has them. None:
    #: operators are given the callable's own tensors in a capture; else what stands for them.
    visible: Callable[[Sequence[int]], set[int]] | None = None
    #: Why some of these foreign words must not stay in a graph, if so.
    against: Callable[[Sequence[int]], str | None] = _none
    observed: Observed = _unobserved
