"""From torch's stack traces to the line of the program that is to blame."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from traceback import FrameSummary
from typing import Any

from pygraph.frames import is_programs

_FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+)[^\n]*(?:\n[ \t]+(?P<code>\S[^\n]*))?'
)

Line = tuple[str | None, str | None]
"""("file.py:123", the text of that line); both None where unknown."""


def short(file: str, line: int | str | None) -> str:
    """A place without the folders of this machine."""
    return f"{Path(file).name}:{line}"


def of_frames(frames: Iterable[FrameSummary]) -> Line:
    """The innermost frame of the program."""
    own = [frame for frame in frames if is_programs(frame.filename)]
    if not own:
        return None, None
    frame = own[-1]
    return short(frame.filename, frame.lineno), frame.line or None


def of_text(trace: str | None) -> Line:
    """The same, from a trace that was stored as text (an FX node's, or an exception's message)."""
    own = [match for match in _FRAME.finditer(trace or "") if is_programs(match["file"])]
    if not own:
        return None, None
    return short(own[-1]["file"], own[-1]["line"]), own[-1]["code"]


def of_node(node: Any) -> Line:
    return of_text(node.meta.get("stack_trace"))
