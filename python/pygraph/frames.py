"""Which frames of a stack are the program's, and not torch's or PyGraph's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from traceback import FrameSummary
from typing import NamedTuple

import torch

_PACKAGES = tuple(os.path.join(os.path.dirname(each), "") for each in (torch.__file__, __file__))
#: It has models, which are programs like any other.
_DEMO = os.path.join(_PACKAGES[1], "demo", "")

_FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+)[^\n]*(?:\n[ \t]+(?P<code>\S[^\n]*))?'
)


class SourceLine(NamedTuple):
    """A line of a program. As text "file.py:12"."""

    file: str
    line: int | None
    code: str | None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def is_programs(file: str) -> bool:
    """Whether a frame's file is of the program. Generated code ("<string>") is not."""
    return file.startswith(_DEMO) or not file.startswith(("<", *_PACKAGES))


def of_frames(frames: Iterable[FrameSummary]) -> SourceLine | None:
    """The innermost frame of the program."""
    for frame in reversed(list(frames)):
        if is_programs(frame.filename):
            return SourceLine(frame.filename, frame.lineno, frame.line or None)
    return None


def of_text(trace: str | None) -> SourceLine | None:
    """The same, from a trace that was stored as text (an FX node's, or an exception's message)."""
    for match in reversed(list(_FRAME.finditer(trace or ""))):
        if is_programs(match["file"]):
            return SourceLine(match["file"], int(match["line"]), match["code"])
    return None
