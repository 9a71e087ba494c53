"""Did pygraph get slower? Two records of `./run demo`, compared (harness/regress.py).

    ./run regress OLD.json NEW.json

A model got slower when a ratio to an incumbent grew by more than a fixed limit. The exit status is
1 if anything got slower or lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.first_light.record import Record
from benchmarks.harness.record import NotARecord, by_mode, read_json, restored
from benchmarks.harness.regress import METRICS, Compared, Kind, Rule, compared, run

LIMIT = 0.05


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a file that `./run demo` wrote; NotARecord for any other."""
    needed = "needed is the JSON file that `./run demo` writes on a GPU"
    content = read_json(path, needed)
    records = content.get("records") if isinstance(content, dict) else None
    if not isinstance(records, list):
        raise NotARecord(f'{path}: found no list "records"; {needed}')
    for record in records:
        if not isinstance(record, dict) or not {"workload", "mode"} <= record.keys():
            raise NotARecord(f'{path}: found a record without "workload" and "mode"; {needed}')
    return records


def compare(
    old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]], rule: Rule | None = None
) -> list[Compared]:
    """A row for every model of either record, in the old one's order."""
    before, after = (
        by_mode(restored(Record, {"batch": 0, **each}) for each in records)
        for records in (old, new)
    )
    return [
        Compared(name, lost=("not in the new record",))
        if name not in after
        else compared(name, before.get(name), after[name], rule or Rule(limit=LIMIT))
        for name in dict.fromkeys((*before, *after))
    ]


KIND = Kind("model", "slower or lost", read, compare)


def main(
    old: Annotated[Path, typer.Argument(help="The record to compare with.")],
    new: Annotated[Path, typer.Argument(help="The record that must not be slower.")],
    metric: Annotated[str, typer.Option(help=f"One of {', '.join(METRICS)}.")] = METRICS[0],
    limit: Annotated[float, typer.Option(min=0.0, help="Growth of a ratio that is noise.")] = LIMIT,
) -> None:
    """Compare two records of `./run demo` by ratios within each run."""
    from pygraph.demo.output import terminal

    if metric not in METRICS:
        raise typer.BadParameter(f"no metric {metric!r}: there are {', '.join(METRICS)}")
    try:
        status = run((old, new), KIND, Rule(metric, limit), terminal())
    except NotARecord as error:
        typer.echo(f"regress: {error}", err=True)
        status = 2
    raise typer.Exit(status)
