"""Python numbers among the arguments of a callable, of which each call may have others.

Kernels take them by value. Capture A has the call's numbers and probe B others, so the engine finds
the words that hold them (include/pygraph/host_number.h). What the callable computes of them before
a kernel takes it is a host number as well, with a formula.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pygraph import _engine
from pygraph._engine import Formula
from pygraph.capturing.device import CaptureFailed

Number = float | int
#: An operation, and what it takes besides what was computed before: the number of an argument, or a
#: constant.
Step = tuple[Formula.Operation, Number]

#: What is left of a number in the probe, and in a proof with other numbers.
_IN_PROBE = 0.71
_IN_PROOF = 0.53
#: Numbers of the same value differ in the probe by one part in so many, or more.
_APART = 64
#: Where what is left of a number could not be told from it, the probe has this.
_SMALL = 2.0**-10
_IN_PROBE_OF_SMALL = 0.37


@dataclasses.dataclass(frozen=True)
class Computed:
    """A number among the arguments, or one that a run has computed of them."""

    steps: tuple[Step, ...]  #: as a machine with a stack takes them (src/torch/formula.h)
    value: Number

    @property
    def source(self) -> int | Formula:
        """Where a call has it from."""
        (operation, operand), *others = self.steps
        if operation is Formula.Operation.ARGUMENT and not others:
            return int(operand)
        return Formula([_formula_step(each) for each in self.steps])


def _formula_step(step: Step) -> Formula.Step:
    operation, operand = step
    if operation is Formula.Operation.ARGUMENT:
        return Formula.Step(operation, argument=int(operand))
    return Formula.Step(operation, constant=float(operand))


@dataclasses.dataclass(frozen=True)
class HostNumbers:
    """Those of a callable."""

    arguments: Collection[int] = ()  #: which arguments they are
    #: these numbers and what the last capture of the callable has computed of them
    computed: Callable[[], Sequence[Computed]] = tuple

    def in_probe(self, arguments: Sequence[Any]) -> dict[int, Number]:
        """Those of the probe, by argument."""
        return {
            index: _in_probe(arguments[index], order) for order, index in enumerate(self.arguments)
        }

    def in_proof(self, arguments: Sequence[Any]) -> dict[int, Number]:
        """Others, with which the callable can run for real: nearer to 0 or 1 than the call's."""
        return {index: _smaller(arguments[index]) for index in self.arguments}


def pairs(a: Sequence[Computed], b: Sequence[Computed]) -> list[tuple[Computed, Computed]]:
    """What capture A and its probe B have computed, each number once. Raises CaptureFailed where
    they have not computed the same, or where a number of both cannot be told apart."""
    if [each.steps for each in a] != [each.steps for each in b]:
        raise CaptureFailed("two captures of the same call compute differently with its numbers")
    found: dict[tuple[bytes, bytes], tuple[Computed, Computed]] = {}
    for left, right in zip(a, b, strict=True):
        if _float32(left.value) == _float32(right.value):
            raise CaptureFailed("it computes almost the same of different numbers")
        found.setdefault((_bits(left.value), _bits(right.value)), (left, right))
    return list(found.values())


def of_engine(pair: tuple[Computed, Computed]) -> _engine.HostNumber:
    return _engine.HostNumber(in_a=pair[0].value, in_b=pair[1].value)


def _in_probe(value: Number, order: int) -> Number:
    """Another number on the same side of 0, 1 and -1. `order`: its place among the numbers."""
    if isinstance(value, int):
        return value + (1 + order if value > 0 else -1 - order)
    start = _nearest_mark(value)
    share = 1 + order / _APART
    distance = abs(value) - start
    left = distance * _IN_PROBE if distance > _SMALL else _IN_PROBE_OF_SMALL
    return math.copysign(start + left / share, value)


def _smaller(value: Number) -> Number:
    if isinstance(value, int):
        return value // 2 if value > 0 else -(-value // 2)
    start = _nearest_mark(value)
    return math.copysign(start + (abs(value) - start) * _IN_PROOF, value)


def _nearest_mark(value: float) -> int:
    """Of 0 and 1, the one that is the next below the number's absolute value."""
    return 1 if abs(value) > 1 else 0


def _bits(value: Number) -> bytes:
    return struct.pack("<d" if isinstance(value, float) else "<q", value)


def _float32(value: Number) -> bytes | Number:
    """The bits in a kernel that takes 4 bytes, where a float fits."""
    try:
        return struct.pack("<f", value) if isinstance(value, float) else value
    except OverflowError:
        return value
