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
