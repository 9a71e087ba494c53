"""All that a whole step has left, as a list of places and what is in them."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import operator
import types
from collections.abc import Iterator
from typing import Any

import torch

#: A path, and a tensor or a value that is compared.
Found = tuple[str, Any]


class Walk:
    """Finds the places in their order. What is met again is told by where it was first, unless it
    need not be the same object (`anew`), as the containers that a step returns."""

    def __init__(self, anew: bool = False) -> None:
        self._anew = anew
        self._met: dict[int, str] = {}
        self._alive: list[Any] = []

    def places(self, value: Any, path: str) -> Iterator[Found]:
        if isinstance(value, torch.Tensor):
            yield from self._tensor(value, path)
            return
        if isinstance(value, (int, str, type(None), type, torch.dtype, torch.device)):
            yield path, value
            return
        if isinstance(value, float):
            yield path, value.hex()
            return
        if id(value) in self._met:
            yield path, f"the same as {self._met[id(value)]}"
            return
        if not self._anew:
            self._met[id(value)] = path
            self._alive.append(value)
        kind = type(value)
        yield path, f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(value, torch.Generator):
            yield f"{path}'s state", value.get_state()
        elif isinstance(value, torch.optim.Optimizer):
            yield from self._optimizer(value, path)
        elif isinstance(value, torch.nn.Module):
            yield from self._items(
                {k: v for k, v in vars(value).items() if not k.endswith(("hooks", "_kwargs"))}, path
            )
        elif isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            yield from self._items(value.state_dict(), path)
        elif isinstance(value, dict):
            yield from self._items(value, path)
        elif isinstance(value, (list, tuple, collections.deque)):
            yield f"len({path})", len(value)
            for number, each in enumerate(value):
                yield from self.places(each, f"{path}[{number}]")
        elif isinstance(value, (set, frozenset)):
            yield f"{path}'s elements", sorted(map(repr, value))
        elif dataclasses.is_dataclass(value) or isinstance(value, types.SimpleNamespace):
            yield from self._items(vars(value), path)
        elif isinstance(value, Iterator):  # how far it has come
            yield path, repr(value) if kind is itertools.count else operator.length_hint(value)
        elif not callable(value):
            raise TypeError(f"{path} is a {type(value).__name__}, which nothing compares")

    def _items(self, value: dict[Any, Any], path: str) -> Iterator[Found]:
        keys = [key if isinstance(key, (str, int)) else type(key).__name__ for key in value]
        yield f"{path}'s keys", keys
        for key, each in value.items():
            yield from self.places(each, f"{path}.{key}" if isinstance(key, str) else f"{path}[]")

    def _tensor(self, value: torch.Tensor, path: str) -> Iterator[Found]:
        yield path, value
        if (value.is_leaf and value.requires_grad) or isinstance(value, torch.nn.Parameter):
            if id(value) in self._met:
                return
            self._met[id(value)] = path
            self._alive.append(value)
            yield f"{path}.grad", value.grad

    def _optimizer(self, value: torch.optim.Optimizer, path: str) -> Iterator[Found]:
        yield from self.places(value.param_groups, f"{path}.param_groups")
        for number, (parameter, state) in enumerate(value.state.items()):
            yield f"{path}.state's key {number}", parameter
            yield from self.places(state, f"{path}.state[{number}]")


def tensors(places: list[Found]) -> list[torch.Tensor]:
    return [value for _, value in places if isinstance(value, torch.Tensor)]
