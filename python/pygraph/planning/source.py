"""From torch's stack traces to the line of the program that is to blame."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from traceback import FrameSummary
from typing import Any

from pygraph import frames

Line = tuple[str | None, str | None]
"""("file.py:123", the text of that line); both None where unknown."""


def of_frames(given: Iterable[FrameSummary]) -> Line:
    """The innermost frame of the program."""
    return _short(frames.of_frames(given))


def of_text(trace: str | None) -> Line:
    """The same, from a trace that was stored as text."""
    return _short(frames.of_text(trace))


def of_node(node: Any) -> Line:
    return of_text(node.meta.get("stack_trace"))


def _short(place: frames.SourceLine | None) -> Line:
    """A place without the folders of this machine."""
    return (None, None) if place is None else (f"{Path(place.file).name}:{place.line}", place.code)
