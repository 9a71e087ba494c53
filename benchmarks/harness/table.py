"""Tables: each column is a head, and a function from what a row is made of to its text.

A terminal shows them as they are; the paper's report writes them as Markdown and as HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import rich.table
from rich.text import Text

from benchmarks.harness import figures, shown
from benchmarks.harness.shown import NOTHING
from benchmarks.harness.targets import Target

GOOD, BAD = 1.02, 0.98
"""A speed-up is good from here, and bad up to there; between is noise."""
STYLES = {"good": "green", "bad": "bold red", "open": "yellow", "none": "dim"}

Cells = tuple[str, ...]


class Cell(str):
    """A text that is also good, bad or open."""

    kind = ""


def marked(text: str, kind: str) -> str:
    cell = Cell(text)
    cell.kind = kind
    return cell


def graded(speed_up: float | None, text: str) -> str:
    """`text`: what is shown of this speed-up."""
    if speed_up is None:
        return text
    return marked(text, "good" if speed_up >= GOOD else "bad" if speed_up <= BAD else "")


def kind(cell: str) -> str:
    return "none" if cell == NOTHING else getattr(cell, "kind", "")


@dataclass(frozen=True)
class Column:
    head: str
    show: Callable[[Any], str]
    feet: Sequence[str] = ()
    """Below it, one per line of the foot."""
    is_text: bool = False
    """Words, which are aligned to the left."""


@dataclass(frozen=True)
class Table:
    columns: Sequence[Column]
    rows: Sequence[Cells]
    foot: Sequence[Cells] = ()
    """Means and sums."""
    title: str = ""

    @property
    def head(self) -> Cells:
        return tuple(each.head for each in self.columns)

    def __rich__(self) -> rich.table.Table:
        table = rich.table.Table(title=self.title, title_justify="left")
        for column in self.columns:
            table.add_column(column.head, justify="left" if column.is_text else "right")
        for row in (*self.rows, *self.foot):
            table.add_row(*(Text(cell, style=STYLES.get(kind(cell), "")) for cell in row))
        return table


def made(rows: Iterable[Any], columns: Sequence[Column], *feet: str, title: str = "") -> Table:
    """`feet` are the names of the foot's lines."""
    below = [[*each.feet, *[""] * len(feet)] for each in columns[1:]]
    return Table(
        columns,
        [tuple(each.show(row) for each in columns) for row in rows],
        [(name, *(each[line] for each in below)) for line, name in enumerate(feet)],
        title,
    )


def words(head: str, show: Callable[[Any], str]) -> Column:
    return Column(head, show, is_text=True)


MODEL = words("model", lambda row: row[0])
"""As the next two, of rows (name, {mode: record})."""
MODEL_AND_BATCH = words("model", lambda row: f"{row[0]} ({next(iter(row[1].values())).batch})")


def by_modes(modes: Iterable[str], show: Callable[[Any], str]) -> list[Column]:
    """A column per mode. What is wrong has failed."""

    def column(mode: str) -> Column:
        def cell(row: Any) -> str:
            found = row[1].get(mode)
            if found is None:
                return NOTHING
            return show(found) if figures.right(found) else marked("failed", "bad")

        return Column(mode, cell)

    return list(map(column, modes))


def target_table(found: Iterable[Target], with_requirement: bool = False) -> Table:
    """Of any benchmark."""
    columns = [
        words("target", lambda each: each.name),
        words("requirement", lambda each: each.requirement),
        Column("value", lambda each: shown.number(each.value)),
        Column("limit", lambda each: shown.number(each.limit)),
        words("met", _judged),
        words("detail", lambda each: each.detail),
    ]
    chosen = columns if with_requirement else [columns[0], *columns[2:]]
    return made(found, chosen, title="targets")


def _judged(target: Target) -> str:
    """Of what is not judged, that it has a value tells open from not measured."""
    if target.met is not None:
        return marked("yes", "good") if target.met else marked("NO", "bad")
    return marked("not measured" if target.value is None else "open", "open")
