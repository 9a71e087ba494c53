"""Requirements, each with what was measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

PEAK_LIMIT = 1.02
"""pygraph's peak memory over that of the default mode."""


@dataclass(frozen=True)
class Target:
    """One requirement. `met` is None where what it needs was not measured."""

    name: str
    requirement: str
    met: bool | None
    value: float | None = None
    limit: float | None = None
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def judged(
    name: str,
    requirement: str,
    value: float | None,
    limit: float,
    detail: str = "",
    *,
    least: bool = False,
    failed: bool = False,
    complete: bool = True,
    slack: float = 0.0,
) -> Target:
    """Met by a value of at most the limit, or at least. What failed beside it misses the target
    whatever the value; one that is not of everything that was asked for can miss it, not meet it.
    `slack`: relative, how far beyond its limit a figure still is that limit."""
    holds = value is not None and (
        value >= limit * (1 - slack) if least else value <= limit * (1 + slack)
    )
    missed = failed or (value is not None and not holds)
    met = False if missed else True if holds and complete else None
    return Target(name, requirement, met, value, limit, detail)
