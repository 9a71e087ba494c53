"""What happened outside of any single graph, for the report."""

from __future__ import annotations

_MOST = 1000
events: list[str] = []


def note(event: str) -> None:
    """Notes something that concerns the process rather than one graph; once per text."""
    if event not in events and len(events) < _MOST:
        events.append(event)
