"""Foreign words: addresses of device memory in a graph that are nobody's region.

A constant that Inductor's module or an FX graph holds, a table that a library made once. They are
the same in every capture and are left as they are. Two things follow. What they point to must
live as long as the graph: tensors of the callable are found and kept. And memory that nobody can
explain may hold pointers of its own, say to weights: while such words are there, constants must
stay where they were linked, since nothing would tell that memory of a move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from pygraph.capture.hold import callables_behind, generated_globals


def explain(
    function: Callable[..., Any], words: Sequence[int]
) -> tuple[list[torch.Tensor], list[int]]:
    """The tensors of `function` that some of `words` point into, and the words that point into
    none of them."""
    if not words:
        return [], []
    owned: list[torch.Tensor] = []
    unknown = set(words)
    for tensor in _tensors_of(function):
        storage = tensor.untyped_storage()
        start, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        inside = {word for word in unknown if start <= word <= end and start}
        if inside:
            owned.append(tensor)
            unknown -= inside
    return owned, sorted(unknown)


def _tensors_of(function: Callable[..., Any]) -> Iterator[torch.Tensor]:
    """Tensors that a compiled callable holds: globals of Inductor's modules, attributes of the FX
    graphs and objects behind it."""
    for names in generated_globals(function):
        yield from _tensors_in(names.values())
    for item in callables_behind(function):
        if isinstance(item, torch.nn.Module):
            yield from _tensors_in(item.state_dict(keep_vars=True).values())
        yield from _tensors_in(getattr(item, "__dict__", {}).values())
        for cell in getattr(item, "__closure__", None) or ():
            try:
                yield from _tensors_in([cell.cell_contents])
            except ValueError:  # an empty cell
                continue


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in list(values):
        if isinstance(value, torch.Tensor):
            if value.layout == torch.strided:
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)
        elif isinstance(value, dict):
            yield from _tensors_in(value.values())
