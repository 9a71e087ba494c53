"""Figures of one model's records by mode: None where that mode was not run, or is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Modes = Mapping[str, Any]
"""{mode: record}, of any benchmark."""

NOT_CACHED = ("fxgraph_cache_miss", "fxgraph_cache_bypass", "autograd_cache_miss")
"""Inductor's and AOTAutograd's counters of graphs that their caches on disk did not have; in a
record's `extra`."""


def right(record: Any) -> bool:
    """Whether its figures count. A floor that is a bound is none of the results that are judged;
    records of memory have no verdict."""
    return bool(getattr(record, "correct", True) or getattr(record, "is_bound", False))


def figure(modes: Modes, mode: str, field: str) -> Any:
    found = modes.get(mode)
    return getattr(found, field) if found is not None and right(found) else None


def over(modes: Modes, mode: str, reference: str, field: str = "latency_us") -> float | None:
    """How many times one mode's figure is another's."""
    a, b = figure(modes, mode, field), figure(modes, reference, field)
    return a / b if a and b else None
