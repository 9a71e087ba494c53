"""What a user has to know about the whole process, and not of each graph."""

from __future__ import annotations

import functools
import logging

log = logging.getLogger(__name__)


@functools.cache
def warn_once(text: str) -> None:
    """Logs a warning; once per process and text."""
    log.warning("PyGraph: %s", text)


def no_graphs(reason: str) -> None:
    """Warns that a program runs without CUDA graphs."""
    warn_once(f"a program runs without CUDA graphs: {reason}")
