"""Holding every buffer of a capture until it ends, so that each has addresses of its own.

Torch's allocator would hand a freed buffer's memory to the next one, and two tensors at one address
can only move together. Phantom memory is free, so nothing need be reused: the functions that
generated code takes its buffers from (holdings.py) are wrapped for the length of the capture, and
results of operators are kept by a dispatch mode (which Triton launches do not pass through). What
operators allocate and free inside themselves is held on a GPU (internal.py); where it is not, it
stays correct, as a cell shared by several buffers in turn.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from pygraph.capturing import separate, tables
from pygraph.capturing.attention import unwritten_states
from pygraph.capturing.device import CaptureFailed, is_strided
from pygraph.capturing.holdings import Allocator
from pygraph.capturing.internal import Internal
from pygraph.capturing.launches import Launches
from pygraph.capturing.unsafe import require_seeds_on_device
from pygraph.torch_private.dispatch import UnseenByDynamo, called, tree_leaves


class _KeepResults(UnseenByDynamo):
    """Keeps the memory of every tensor that an operator returns. Records which nodes each operator
    launched, and which operator is under way: the culprit, when a capture fails meanwhile.

    A library may ignore that it has invalidated the capture; then only a later launch would fail,
    and the wrong one would be blamed. So the capture is looked at behind each operator."""

    def __init__(
        self,
        kept: list[Any],
        count_nodes: Callable[[], int],
        internal: Internal | None,
        launches: Launches | None,
        apart: Callable[[Any], bool],
    ) -> None:
        super().__init__()
        self.kept = kept
        self._apart = apart
        self._internal = internal
        self._launches = launches
        self.under_way: str | None = None  #: an operator that has begun and did not end well
        self.launched: list[tuple[int, int, str]] = []  #: as `operators`, of all, with their names
        self.operators: list[tuple[int, int]] = []  #: nodes before and after, where it made several
        self.unwritten: list[int] = []  #: addresses of results that nobody writes (attention.py)
        self._count = count_nodes

    def see(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        require_seeds_on_device(func, args, kwargs)
        if (other := tables.without(func, args, kwargs)) is not None:
            with self:
                return other()
        apart = separate.calls_of(func, args, kwargs)
        if apart:
            return separate.joined([self._call(func, each, kwargs) for each in apart])
        return self._call(func, args, kwargs)

    def _call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        before = self._count()
        if before < 0:
            raise CaptureFailed("the capture was invalidated between operators", self.under_way)
        name = self.under_way = str(called(func, args))
        self._require_captured(name, tree_leaves((args, kwargs)))
        if self._internal is not None:
            self._internal.enter()
        result = func(*args, **kwargs)
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self._require_captured(name, results)
        after = self._count()
        if after < 0:
            raise CaptureFailed(f"{name} invalidated the capture", name)
        if after > before:
            self.launched.append((before, after, name))
            if self._launches is not None:
                self._launches.note((before, after), func, args, kwargs, result)
        if after > before + 1:
            self.operators.append((before, after))
        unwritten = unwritten_states(func, args, kwargs, result)
        self.unwritten += [state.data_ptr() for state in unwritten]
        self.kept += map(_memory_of, results)
        if self._internal is not None:
            self._internal.leave(results)
        self.under_way = None
        return result

    def _require_captured(self, name: str, leaves: Iterable[Any]) -> None:
        """What runs elsewhere runs now, and in no replay."""
        for other in filter(self._apart, leaves):
            raise CaptureFailed(f"{name} works on {other.device}; the first call had nothing there")


def _memory_of(tensor: torch.Tensor) -> Any:
    """What keeps the memory of a tensor, but not the tensor: a gradient that somebody refers to is
    copied when it is accumulated (torch, csrc/autograd/functions/accumulate_grad.h)."""
    return tensor.untyped_storage() if is_strided(tensor) else tensor


@contextlib.contextmanager
def hold_buffers(
    allocators: Iterable[Allocator],
    kept: list[Any],
    count_nodes: Callable[[], int] = lambda: 0,
    internal: Internal | None = None,
    launches: Launches | None = None,
    apart: Callable[[Any], bool] = lambda value: False,
) -> Iterator[_KeepResults]:
    """While on, the memory of what `allocators` and operators make is appended to `kept`.
    `count_nodes` says how many nodes the capture has, -1 if it is invalid; `internal` holds what
    operators allocate inside themselves; `launches` notes what operators read and write;
    `apart` says whether a value is on a GPU whose stream is not captured."""
    replaced: list[tuple[dict[str, Any], str, Any]] = []

    def keeping(allocate: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(allocate)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            tensor = allocate(*args, **kwargs)
            kept.append(_memory_of(tensor))
            return tensor

        return wrapper

    for names, name in allocators:
        replaced.append((names, name, names[name]))
        names[name] = keeping(names[name])
    try:
        with _KeepResults(kept, count_nodes, internal, launches, apart) as mode:
            yield mode
    finally:
        for names, name, original in replaced:
            names[name] = original
