"""The proof of an adopted graph: a replay of the first graph is the callable, and the tensors that
it was captured with take the place of phantom memory.

A replay may write memory that is neither input nor output and that the caller goes on using, such
as a cache. All allocations that the graph has addresses of are copied before the first replay, so
what is written there is found, put back, and compared like results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pygraph.capturing import tensors
from pygraph.capturing.device import Device
from pygraph.frontends.adopt.pairs import Pair

#: The share of free memory that copies of what a graph has addresses of may take; where they take
#: more they are made on the host.
_MEMORY_SHARE = 0.5


class Replay:
    """The first graph as a callable of its inputs: these are copied to where it was captured with
    them, and copied back, for it may write them. Further arguments are memory that it finds by
    itself. What it has left in its outputs is put back before each run, else one that reads them
    would never do the same again."""

    def __init__(self, graph: Any, inputs: Sequence[Pair], outputs: Sequence[Pair]) -> None:
        self._graph = graph
        self._inputs = [tensors.bytes_of(pair.first) for pair in inputs]
        self._outputs = [pair.first for pair in outputs]
        self._before = [tensors.bytes_of(output).clone() for output in self._outputs]

    def __call__(self, arguments: list[Any]) -> list[Any]:
        given = [tensors.bytes_of(each) for each in arguments[: len(self._inputs)]]
        for output, before in zip(self._outputs, self._before, strict=True):
            tensors.bytes_of(output).copy_(before)
        for static, values in zip(self._inputs, given, strict=True):
            static.copy_(values)
        self._graph.replay()
        for static, values in zip(self._inputs, given, strict=True):
            values.copy_(static)
        return [tensors.static_copy(output) for output in self._outputs]


class StaticMemory:
    """The tensors that a graph was captured with. `untouched` are not even written."""

    def __init__(self, pairs: Sequence[Pair], untouched: Sequence[Pair]) -> None:
        self._all = [tensors.bytes_of(pair.first) for pair in pairs]
        self._untouched = [tensors.bytes_of(pair.first) for pair in untouched]
        self._values = [each.clone() for each in self._all]

    def poison(self, byte: int) -> None:
        for each in self._all:
            each.fill_(byte)

    def intact(self, byte: int) -> bool:
        return all(bool((each == byte).all()) for each in self._untouched)

    def restore(self) -> None:
        """Gives all of them the values from before."""
        for each, values in zip(self._all, self._values, strict=True):
            each.copy_(values)


class Surroundings:
    """Memory that a graph may address besides, as (start, end), with the values that it has now."""

    def __init__(self, device: Device, places: Sequence[tuple[int, int]]) -> None:
        here = device.place
        self._places = [_bytes_at(start, end, here) for start, end in places]
        needed = sum(each.numel() for each in self._places)
        if needed > _MEMORY_SHARE * device.free_bytes():
            here = torch.device("cpu")
        self._values = [each.to(here, copy=True) for each in self._places]
        self._written: set[int] = set()

    def put_back(self) -> None:
        """Gives what was written the values from before."""
        for index, (each, values) in enumerate(zip(self._places, self._values, strict=True)):
            if not torch.equal(each, values.to(each.device)):
                each.copy_(values)
                self._written.add(index)

    def narrow(self) -> list[torch.Tensor]:
        """What was found to be written, as bytes. The rest is not looked at any more."""
        self._places = [self._places[index] for index in sorted(self._written)]
        self._values = [self._values[index] for index in sorted(self._written)]
        self._written.clear()
        return self._places


def _bytes_at(start: int, end: int, device: torch.device) -> torch.Tensor:
    like = torch.empty(end - start, dtype=torch.uint8, device="meta")
    return tensors.at_address(like, start, end - start, device)
