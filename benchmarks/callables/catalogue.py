"""All rows, in the order in which they are measured and shown."""

from __future__ import annotations

from benchmarks.callables import (
    workloads_blog,
    workloads_control,
    workloads_decoding,
    workloads_training,
)
from benchmarks.callables.program import Row
from pygraph.demo.models import chosen


def _all(tiny: bool) -> dict[str, Row]:
    families = (workloads_blog, workloads_control, workloads_training, workloads_decoding)
    return {row.name: row for family in families for row in family.rows(tiny)}


ROWS, TINY = _all(tiny=False), _all(tiny=True)


def find(names: str | None, tiny: bool = False) -> list[Row]:
    """The rows of a list with commas; KeyError names those that there are."""
    there = TINY if tiny else ROWS
    return [there[name] for name in chosen(names, tuple(there), "row")]
