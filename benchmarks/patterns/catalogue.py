"""All patterns, by theme."""

from __future__ import annotations

from benchmarks.patterns import (
    control,
    host_tensors,
    host_values,
    models,
    mutation,
    results,
    sizes,
)
from benchmarks.patterns.pattern import Pattern
from pygraph.demo.models import chosen

THEMES = {
    "numbers of the host": host_values.PATTERNS,
    "tensors on the CPU": host_tensors.PATTERNS,
    "results on the CPU": results.PATTERNS,
    "sizes by values": sizes.PATTERNS,
    "control": control.PATTERNS,
    "writing": mutation.PATTERNS,
    "layers and operators": models.PATTERNS,
}
PATTERNS: dict[str, Pattern] = {each.name: each for them in THEMES.values() for each in them}
THEME_OF = {each.name: theme for theme, them in THEMES.items() for each in them}


def find(names: str | None = None) -> list[Pattern]:
    """Those of a list with commas; KeyError where one is unknown."""
    return [PATTERNS[name] for name in chosen(names, list(PATTERNS), "pattern")]
