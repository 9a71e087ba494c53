"""Draws one program, step by step, with the program running alongside.

Every step is tried eagerly in several environments at once (each leading size, inputs that share
memory and inputs that do not) and kept if it works in all of them. So the operations need no rules
about shapes, and what torch calls undefined is excluded where it is decided: by looking at the
memory that a write touches.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from hypothesis import strategies as st

from .programs import Call, Namespace, Program, make_inputs, make_module

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[Any]], Any]

MAXIMUM_ELEMENTS = 2048
MAXIMUM_RANK = 4


class Builder:
    """The program so far: its lines, and its values in every environment."""

    def __init__(self, draw: Draw, program: Program, calls: Sequence[Call]) -> None:
        self._draw = draw
        self.program = program
        self.lines: list[str] = []
        self.names: list[str] = [f"x{i}" for i in range(len(program.inputs))]
        self.operations: list[str] = []
        self.environments: list[Namespace] = []
        for call in calls:
            module = make_module(program, "cpu")
            space: Namespace = {
                "torch": torch,
                "F": torch.nn.functional,
                "DEVICE": "cpu",
                "self": module,
                "n": program.integer,
            }
            space.update(zip(program.arguments, make_inputs(program, call, "cpu")[1], strict=True))
            self.environments.append(space)
        for parameter in program.parameters:
            self.names.append(f"self.{parameter.name}")
        self._made = 0

    # ------------------------------------------------------------------ draws

    def one_of(self, choices: Sequence[T]) -> T:
        chosen: T = self._draw(st.sampled_from(choices))
        return chosen

    def integer(self, low: int, high: int) -> int:
        drawn: int = self._draw(st.integers(low, high))
        return drawn

    def flag(self) -> bool:
        drawn: bool = self._draw(st.booleans())
        return drawn

    # ----------------------------------------------------------------- values

    def value(self, name: str) -> torch.Tensor:
        """The value of an expression in the first environment."""
        found = eval(name, self.environments[0])
        assert isinstance(found, torch.Tensor)
        return found

    def pick(self, accept: Callable[[torch.Tensor], bool] = lambda _: True) -> str | None:
        """A value's name, the latest ones more often."""
        fit = [name for name in self.names if accept(self.value(name))]
        if not fit:
            return None
        if len(fit) > 3 and self.flag():
            fit = fit[-3:]
        return self.one_of(fit)

    def dimension(self, name: str) -> int:
        """A dimension, counted from either end."""
        rank = self.value(name).dim()
        return self.integer(-rank, rank - 1) if rank else 0

    # ------------------------------------------------------------------ steps

    def add(self, operation: str, expression: str) -> bool:
        """Appends `v = expression` if it is a tensor of reasonable size everywhere."""
        try:
            code = compile(expression, "step", "eval")
            values = [self._evaluate(code, space) for space in self.environments]
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            return False
        if not all(
            isinstance(v, torch.Tensor)
            and v.numel() <= MAXIMUM_ELEMENTS
            and v.dim() <= MAXIMUM_RANK
            and v.dim() == values[0].dim()
            and v.dtype == values[0].dtype
            for v in values
        ):
            return False
        name = f"v{self._made}"
        self._made += 1
        for space, value in zip(self.environments, values, strict=True):
            space[name] = value
        self.lines.append(f"{name} = {expression}")
        self.names.append(name)
        self.operations.append(operation)
        return True

    def write(self, operation: str, target: str, call: str, operands: Sequence[str]) -> bool:
        """Appends `target.call`, a write through any view, if what it does is defined."""
        try:
            for space in self.environments:
                tensor = self._evaluate(target, space)
                sources = [self._evaluate(operand, space) for operand in operands]
                if not well_defined(tensor, sources):
                    return False
            statement = compile(f"{target}.{call}", "step", "eval")
            for space in self.environments:
                self._evaluate(statement, space)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            return False
        self.lines.append(f"{target}.{call}")
        self.operations.append(operation)
        return True

    def works(self, expression: str) -> bool:
        """Whether an expression can be evaluated everywhere (what is returned, for instance)."""
        try:
            for space in self.environments:
                self._evaluate(expression, space)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            return False
        return True

    @staticmethod
    def _evaluate(expression: Any, space: Namespace) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return eval(expression, space)


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may share memory. May say yes of a tensor whose elements do not."""
    dimensions = sorted(
        (stride, size)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if size > 1
    )
    reach = 0
    for stride, size in dimensions:
        if stride <= reach:
            return tensor.numel() > 0
        reach += stride * (size - 1)
    return False


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    if tensor.numel() == 0:
        return 0, 0
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def well_defined(target: torch.Tensor, sources: Sequence[Any]) -> bool:
    """Whether a write to `target` that reads `sources` has one meaning: no element is written
    twice, and what is read is the target itself, element by element, or other memory."""
    if overlaps_itself(target):
        return False
    low, high = _range(target)
    for source in sources:
        if not isinstance(source, torch.Tensor):
            continue
        first, last = _range(source)
        same = (
            source.data_ptr() == target.data_ptr()
            and source.shape == target.shape
            and source.stride() == target.stride()
        )
        if first < high and low < last and not same:
            return False
        if source.dtype.is_floating_point > target.dtype.is_floating_point:
            return False  # a float that an integer cannot hold
        if source.is_complex() and not target.is_complex():
            return False
    return True
