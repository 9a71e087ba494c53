"""What selection is to reach: PyGraph is never slower than what a selector that is never wrong
would choose, but for the noise of the measurement, and in the median not slower than default."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.harness.figures import Modes, figure, over
from benchmarks.harness.measure import geomean
from benchmarks.harness.shown import ratio
from benchmarks.harness.targets import Target, judged
from benchmarks.selection.modes import AGAIN, ONCE, OWN, STATIC

Rows = Mapping[str, Modes]
"""By scenario."""

OVER_BEST = 1.02
"""pygraph's cost in times of the best's, of each scenario."""
OVER_DEFAULT = 1.0
"""pygraph's cost in times of default's, the median of all scenarios."""
FINE, NOISE, MISSED = "fine", "within noise", "missed"


def cost(modes: Modes, mode: str) -> float | None:
    found: float | None = figure(modes, mode, "cost_us")
    return found


def best(modes: Modes) -> str | None:
    """The mode of least cost that a selector could choose."""
    known = {mode: found for mode in STATIC if (found := cost(modes, mode)) is not None}
    return min(known, key=known.__getitem__, default=None)


def over_best(modes: Modes) -> float | None:
    name = best(modes)
    return None if name is None else over(modes, OWN, name, "cost_us")


def over_default(modes: Modes) -> float | None:
    return over(modes, OWN, "default", "cost_us")


def apart(modes: Modes) -> float | None:
    """How far two measurements of one choice are apart, relative."""
    found = over(modes, ONCE, AGAIN, "cost_us")
    return None if found is None else abs(found - 1)


def noise(modes: Modes) -> float | None:
    """How far pygraph's cost over the best's may be off."""
    name = best(modes)
    if name is None or cost(modes, OWN) is None:
        return None
    errors = [
        figure(modes, mode, "cost_error_us") / figure(modes, mode, "cost_us")
        for mode in (OWN, name)
    ]
    return max(apart(modes) or 0.0, float(2 * sum(each**2 for each in errors) ** 0.5))


def grade(modes: Modes) -> str | None:
    found, off = over_best(modes), noise(modes)
    if found is None or off is None:
        return None
    if found <= OVER_BEST:
        return FINE
    return NOISE if found <= OVER_BEST + off else MISSED


def ratios(modes: Modes) -> dict[str, Any]:
    return {
        "best": best(modes),
        "pygraph/best": over_best(modes),
        "pygraph/default": over_default(modes),
        "noise": noise(modes),
        "grade": grade(modes),
    }


def summary(rows: Rows) -> dict[str, Any]:
    found = {}
    for name, find in (("pygraph/best", over_best), ("pygraph/default", over_default)):
        known = [value for modes in rows.values() if (value := find(modes)) is not None]
        found[name] = {
            "median": statistics.median(known) if known else None,
            "geomean": geomean(known),
            "worst": max(known, default=None),
            "scenarios": len(known),
        }
    return found


def graded(rows: Rows, wanted: str) -> dict[str, float]:
    """pygraph's cost over the best's where it has this grade, the farthest first."""
    found = {
        name: over_best(modes) or 0.0 for name, modes in rows.items() if grade(modes) == wanted
    }
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def targets(rows: Rows) -> list[Target]:
    found = summary(rows)
    missed, near = graded(rows, MISSED), graded(rows, NOISE)
    named = [f"{name} {value:.3f}" for name, value in missed.items()]
    unclear = [f"{name} {value:.3f}" for name, value in near.items()]
    detail = [f"missed by {len(named)}: {', '.join(named)}"] if named else []
    detail += [f"within the noise: {', '.join(unclear)}"] if unclear else []
    worst, median = found["pygraph/best"]["worst"], found["pygraph/default"]["median"]
    met = None if worst is None else not missed
    many = found["pygraph/best"]["scenarios"]
    return [
        Target(
            f"each of {many} scenarios",
            "pygraph's cost is that of the best choice, but for the noise",
            met,
            worst,
            OVER_BEST,
            "; ".join(detail),
        ),
        judged(
            "in the median",
            "pygraph costs no more than default",
            median,
            OVER_DEFAULT,
            f"of {found['pygraph/default']['scenarios']} scenarios; mean "
            f"{ratio(found['pygraph/default']['geomean'])}",
        ),
    ]
