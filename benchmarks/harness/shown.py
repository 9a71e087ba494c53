"""How figures are shown, in tables and in text: a dash where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NOTHING = "-"


def shortened(text: str, most: int = 300) -> str:
    """On one line; errors can be pages long."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 4].rstrip()} ..."


def _or_dash(show: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: NOTHING if value is None else show(value)


@_or_dash
def microseconds(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


@_or_dash
def ratio(value: float) -> str:
    return f"{value:.2f}"


@_or_dash
def percent(value: float) -> str:
    """Never 100% where something is missing, and never 0% where something is there."""
    text = f"{value:.1%}"
    if value < 1 and text == "100.0%":
        return ">99.9%"
    return "<0.1%" if value > 0 and text == "0.0%" else text


@_or_dash
def count(value: float) -> str:
    """Whole numbers; a mean over iterations that is none keeps a digit."""
    return f"{value:,.0f}" if abs(value - round(value)) < 0.05 else f"{value:,.1f}"


@_or_dash
def amount(value: float) -> str:
    """Bytes, in decimal units."""
    if value >= 1e9:
        return f"{value / 1e9:,.2f} GB"
    if value >= 1e6:
        return f"{value / 1e6:,.1f} MB"
    return f"{value / 1e3:,.1f} kB" if value >= 1e4 else f"{count(value)} B"


@_or_dash
def mebibytes(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:,.1f}"


@_or_dash
def seconds(value: float) -> str:
    return f"{value:,.1f}"


@_or_dash
def error_size(value: float) -> str:
    return f"{value:.1e}" if value else "0"


@_or_dash
def number(value: float) -> str:
    """Of any unit."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}".rstrip("0").rstrip(".")


@_or_dash
def yes(value: bool) -> str:
    return "yes" if value else "no"
