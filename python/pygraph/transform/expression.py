"""Numbers that follow from numbers by a few operations, which calls do (src/torch/formula.h).

In fp64 only, and what generated code computes with the same bits: sums, differences, products,
quotients and roots are rounded as IEEE 754 says, and a power is libm's, but for those that
compilers replace, whatever they are asked: the square and the reciprocal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import torch

from pygraph._engine import Formula
from pygraph.transform import reading

aten = torch.ops.aten
_Operation = Formula.Operation
_OPERATIONS = {
    aten.add.Tensor: _Operation.ADD,
    aten.sub.Tensor: _Operation.SUBTRACT,
    aten.mul.Tensor: _Operation.MULTIPLY,
    aten.div.Tensor: _Operation.DIVIDE,
    aten.true_divide.Tensor: _Operation.DIVIDE,
    aten.pow.Tensor_Tensor: _Operation.POWER,
}
_POWERS = aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar
_MOST_STEPS = 64  # less than a microsecond; a value that is used twice is computed twice

#: An argument of the graph, a constant, or an operation.
_Step = Any


@dataclasses.dataclass(frozen=True)
class Expression:
    """In the order in which a machine with a stack takes its steps."""

    steps: tuple[_Step, ...]

    @property
    def arguments(self) -> Collection[Any]:
        return dict.fromkeys(each for each in self.steps if isinstance(each, torch.fx.Node))

    def of(self, numbers: Mapping[Any, int]) -> Formula:
        """The formula, where arguments have these numbers."""
        return Formula([_step(each, numbers) for each in self.steps])


def _step(step: _Step, numbers: Mapping[Any, int]) -> Formula.Step:
    if isinstance(step, torch.fx.Node):
        return Formula.Step(_Operation.ARGUMENT, argument=numbers[step])
    if isinstance(step, float):
        return Formula.Step(_Operation.CONSTANT, constant=step)
    return Formula.Step(step)


def of_numbers(graph: torch.fx.Graph) -> dict[Any, Expression]:
    """What each node of a graph computes that is such a number."""
    found: dict[Any, Expression] = {}
    for node in graph.nodes:
        if _is_double(node):
            steps = [node] if node.op == "placeholder" else _computed(node, found)
            if steps is not None and len(steps) <= _MOST_STEPS and _depth(steps) <= Formula.DEEPEST:
                found[node] = Expression(tuple(steps))
    return found


def _computed(node: Any, found: Mapping[Any, Expression]) -> list[_Step] | None:
    operands = [steps for each in node.args if (steps := _operand(each, found)) is not None]
    if node.kwargs or len(operands) != len(node.args) or not 1 <= len(operands) <= 2:
        return None
    steps, *others = operands
    exponent = others[0] if node.target in _POWERS else None
    if exponent == [2.0]:
        return [*steps, *steps, _Operation.MULTIPLY]
    if exponent == [-1.0] or node.target == aten.reciprocal.default:
        return [1.0, *steps, _Operation.DIVIDE]
    if node.target == aten.neg.default:
        return [-1.0, *steps, _Operation.MULTIPLY]
    if node.target == aten.sqrt.default or (
        node.target == aten.pow.Tensor_Scalar and exponent == [0.5]
    ):
        return [*steps, _Operation.SQUARE_ROOT]
    operation = _OPERATIONS.get(node.target)
    return [*steps, *others[0], operation] if operation is not None else None


def _operand(value: Any, found: Mapping[Any, Expression]) -> list[_Step] | None:
    constant = _constant(value)
    if constant is not None:
        return [constant]
    return list(found[value].steps) if value in found else None


def _constant(value: Any) -> float | None:
    """A number that a graph has, as fp64 has it."""
    if isinstance(value, torch.fx.Node):
        filled = value.target is aten.full.default and not value.args[0]
        value = value.args[1] if filled else None
    exact = type(value) is float or (type(value) is int and float(value) == value)
    return float(value) if exact else None


def _is_double(node: Any) -> bool:
    made = reading.value(node)
    return isinstance(made, torch.Tensor) and made.dtype == torch.float64 and not made.dim()


def _depth(steps: list[_Step]) -> int:
    """How many values wait at a time, at most."""
    depth = most = 0
    for each in steps:
        if isinstance(each, _Operation):
            depth -= each != _Operation.SQUARE_ROOT
        else:
            depth += 1
        most = max(most, depth)
    return most
