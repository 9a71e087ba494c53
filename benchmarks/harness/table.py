"""What the tables of all benchmarks share."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from benchmarks.harness.targets import Target

GOOD, BAD = 1.02, 0.98
"""A speed-up that is shown green from here, and red up to there; between is noise."""


def target_table(found: Sequence[Target]) -> Table:
    """Of any benchmark."""
    table = Table(title="targets", title_justify="left")
    for name in ("target", "value", "limit", "met", "detail"):
        table.add_column(name, justify="right" if name in ("value", "limit") else "left")
    styles = {True: ("yes", "green"), False: ("NO", "bold red"), None: ("not measured", "yellow")}
    for target in found:
        numbers = [
            "" if value is None else f"{value:,.3f}" for value in (target.value, target.limit)
        ]
        text, style = styles[target.met]
        table.add_row(Text(target.name), *numbers, Text(text, style=style), Text(target.detail))
    return table
