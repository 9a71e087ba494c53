"""Tables and texts in Markdown."""

from __future__ import annotations

from benchmarks.harness.table import Table

SPECIAL = str.maketrans({each: f"\\{each}" for each in "\\|*`[]"} | {"<": "&lt;", ">": "&gt;"})


def escape(text: str) -> str:
    """On one line, with nothing in it that Markdown would take for more than text."""
    return " ".join(text.split()).translate(SPECIAL)


def table(given: Table) -> str:
    marks = ["---" if each.is_text else "---:" for each in given.columns]
    head, *rows = [[*map(escape, cells)] for cells in (given.head, *given.rows, *given.foot)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, marks, *rows))
