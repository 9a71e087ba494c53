"""Functions of torch's that are replaced, for the life of the process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def surround(place: tuple[Any, str], around: Callable[..., Any]) -> None:
    """Calls of torch's function at that place become `around(original, …)`, from now on. Once."""
    owner, name = place
    original = getattr(owner, name)
    if getattr(original, "_pygraph_hook", False):
        return

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    replacement._pygraph_hook = True  # type: ignore[attr-defined]
    setattr(owner, name, replacement)
