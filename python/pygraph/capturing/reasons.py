"""Why a capture failed, in words: the operator and the user's source line behind an exception.

Torch tells its errors apart by their texts alone, so patterns read those. Ours have types.
"""

from __future__ import annotations

import re
import traceback

from pygraph.capturing.device import CaptureFailed
from pygraph.capturing.space import PhantomMemoryShort
from pygraph.frames import of_frames

_OUTSIDE = re.compile("out of bounds for storage")
_KNOWN = (
    (
        _OUTSIDE,
        "it views memory outside of its arguments, where other calls need not have any",
    ),
    (
        re.compile(
            r"operation (not permitted|failed due to).*captur|Cannot copy between .* graph capture",
            re.I | re.S,
        ),
        "an operation that CUDA does not allow during a capture (a synchronisation, a copy to the "
        "CPU, a pageable host copy or a legacy-stream use)",
    ),
    (re.compile(r"STREAM_CAPTURE_\w+"), "the driver invalidated the capture"),
    (
        re.compile(r"generator.*captur|captur.*generator|not in capture mode", re.I | re.S),
        "random numbers are drawn on the GPU",
    ),
)


def explain(error: BaseException, operator: str | None) -> tuple[str, str | None, str | None]:
    """(reason, operator, source) for an exception raised while capturing."""
    error = _first_of(error)
    if isinstance(error, CaptureFailed):
        return str(error), error.operator or operator, error.source or source_of(error)
    text = str(error).strip().splitlines()
    first = text[0] if text else type(error).__name__
    if isinstance(error, PhantomMemoryShort):
        return f"phantom memory ran out: {first}", operator, source_of(error)
    for pattern, reason in _KNOWN:
        if pattern.search(str(error)):
            return f"{reason}: {first}", operator, source_of(error)
    return f"{type(error).__name__}: {first}", operator, source_of(error)


def _first_of(error: BaseException) -> BaseException:
    """What went wrong first: operators in a program's own `finally` find the capture ended."""
    while (
        isinstance(error, CaptureFailed)
        and error.__context__ is not None
        and not error.__suppress_context__
    ):
        error = error.__context__
    return error


def views_outside(error: BaseException) -> bool:
    """Whether torch refused a view of memory that a tensor does not have."""
    return _OUTSIDE.search(str(error)) is not None


def source_of(error: BaseException) -> str | None:
    """The innermost frame of the program that the exception passed through."""
    place = of_frames(traceback.extract_tb(error.__traceback__))
    return None if place is None else str(place)
