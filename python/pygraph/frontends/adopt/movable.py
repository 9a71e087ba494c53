"""What `pygraph.adopt` returns: a graph that is called with tensors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.frontends.adopt.pairs import layout, not_plain, text_of
from pygraph.frontends.adopt.plan import AdoptionPlan


class MovableGraph:
    """A graph that `pygraph.adopt` made movable. Calling it with tensors, one for each input, in
    the order in which they were named, launches it on the current stream and returns the outputs: a
    tensor if there is one, a tuple if there are several, None if there are none.

    An input has the dtype, device, sizes and strides of the static one, else the call raises
    TypeError or ValueError and does nothing. It may stand anywhere but in memory that the graph
    itself uses, such as a static output. One that is less aligned than the static one is copied.

    Like a replay of the first graph, calls use the first graph's pool: they, replays of the first
    graph, and replays of others that share its pool must come one after another, on one stream or
    on streams that wait for each other. Threads may call it if they see to that. `first.reset()`
    must not be called while it is in use."""

    verdict: str
    """What the proof found: "bit-equal", or "within run-to-run spread"."""
    figures: Mapping[str, int]
    """Nodes; relocations; words that keep an address of the first graph's memory; inputs; outputs
    that are new memory, copied, or static."""

    def __init__(
        self,
        program: _engine.TensorProgram,
        plan: AdoptionPlan,
        *,
        written: Sequence[int],
        ignored: int,
        verdict: str,
        figures: Mapping[str, int],
    ) -> None:
        """`written`: the inputs that the graph writes. `ignored`: arguments of the program behind
        the inputs."""
        self._program = program
        self._first = plan.first  # its pool is the scratch
        self._outputs = [pair.first for pair in plan.staying]  # memory that is read or returned
        self._names = [pair.name for pair in plan.inputs]
        self._layouts = [layout(pair.first) for pair in plan.inputs]
        self._bytes = [pair.bytes for pair in plan.inputs]
        self._own = plan.own
        self._busy = plan.device.busy
        self._written = written
        self._ignored = (None,) * ignored
        self._results = len(plan.outputs)
        self.verdict, self.figures = verdict, figures

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Launches the graph on these inputs."""
        self._require(inputs)
        results: Any = self._program.run([*inputs, *self._ignored])
        if self._results == 1:
            return results[0]
        return results if self._results else None

    def __repr__(self) -> str:
        figures = ", ".join(f"{count} {name}" for name, count in self.figures.items())
        return f"<pygraph.MovableGraph: {figures}; proof: {self.verdict}>"

    def _require(self, inputs: Sequence[Any]) -> None:
        if len(inputs) != len(self._layouts):
            raise TypeError(f"found {len(inputs)} inputs, needed {len(self._layouts)}")
        for index, given in enumerate(inputs):
            if not isinstance(given, torch.Tensor):
                raise TypeError(
                    f"{self._names[index]} is a {type(given).__name__}; needed: a tensor"
                )
            if layout(given) != self._layouts[index]:
                raise ValueError(
                    f"{self._names[index]} is {text_of(layout(given))}; needed: "
                    f"{text_of(self._layouts[index])}"
                )
            why = not_plain(given)
            if why is not None:
                raise ValueError(f"{self._names[index]} is {why}; needed: a plain strided tensor")
            if given.requires_grad and torch.is_grad_enabled():
                raise ValueError(
                    f"{self._names[index]} requires grad, and the graph has no backward; needed: "
                    "a detached tensor, or a call under torch.no_grad()"
                )
            start = given.data_ptr()
            if self._own.overlap(start, start + self._bytes[index]):
                raise ValueError(
                    f"{self._names[index]} is in memory that the graph itself uses: its private "
                    "pool, or a static output; needed: a copy of it elsewhere"
                )
        if self._written:
            self._require_apart(inputs)
        if self._busy():
            raise RuntimeError(
                "the current stream is being captured, and a movable graph cannot be a part of "
                "another; needed: a stream that is not"
            )

    def _require_apart(self, inputs: Sequence[torch.Tensor]) -> None:
        """Raises ValueError where an input that is written shares memory with another: the static
        ones do not."""
        places = [
            (each.data_ptr(), each.data_ptr() + size)
            for each, size in zip(inputs, self._bytes, strict=True)
        ]
        for written, other in itertools.product(self._written, range(len(places))):
            (low, high), (start, end) = places[written], places[other]
            if written != other and low < end and start < high:
                raise ValueError(
                    f"{self._names[written]}, which the graph writes, shares memory with "
                    f"{self._names[other]}; needed: tensors that share none"
                )
