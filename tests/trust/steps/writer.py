"""Writes one whole step, part by part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[Any]], Any]

#: The parts of a body, in their order.
PARTS = ("begin", "forward", "loss", "backward", "gradients", "step", "update", "end")
#: Widths of what the model is given and gives.
WIDTH, CLASSES = 4, 3


@dataclasses.dataclass(frozen=True)
class Input:
    """One thing that the step is given: `make` writes the value that a call brings, of its seed,
    its batch size and its variant, 0 or 1."""

    name: str
    make: Callable[[int, int, int], str]


class Writer:
    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self.state: dict[str, str] = {}
        self.setup: list[str] = []
        self.parts: dict[str, list[str]] = {part: [] for part in PARTS}
        self.inputs: list[Input] = []
        self.features: list[str] = []
        self.results: list[str] = []  #: what may be returned
        self.optimizers: list[str] = []
        self.returned: str | None = None  #: the last line, if nothing else may stand there
        self.behind: tuple[str, ...] = ()  #: what the caller does with each result
        self.grads = True  #: the step calls a backward
        self.variants = False  #: some input differs between the two variants of a call

    # ------------------------------------------------------------------ draws

    def one_of(self, choices: Sequence[T]) -> T:
        chosen: T = self._draw(st.sampled_from(choices))
        return chosen

    def flag(self) -> bool:
        drawn: bool = self._draw(st.booleans())
        return drawn

    def once_in(self, number: int) -> bool:
        drawn: int = self._draw(st.integers(0, number - 1))
        return drawn == number - 1

    def integer(self, low: int, high: int) -> int:
        drawn: int = self._draw(st.integers(low, high))
        return drawn

    # ------------------------------------------------------------------ parts

    def has(self, feature: str) -> None:
        self.features.append(feature)

    def keep(self, name: str, value: str) -> str:
        """A piece of state."""
        self.state[name] = value
        return f"${name}"

    def add(self, part: str, *lines: str) -> None:
        self.parts[part] += lines

    def add_input(self, name: str, make: Callable[[int, int, int], str]) -> str:
        """Returns what the body calls it; the form of the arguments replaces that."""
        self.inputs.append(Input(name, make))
        return f"<{name}>"

    def body(self) -> list[str]:
        return [line for part in PARTS for line in self.parts[part]]


# ---------------------------------------------------------------- the forms that arguments come in

Values = Sequence[tuple[str, str]]
#: signature of the step, how its body reads an input of this name and number, how a call is written
Form = tuple[Callable[[Sequence[str]], str], Callable[[str, int], str], Callable[[Values], str]]


def _texts(values: Values) -> str:
    return ", ".join(value for _, value in values)


def _named(values: Values) -> str:
    return ", ".join(f"{name}={value}" for name, value in values)


def _dict(values: Values) -> str:
    return "{" + ", ".join(f"{name!r}: {value}" for name, value in values) + "}"


FORMS: dict[str, Form] = {
    "positional": (", ".join, lambda name, number: name, _texts),
    "keywords": (lambda names: f"*, {', '.join(names)}", lambda name, number: name, _named),
    "keywords in any order": (
        lambda names: "**batch",
        lambda name, number: f"batch[{name!r}]",
        lambda values: _named(values[::-1]),
    ),
    "dict": (lambda names: "batch", lambda name, number: f"batch[{name!r}]", _dict),
    "list": (
        lambda names: "batch",
        lambda name, number: f"batch[{number}]",
        lambda values: f"[{_texts(values)}]",
    ),
    "nested": (
        lambda names: "batch, *, more=None",
        lambda name, number: f"batch[1][{number}]" if number else "batch[2]['first']",
        lambda values: f"('batch', [None, {_texts(values[1:])}], {{'first': {values[0][1]}}})",
    ),
    "dataclass": (
        lambda names: "batch",
        lambda name, number: f"batch.inputs[{name!r}]",
        lambda values: f"Batch({_dict(values)})",
    ),
    "named tuple": (
        lambda names: "batch",
        lambda name, number: f"batch.second[{number - 1}]" if number else "batch.first",
        lambda values: f"Pair({values[0][1]}, [{_texts(values[1:])}])",
    ),
    "varargs": (lambda names: "*batch", lambda name, number: f"batch[{number}]", _texts),
}
