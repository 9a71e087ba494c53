"""Numbers that know what is computed with them.

In a capture, the numbers that differ from call to call stand in their places as these: Python's
floats and ints, with the very same results, that note on a tape what becomes of them. Arithmetic
that calls can repeat (src/torch/formula.h) gives another one. What else asks for the value decides
what is computed: the graph of one value is not that of another then. torch's operators read the
value without asking, which is what they are for.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection
from typing import Any

from pygraph import _engine
from pygraph._engine import Formula
from pygraph.capturing.host_numbers import Computed, Number, Step

_Operation = Formula.Operation
#: By the names of their methods.
_ARITHMETIC: dict[str, tuple[Formula.Operation, Callable[[Any, Any], Any]]] = {
    "add": (_Operation.ADD, operator.add),
    "sub": (_Operation.SUBTRACT, operator.sub),
    "mul": (_Operation.MULTIPLY, operator.mul),
    "truediv": (_Operation.DIVIDE, operator.truediv),
    "pow": (_Operation.POWER, operator.pow),
}
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
#: Methods whose result is the same for many values.
_DECIDING = (
    *("__int__", "__float__", "__trunc__", "__floor__", "__ceil__", "__round__", "__abs__"),
    *("__floordiv__", "__rfloordiv__", "__mod__", "__rmod__", "__divmod__", "__rdivmod__"),
    *("__and__", "__rand__", "__or__", "__ror__", "__xor__", "__rxor__", "__invert__"),
    *("__lshift__", "__rlshift__", "__rshift__", "__rrshift__", "__index__", "__hash__"),
    *("__repr__", "__str__", "__format__", "is_integer", "as_integer_ratio", "bit_length"),
)
_MOST_STEPS = 64
#: Ints up to this are floats, too.
_LARGEST_EXACT = 2**53


class Tape:
    """What one capture does with its numbers."""

    def __init__(self) -> None:
        self._values: dict[tuple[Step, ...], Number] = {}
        #: arguments whose numbers decide what is computed, with the method that asked
        self.decided: dict[int, str] = {}

    @property
    def computed(self) -> list[Computed]:
        return [Computed(steps, value) for steps, value in self._values.items()]

    def number(self, argument: int, value: Number) -> Any:
        """The number that this argument of the graph is."""
        return self.trace(value, ((_Operation.ARGUMENT, argument),))

    def trace(self, value: Number, steps: tuple[Step, ...]) -> Any:
        self._values[steps] = value
        made = (TracedFloat if isinstance(value, float) else TracedInt)(value)
        made.tape, made.steps = self, steps
        return made

    def note_decision(self, steps: Collection[Step], method: str) -> None:
        for operation, operand in steps:
            if operation is _Operation.ARGUMENT:
                self.decided.setdefault(int(operand), method.strip("_"))


class _Traced:
    tape: Tape
    steps: tuple[Step, ...]  #: that it was computed in

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __pos__(self) -> Any:
        return self

    def __neg__(self) -> Any:
        return operator.mul(self, -1)

    def __bool__(self) -> bool:
        return bool(operator.ne(self, 0))

    def __array_ufunc__(self, function: Any, method: str, *operands: Any, **named: Any) -> Any:
        """NumPy's functions."""
        self.tape.note_decision(self.steps, function.__name__)
        return getattr(function, method)(*map(_untraced, operands), **named)


class TracedFloat(_Traced, float):
    """A float of a tape."""


class TracedInt(_Traced, int):
    """An int of a tape. What is computed of it with a float is traced."""


TRACED = (TracedFloat, TracedInt)


def _untraced(value: Any) -> Any:
    if isinstance(value, float):
        return float.__pos__(value)
    return int.__pos__(value) if isinstance(value, int) else value


def _arithmetic(name: str, *, reflected: bool) -> Callable[[Any, Any], Any]:
    operation, compute = _ARITHMETIC[name]

    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented  # a tensor's, which reads the value
        left, right = (other, self) if reflected else (self, other)
        value = compute(_untraced(left), _untraced(right))
        if not isinstance(value, float) or (isinstance(left, int) and isinstance(right, int)):
            return value
        steps = (*_steps_of(left), *_steps_of(right), (operation, 0))
        return self.tape.trace(value, steps) if _is_formula(steps) else value

    return method


def _steps_of(value: Any) -> tuple[Step, ...]:
    if isinstance(value, _Traced):
        return value.steps
    return ((_Operation.CONSTANT, float(value)),)


def _is_formula(steps: tuple[Step, ...]) -> bool:
    """Whether calls can compute these. A constant -0.0 equals another one, and they do not."""
    depth = most = 0
    for operation, operand in steps:
        if operation is _Operation.CONSTANT and operand == 0 and math.copysign(1, operand) < 0:
            return False
        depth += 1 if operation in (_Operation.ARGUMENT, _Operation.CONSTANT) else -1
        most = max(most, depth)
    return len(steps) <= _MOST_STEPS and most <= Formula.DEEPEST


def _comparison(base: Any, name: str) -> Callable[[Any, Any], Any]:
    compare = getattr(base, name)

    def method(self: Any, other: Any) -> Any:
        answer = compare(self, _untraced(other))
        if answer is not NotImplemented and not _is_settled(self, name, other):
            self.tape.note_decision(self.steps, name)
            if isinstance(other, _Traced):
                self.tape.note_decision(other.steps, name)
        return answer

    return method


def _is_settled(number: Any, name: str, other: Any) -> bool:
    """Whether all numbers that may stand in for a call's give the same answer."""
    if len(number.steps) > 1 or isinstance(other, _Traced):
        return False
    if other in (-1, 0, 1):
        return True
    exact = isinstance(other, float) or abs(other) <= _LARGEST_EXACT
    alone = exact and not _engine.may_stand_in(float(other), float(other))
    return alone and name in ("__eq__", "__ne__")


def _decision(base: Any, name: str) -> Callable[..., Any]:
    ask = getattr(base, name)

    def method(self: Any, *others: Any) -> Any:
        answer = ask(self, *map(_untraced, others))
        if answer is not NotImplemented:
            for each in (self, *others):
                if isinstance(each, _Traced):
                    self.tape.note_decision(each.steps, name)
        return answer

    return method


def _define(kind: type, base: type) -> None:
    for name in _ARITHMETIC:
        setattr(kind, f"__{name}__", _arithmetic(name, reflected=False))
        setattr(kind, f"__r{name}__", _arithmetic(name, reflected=True))
    for name in _COMPARISONS:
        setattr(kind, name, _comparison(base, name))
    for name in _DECIDING:
        if hasattr(base, name):
            setattr(kind, name, _decision(base, name))


_define(TracedFloat, float)
_define(TracedInt, int)
