"""What compiling costs: Inductor's caches, and the tuning of kernels, which takes most of it.

Where all else is cached, Inductor still times the variants of each kernel at its first call, unless
an earlier process left its choices on disk. What is tuned while others use the GPU is chosen by
chance, and not kept; where nothing is kept, nothing needs to be tuned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch._dynamo

COUNTED = ("_cache_hit", "_cache_miss", "_cache_bypass")
LEAST_S = 0.1
"""Shorter spans are left out of the record."""


@dataclass(frozen=True)
class Spent:
    """What torch counted so far in this process."""

    caches: dict[str, int]
    """{inductor.fxgraph_cache_hit, aot_autograd.autograd_cache_miss, ...}."""
    seconds: dict[str, float]
    """By the name of a span, as torch has it; spans nest, so they do not add up."""

    @classmethod
    def now(cls) -> Spent:
        utils: Any = torch._dynamo.utils
        caches = {
            f"{group}.{name}": int(count)
            for group in ("inductor", "aot_autograd")
            for name, count in utils.counters[group].items()
            if name.endswith(COUNTED)
        }
        spans = getattr(utils, "compilation_time_metrics", {})
        return cls(caches, {name: float(sum(times)) for name, times in spans.items()})

    def since(self, before: Spent) -> dict[str, dict[str, float]]:
        """What was added, for the record."""
        caches = {n: count - before.caches.get(n, 0) for n, count in self.caches.items()}
        seconds = {n: each - before.seconds.get(n, 0.0) for n, each in self.seconds.items()}
        longest = sorted(seconds.items(), key=lambda item: -item[1])
        return {
            "caches": {name: count for name, count in caches.items() if count},
            "seconds": {name: round(each, 2) for name, each in longest if each >= LEAST_S},
        }


def untold_choices() -> contextlib.AbstractContextManager[bool]:
    """Choices of kernels are not kept on disk; the first to run alone chooses again."""
    return _instead("autotune_cache", "AutotuneCache", "save", lambda *_, **__: None)


@contextlib.contextmanager
def untuned() -> Iterator[None]:
    """The first variant of each kernel is taken as it comes, where that is sure to be forgotten."""
    with untold_choices() as forgotten, contextlib.ExitStack() as stack:
        if forgotten:
            name = "benchmark_all_configs"
            stack.enter_context(_instead("triton_heuristics", "CachingAutotuner", name, _in_order))
        yield


def _in_order(tuner: Any, *_: Any, **__: Any) -> dict[Any, float]:
    return {launcher: float(n) for n, launcher in enumerate(tuner.launchers)}


@contextlib.contextmanager
def _instead(module: str, kind: str, method: str, function: Callable[..., Any]) -> Iterator[bool]:
    """One of Inductor's methods replaced; False where this torch does not have it."""
    try:
        owner = getattr(import_module(f"torch._inductor.runtime.{module}"), kind)
        real = getattr(owner, method)
    except (ImportError, AttributeError):
        yield False
        return
    setattr(owner, method, function)
    try:
        yield True
    finally:
        setattr(owner, method, real)
