"""Running a program on the call that it was linked for, for who looks at how it runs."""

from __future__ import annotations

from collections.abc import Callable

from pygraph import _engine
from pygraph.capturing.reference import Reference

Make = Callable[[_engine.Linked], _engine.TensorProgram]
"""Instantiates what was linked, for the arguments and results of that call."""


def run(program: _engine.TensorProgram, reference: Reference) -> None:
    """From the state that the call found: a second run may not be possible from where the first
    has left it (a position moves on)."""
    reference.rewind()
    program.run(list(reference.arguments))
