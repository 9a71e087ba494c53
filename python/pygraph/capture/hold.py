"""Holding every buffer of a capture until it ends, so that each has addresses of its own.

Torch's allocator would hand a freed buffer's memory to the next one, and two tensors at one address
can only move together. Phantom memory is free, so nothing need be reused: Inductor's code takes its
buffers from a module global, `empty_strided_cuda`, which is wrapped for the length of the capture;
results of operators are kept by a dispatch mode (which Triton launches do not pass through). What
operators allocate and free inside themselves is held on a GPU (internal.py); where it is not, it
stays correct, as a cell shared by several buffers in turn.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pygraph.capture import separate
from pygraph.capture.attention import idle_states, require_seeds_on_device
from pygraph.capture.internal import Internal
from pygraph.torch_private.dispatch import TorchDispatchMode, tree_leaves

_ALLOCATORS = ("empty_strided_cuda", "empty_strided_cuda_pinned", "alloc_from_pool")
_SEARCH_DEPTH = 4


class _KeepResults(TorchDispatchMode):
    """Keeps every tensor that an operator returns. Records the operators' names, the last one
    being the guilty one when a capture fails, and which nodes an operator launched together."""

    supports_higher_order_operators = True

    def __init__(
        self, kept: list[Any], count_nodes: Callable[[], int], internal: Internal | None
    ) -> None:
        super().__init__()
        self.kept = kept
        self._internal = internal
        self.last_operator: str | None = None
        self.operators: list[tuple[int, int]] = []  #: nodes before and after, where it made several
        self.idle: list[int] = []  #: which of `kept` nobody writes (attention.py)
        self._count = count_nodes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.last_operator = str(func)
        require_seeds_on_device(func, args, kwargs)
        apart = separate.calls_of(func, args, kwargs)
        if apart:
            return separate.joined([self._call(func, each, kwargs) for each in apart])
        return self._call(func, args, kwargs)

    def _call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        before = self._count()
        if self._internal is not None:
            self._internal.enter()
        result = func(*args, **kwargs)
        after = self._count()
        if after > before + 1:
            self.operators.append((before, after))
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        idle = idle_states(func, args, kwargs, result)
        for kept in results:
            if any(kept is state for state in idle):
                self.idle.append(len(self.kept))
            self.kept.append(kept)
        if self._internal is not None:
            self._internal.leave(results)
        return result


def callables_behind(function: Any, depth: int = _SEARCH_DEPTH) -> list[Any]:
    """`function` and what it calls, as far as that can be seen from outside: bound methods,
    partials, wrappers and closures are looked through."""
    found: list[Any] = []
    seen: set[int] = set()

    def visit(item: Any, left: int) -> None:
        if left == 0 or id(item) in seen or not callable(item):
            return
        seen.add(id(item))
        found.append(item)
        if isinstance(item, functools.partial):
            visit(item.func, left - 1)
        for attribute in ("__func__", "__wrapped__"):
            visit(getattr(item, attribute, None), left)
        for cell in getattr(item, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # an empty cell
                visit(cell.cell_contents, left - 1)
        owner = getattr(item, "__self__", None)
        if owner is not None:
            visit(owner, left - 1)

    visit(function, depth)
    return found


def generated_functions(function: Any, depth: int = _SEARCH_DEPTH) -> list[Any]:
    """What is called of Inductor's generated code behind `function`: of each module the first that
    is found, which is `call`, or a partition that Inductor hands to the hook by itself."""
    found: list[Any] = []
    for item in callables_behind(function, depth):
        names: Any = getattr(item, "__globals__", None)
        generated = isinstance(names, dict) and any(name in names for name in _ALLOCATORS)
        if generated and all(names is not other.__globals__ for other in found):
            found.append(item)
    return found


def generated_globals(function: Any, depth: int = _SEARCH_DEPTH) -> list[dict[str, Any]]:
    """The module dictionaries of Inductor's generated code behind `function`."""
    return [each.__globals__ for each in generated_functions(function, depth)]


@contextlib.contextmanager
def hold_buffers(
    function: Callable[..., Any],
    kept: list[Any],
    count_nodes: Callable[[], int] = lambda: 0,
    internal: Internal | None = None,
) -> Iterator[_KeepResults]:
    """While on, tensors that `function` makes are appended to `kept`. `count_nodes` says how many
    nodes the capture has; `internal` holds what operators allocate inside themselves."""
    replaced: list[tuple[dict[str, Any], str, Any]] = []

    def keeping(allocate: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(allocate)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            tensor = allocate(*args, **kwargs)
            kept.append(tensor)
            return tensor

        return wrapper

    for names in generated_globals(function):
        for name in _ALLOCATORS:
            if name in names:
                replaced.append((names, name, names[name]))
                names[name] = keeping(names[name])
    try:
        with _KeepResults(kept, count_nodes, internal) as mode:
            yield mode
    finally:
        for names, name, original in replaced:
            names[name] = original
