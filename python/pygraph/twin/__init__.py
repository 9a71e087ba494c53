"""The CPU twin from Python: the engine at work on a machine without a GPU."""

from __future__ import annotations

from pygraph import _engine


def demonstrate() -> _engine.Demonstration:
    """Captures a small network on the twin, links, proves and moves it; `lines` tell the story."""
    return _engine.demonstrate_twin()
