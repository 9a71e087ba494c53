"""What a report is made of, whatever it is written as, and how numbers are shown in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

NOTHING = "-"
BOUND = "†"
"""Behind figures that rest on a floor that is a sum of kernel times."""

RANDOM = "‡"
"""Behind workloads that draw random numbers."""

Cells = tuple[str, ...]


@dataclass(frozen=True)
class Table:
    head: Cells
    rows: Sequence[Cells]
    text: tuple[int, ...] = (0,)
    """Columns of words, which are aligned to the left."""
    foot: Sequence[Cells] = ()
    """Means and sums."""


@dataclass(frozen=True)
class Column:
    """How a column is made of what the rows are made of, whatever that is."""

    head: str
    show: Callable[[Any], str]
    feet: Sequence[str] = ()
    """Below it, one per line of the foot."""
    is_text: bool = False


def words(head: str, show: Callable[[Any], str]) -> Column:
    return Column(head, show, is_text=True)


def made(rows: Iterable[Any], columns: Sequence[Column], *feet: str) -> Table:
    """`feet` are the names of the foot's lines."""
    below = [[*each.feet, *[""] * len(feet)] for each in columns[1:]]
    return Table(
        tuple(each.head for each in columns),
        [tuple(each.show(row) for each in columns) for row in rows],
        tuple(place for place, each in enumerate(columns) if each.is_text),
        [(name, *(each[line] for each in below)) for line, name in enumerate(feet)],
    )


@dataclass(frozen=True)
class Items:
    lines: Sequence[str]


@dataclass(frozen=True)
class Chart:
    """One of charts.CHARTS."""

    name: str


Block = str | Table | Items | Chart


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]


def shortened(text: str, most: int = 300) -> str:
    """On one line; errors can be pages long."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 4].rstrip()} ..."


def microseconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def ratio(value: float | None, mark: str = "") -> str:
    return NOTHING if value is None else f"{value:.2f}{mark}"


def percent(value: float | None, digits: int = 1) -> str:
    """Never 100% where something is missing, and never 0% where something is there."""
    if value is None:
        return NOTHING
    shown = f"{value:.{digits}%}"
    if value < 1 and shown == f"{1:.{digits}%}":
        return f">{1 - 10 ** -(digits + 2):.{digits}%}"
    if value > 0 and shown == f"{0:.{digits}%}":
        return f"<{10 ** -(digits + 2):.{digits}%}"
    return shown


def count(value: float | None) -> str:
    """Whole numbers; a mean over iterations that is none keeps a digit."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value - round(value)) < 0.05 else f"{value:,.1f}"


def amount(value: float | None) -> str:
    """Bytes, in decimal units."""
    if value is None:
        return NOTHING
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e4, "kB")):
        if value >= size:
            return f"{value / (1e3 if unit == 'kB' else size):,.{2 if unit == 'GB' else 1}f} {unit}"
    return f"{count(value)} B"


def mebibytes(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}" if value >= 10 else f"{value:,.1f}"


def seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.1f}"


def error_size(value: float | None) -> str:
    return NOTHING if value is None else "0" if value == 0 else f"{value:.1e}"


def yes(value: bool | None) -> str:
    return {True: "yes", False: "no"}.get(value, NOTHING) if value is not None else NOTHING
