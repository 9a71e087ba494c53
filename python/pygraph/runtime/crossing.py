"""Which of a callable's arguments and results its callers have on the host, and it on the device.

A transformed graph (transform/) takes tensors on the device that its callers have on the host, and
returns some on the device that they get on the host. Of some arguments not they are brought, but
what the host computes of them. A graph crosses by itself (src/torch/staging.h says how); wherever
the callable runs as it is, this does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pygraph._engine import Formula
from pygraph.capturing.device import Device


@dataclasses.dataclass(frozen=True)
class Crossing:
    """Which arguments are brought to the device, and which results are fetched from it."""

    staged: frozenset[int] = frozenset()
    fetched: frozenset[int] = frozenset()
    #: of some staged arguments, what is brought in place of them, one behind the other
    computed: Mapping[int, Sequence[Formula]] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.staged or self.fetched)

    def bring(self, arguments: list[Any], device: Device) -> None:
        """Replaces arguments that are on the host. Their memory is the caller's again on return."""
        self.bring_to(arguments, device.place)

    def bring_to(self, arguments: list[Any], device: torch.device) -> None:
        """The same, where only torch's device is known."""
        computed = {index: self._computed(index, arguments) for index in self.computed}
        for index in self.staged:
            arguments[index] = brought(computed.get(index, arguments[index]), device)

    def _computed(self, index: int, arguments: list[Any]) -> torch.Tensor:
        found = [
            formula.evaluate({each: float(arguments[each]) for each in formula.arguments})
            for formula in self.computed[index]
        ]
        return torch.tensor(found, dtype=torch.float64)

    def fetch(self, results: Any) -> list[Any]:
        """The results as the caller gets them."""
        returned = list(results)
        for index in self.fetched:
            returned[index] = returned[index].to("cpu", copy=True)
        return returned


NOTHING = Crossing()


def renumbered(formula: Formula, numbers: Mapping[int, int]) -> Formula:
    """The same, of arguments that have other numbers."""
    return Formula(
        [
            Formula.Step(
                step.operation,
                argument=numbers.get(step.argument, step.argument),
                constant=step.constant,
            )
            for step in formula.steps
        ]
    )


def brought(value: torch.Tensor | int, to: torch.device) -> torch.Tensor:
    """A copy on the device, with the same strides; of an integer a tensor without dimensions. From
    pinned memory the device would copy after the return, so that is waited for."""
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value, dtype=torch.int64, device=to)
    made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=to)
    return made.copy_(value, non_blocking=not value.is_pinned())
