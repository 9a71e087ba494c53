"""On which thread a mode's backwards run, where several modes train in one process: PyGraph keeps
them on the calling thread (runtime/calling_thread.py), and no other mode shall gain from that."""

from __future__ import annotations

from collections.abc import Callable

import torch


def backward_thread(mode: str, also: Callable[[], None] | None = None) -> Callable[[], None]:
    """What to call in front of each step of a mode: torch's default holds in it, and what PyGraph
    made of that in its own. `also` is called, too."""
    from pygraph.runtime import calling_thread

    ours = mode.startswith("pygraph")

    def before() -> None:
        torch._C._set_multithreading_enabled(True)
        if ours:
            calling_thread.resume()
        if also is not None:
            also()

    return before
