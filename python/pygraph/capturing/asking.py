"""What a callable is told that asks torch whether it is captured.

A callable that asks may do otherwise while it is captured: transformers builds attention masks then
that it leaves out in other calls, and other kernels round differently. Captured and replayed, it
must compute what it computes in other calls. So a callable that asked and whose proof failed is
captured once more and told no. It is told the truth first, as who asks may have to leave out what
would harm a capture.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator

from pygraph.torch_private import cuda as private


@dataclasses.dataclass
class Question:
    asked: bool = False  #: `torch.cuda.is_current_stream_capturing()` was called


@contextlib.contextmanager
def answered(told: bool) -> Iterator[Question]:
    """While on, torch tells this thread that its stream is captured, if `told`, or is not. Captures
    exclude each other (device.py), so nobody else replaces the same function meanwhile."""
    owner, name = private.answer_about_captures()
    original = getattr(owner, name)
    thread = threading.get_ident()
    question = Question()

    def answer() -> bool:
        if threading.get_ident() != thread:
            return bool(original())
        question.asked = True
        return told

    setattr(owner, name, answer)
    try:
        yield question
    finally:
        setattr(owner, name, original)
