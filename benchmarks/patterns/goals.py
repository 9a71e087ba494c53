"""What PyGraph is to reach on the patterns: an obstacle costs next to nothing beside the program
that is written without it, and no mode of torch's is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.harness.figures import Modes, figure, over
from benchmarks.harness.measure import geomean
from benchmarks.patterns.catalogue import PATTERNS, THEME_OF
from benchmarks.patterns.pattern import LIMITS

GROUPS = {
    "host values": "numbers of the host",
    "host tensors": "tensors on the CPU",
    "results": "results on the CPU",
    "all": None,
}
"""Their themes; None: every one."""
BEST = 1.0
"""pygraph's latency in times of the best of torch's."""


def over_clean(modes: Modes) -> float | None:
    """How many times as long the obstacle makes a call."""
    return over(modes, "pygraph", "clean")


def over_best(modes: Modes) -> float | None:
    """pygraph's latency over the better one of torch's modes; below 1 pygraph is the fastest."""
    ours = figure(modes, "pygraph", "latency_us")
    theirs = [figure(modes, mode, "latency_us") for mode in ("default", "reduce-overhead")]
    known = [each for each in theirs if each]
    return ours / min(known) if ours and known else None


RATIOS = {"pygraph/clean": over_clean, "pygraph/best of torch": over_best}


def clean_limit(name: str) -> float:
    """A record may have patterns that are no more."""
    return PATTERNS[name].limit if name in PATTERNS else LIMITS[False]


LIMIT_OF: dict[str, Callable[[str], float]] = {
    "pygraph/clean": clean_limit,
    "pygraph/best of torch": lambda name: BEST,
}
"""By ratio, that of a pattern."""


def goals(rows: Mapping[str, Modes]) -> dict[str, dict[str, Any]]:
    """By group and ratio; only patterns that have the ratio are counted."""
    return {
        group: {ratio: _goal(ratio, _of(rows, theme)) for ratio in RATIOS}
        for group, theme in GROUPS.items()
    }


def _of(rows: Mapping[str, Modes], theme: str | None) -> dict[str, Modes]:
    return {
        name: modes for name, modes in rows.items() if theme is None or THEME_OF.get(name) == theme
    }


def _goal(ratio: str, rows: Mapping[str, Modes]) -> dict[str, Any]:
    found = {name: RATIOS[ratio](modes) for name, modes in rows.items()}
    known = {name: value for name, value in found.items() if value is not None}
    worst = max(known, key=known.__getitem__, default=None)
    exceeding = {name: v for name, v in known.items() if v > LIMIT_OF[ratio](name)}
    return {
        "patterns": len(known),
        "worst": known[worst] if worst is not None else None,
        "worst_pattern": worst,
        "geomean": geomean(list(known.values())),
        "exceeding": dict(sorted(exceeding.items(), key=lambda each: -each[1])),
    }
