"""One program as it is and captured, from the same seed: every value that it returns and all state
that it leaves must have the same bits, and the generator must end in the same state."""

from __future__ import annotations

import colorsys
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from places import Place
from torch.utils._pytree import tree_leaves
from training_support import generator_state

import pygraph
from pygraph.capturing.tensors import same_bits
from pygraph.reporting import GraphReport

#: Calls before the first replay: one to learn the code, one that is watched, one that links.
UNGRAPHED = 3


class Unseen:
    """Something that no tree of a call shows: a library's variables are no program's state."""

    def __init__(self, name: str, value: Any) -> None:
        self.name = f"{__name__}: {name}"
        self.set(value)

    def get(self) -> Any:
        return vars(colorsys)[self.name]

    def set(self, value: Any) -> None:
        vars(colorsys)[self.name] = value


class Program:
    """A callable, the state that it leaves, and what it is called with."""

    def __init__(
        self,
        step: Callable[..., Any],
        state: Callable[[], Any],
        inputs: Callable[[int], Sequence[Any]],
        between: Callable[[int], None] = lambda number: None,
    ) -> None:
        """`between` runs behind each call."""
        self.step, self.state, self.inputs, self.between = step, state, inputs, between


def snapshot(value: Any) -> list[Any]:
    """All leaves of a value, tensors as copies."""
    return [
        each.detach().clone() if isinstance(each, torch.Tensor) else each
        for each in tree_leaves(value)
    ]


def state_of(*parts: Any) -> list[Any]:
    """The tensors in modules (gradients too) and optimizers, and other tensors."""
    found: list[Any] = []
    for part in parts:
        if isinstance(part, torch.nn.Module):
            found += [*part.parameters(), *part.buffers(), *(p.grad for p in part.parameters())]
        elif isinstance(part, torch.optim.Optimizer):
            found += [value for each in part.state.values() for value in each.values()]
        else:
            found.append(part)
    return found


def trace(place: Place, program: Program, step: Callable[..., Any], calls: int) -> list[Any]:
    """What each call returns, and all state behind it."""
    torch.manual_seed(7)
    found: list[Any] = []
    kept: list[tuple[Any, list[Any]]] = []
    for number in range(calls):
        result = step(*program.inputs(number))
        found += [*snapshot(result), *snapshot(program.state())]
        kept.append((result, snapshot(result)))
        program.between(number)
    for result, before in kept:  # results are the caller's to keep
        assert all(map(same_bits, snapshot(result), before))
    return [*found, generator_state(place)]


def agree(
    place: Place,
    build: Callable[[], Program],
    *,
    calls: int = 10,
    replays: int | range | None = None,
    **options: Any,
) -> GraphReport:
    """Runs the program both ways and compares. `replays`: calls that must have been served by
    graphs, or one less: where torch's caches are warm, some code is first seen in the second call.
    None: all but UNGRAPHED. Returns the report of the last graph."""
    with deterministic(place):
        torch.manual_seed(3)
        plain = build()
        expected = trace(place, plain, plain.step, calls)
        torch.manual_seed(3)
        program = build()
        captured = pygraph.capture(program.step, device=place.name, **options)
        found = trace(place, program, captured, calls)
    assert len(found) == len(expected)
    for number, (left, right) in enumerate(zip(found, expected, strict=True)):
        assert same_bits(left, right), (number, left, right)
    graphs = pygraph.report().graphs
    served = sum(graph.replays for graph in graphs)
    wanted = calls - UNGRAPHED if replays is None else replays
    wanted = wanted if isinstance(wanted, range) else range(wanted - 1, wanted + 1)
    assert served in wanted, (served, wanted, str(pygraph.report()))
    return graphs[-1]


@contextlib.contextmanager
def deterministic(place: Place) -> Iterator[None]:
    """On a GPU, where results may differ from run to run."""
    if place.name == "twin":
        yield
        return
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def runs_as_it_is(place: Place, build: Callable[[], Program], *, calls: int = 8) -> str:
    """The same for a callable that gets no graph. Returns why."""
    agree(place, build, calls=calls, replays=0)
    report = pygraph.report()
    reasons = [graph.reason for graph in report.graphs if graph.reason] + list(report.events)
    assert reasons, str(report)
    return "; ".join(reasons)
