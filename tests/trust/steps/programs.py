"""Random whole steps as data: the state around a step, its body, its calls, and what happens in
between.

Everything is lines of Python. `$name` in them is a piece of state, which is an attribute of an
object, a variable of the function around the step, or a global, as `holder` says. A program prints
as it runs, and its repr evaluates to itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import linecache
import re
import textwrap
from collections.abc import Callable
from typing import Any

import torch

from ..programs import Call, fill

#: Of where a program keeps its state.
HOLDERS = ("closure", "object", "globals", "module", "callable object", "partial")
_IN_OBJECTS = ("object", "module", "callable object")
_NAME = re.compile(r"\$(\w+)")
_ASSIGNED = re.compile(r"\$(\w+)(?:, \$(\w+))? [-+*/]?= ")
_PRELUDE = """\
import copy, dataclasses, functools, gc, itertools, random
import torch
from torch import nn
from torch.nn import functional as F
from trust.steps.modules import *
"""


@dataclasses.dataclass(frozen=True)
class StepCall:
    """One call: its arguments as they are written, or the earlier call whose very arguments it
    gets; what happens in front of it; the context that it runs in; what is done with `result`;
    whether the caller keeps the results and gradients."""

    arguments: str
    again: int | None = None
    before: tuple[str, ...] = ()
    under: str = ""
    behind: tuple[str, ...] = ()
    kept: bool = False


@dataclasses.dataclass(frozen=True)
class WholeStep:
    holder: str
    state: tuple[tuple[str, str], ...]  #: names, and the expressions that they begin with
    setup: tuple[str, ...]  #: what follows these
    signature: str
    body: tuple[str, ...]
    calls: tuple[StepCall, ...]
    features: tuple[str, ...] = ()  #: for the histogram

    def source(self) -> str:
        """Defines make(), which returns the step, a function that returns all state, and those
        that run between calls."""
        between = self._between()
        names = [name for name, _ in self.state]
        everything = f"return dict({', '.join(f'{name}=${name}' for name in names)})"
        setup = [*(f"${name} = {value}" for name, value in self.state), *self.setup]
        step = {"module": "forward", "callable object": "__call__"}.get(self.holder, "step")
        functions = {
            step: (self.signature, self.body),
            "everything": ("", (everything,)),
            **between,
        }
        if self.holder in _IN_OBJECTS:
            text = self._in_a_class(step, setup, functions)
        elif self.holder == "globals":
            text = self._at_the_top(setup, functions)
        else:
            text = self._in_a_function(setup, functions)
        return f"{_PRELUDE}\n{text}"

    def _between(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        found: dict[str, tuple[str, tuple[str, ...]]] = {}
        for number, call in enumerate(self.calls):
            if call.before:
                found[f"before_{number}"] = ("", call.before)
            if call.behind:
                found[f"behind_{number}"] = ("result", call.behind)
        return found

    def _in_a_class(self, step: str, setup: list[str], functions: dict[str, Any]) -> str:
        module = self.holder == "module"
        begin = ["super().__init__()"] if module else []
        methods = [_function("__init__", "self", [*begin, *setup], "self.", "")]
        for name, (signature, body) in functions.items():
            given = f"self, {signature}" if signature else "self"
            methods.append(_function(name, given, body, "self.", ""))
        base = "(nn.Module)" if module else ""
        called = "program" if step != "step" else "program.step"
        return (
            f"class Whole{base}:\n"
            + textwrap.indent("\n".join(methods), "    ")
            + "\ndef make():\n    program = Whole()\n"
            + textwrap.indent(_returns(called, functions, "program."), "    ")
        )

    def _at_the_top(self, setup: list[str], functions: dict[str, Any]) -> str:
        made = [_function(name, *each, "", "global") for name, each in functions.items()]
        lines = [_NAME.sub(r"\1", line) for line in setup]
        end = textwrap.indent(_returns("step", functions, ""), "    ")
        return "\n".join([*lines, *made, "def make():", end])

    def _in_a_function(self, setup: list[str], functions: dict[str, Any]) -> str:
        made = [_function(name, *each, "", "nonlocal") for name, each in functions.items()]
        lines = [_NAME.sub(r"\1", line) for line in setup]
        step = "functools.partial(step)" if self.holder == "partial" else "step"
        inner = "\n".join([*lines, *made, _returns(step, functions, "")])
        return "def make():\n" + textwrap.indent(inner, "    ")


def _function(name: str, signature: str, body: Any, prefix: str, declare: str) -> str:
    """A function whose state is attributes behind `prefix`, or variables that are declared."""
    lines = list(body)
    if declare:
        assigned = {each for found in _ASSIGNED.findall("\n".join(lines)) for each in found if each}
        if assigned:
            lines.insert(0, f"{declare} {', '.join(sorted(assigned))}")
    lines = [_NAME.sub(rf"{prefix}\1", line) for line in lines] or ["pass"]
    return f"def {name}({signature}):\n" + textwrap.indent("\n".join(lines), "    ")


def _returns(step: str, functions: dict[str, Any], prefix: str) -> str:
    between = [name for name in functions if name.startswith(("before_", "behind_"))]
    table = ", ".join(f"{name!r}: {prefix}{name}" for name in between)
    return f"return {step}, {prefix}everything, {{{table}}}"


class World:
    """A program that runs: one of the two that are compared."""

    def __init__(self, program: WholeStep, device: str) -> None:
        space = _space(program, device)
        self.step: Callable[..., Any]
        self.everything: Callable[[], dict[str, Any]]
        self.between: dict[str, Callable[..., None]]
        self.step, self.everything, self.between = space["make"]()
        #: It may have optimizers whose operators torch does not count while it is watched.
        self.counts_less_when_watched = device == "cuda" or any(
            kind in made for _, made in program.state for kind in ("foreach=True", "fused=True")
        )
        self._space = space
        self._again = {call.again for call in program.calls}
        self._arguments: list[Any] = []  #: those that come again

    def arguments_of(self, call: StepCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Those of the next call."""
        if call.again is None:
            made = eval(f"given({call.arguments})", self._space)
        else:
            made = self._arguments[call.again]
        self._arguments.append(made if len(self._arguments) in self._again else None)
        return made

    @property
    def arguments_to_come(self) -> list[Any]:
        """Of earlier calls, those that may come again."""
        return [each for each in self._arguments if each is not None]

    def context(self, call: StepCall) -> Any:
        return eval(call.under, self._space) if call.under else contextlib.nullcontext()


_MADE = 0


def _space(program: WholeStep, device: str) -> dict[str, Any]:
    """The variables of the module that a program is."""
    global _MADE
    _MADE += 1
    name = f"random_step_{_MADE}"
    source = program.source()
    file = f"{name}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    linecache.cache.pop(f"random_step_{_MADE - 64}.py", None)
    space: dict[str, Any] = {
        "__name__": name,
        "DEVICE": device,
        "t": functools.partial(_values, device),
        "given": _given,
    }
    torch.manual_seed(5)
    exec(compile(source, file, "exec"), space)
    return space


def _values(device: str, seed: int, *shape: int, dtype: str = "float32") -> torch.Tensor:
    return fill(dtype, shape, Call(0, 0), seed, device)


def _given(*positional: Any, **named: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return positional, named
