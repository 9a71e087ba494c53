"""Did pygraph get slower? Two records of `./run demo`, compared.

    ./run regress OLD.json NEW.json

Machines of one kind differ by up to 1.4x, so times of two runs say nothing. What is compared are
ratios within a run: pygraph's time over that of the same run's incumbents, torch.compile's default
and its reduce-overhead mode. A model got slower when such a ratio grew by more than the limit. The
ratio to the floor is shown beside them and does not count. Models that pygraph served before and
does not serve any more count as lost. The exit status is 1 if anything got slower or lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from benchmarks.harness.record import NotARecord, read_json

INCUMBENTS = ("default", "reduce-overhead")
REFERENCES = (*INCUMBENTS, "floor")
METRICS = ("latency_us", "host_us", "pipelined_us")
LIMIT = 0.05

Ratios = dict[str, float]


@dataclass(frozen=True)
class Row:
    """One model: pygraph's ratios to each reference, in the old and the new record."""

    model: str
    old: Ratios
    new: Ratios
    lost: str | None = None
    """What the new record lacks that the old one had, if anything."""

    def change(self, reference: str) -> float | None:
        """The new ratio over the old one; above 1 is slower."""
        old, new = self.old.get(reference), self.new.get(reference)
        return None if not old or new is None else new / old

    def slower(self, limit: float = LIMIT) -> list[str]:
        """The incumbents that pygraph lost ground to."""
        changes = {name: self.change(name) for name in INCUMBENTS}
        return [name for name, change in changes.items() if change and change > 1 + limit]


def ratios(records: Sequence[Mapping[str, Any]], metric: str = METRICS[0]) -> dict[str, Ratios]:
    """Per model, pygraph's time over each reference's, where both are right and timed."""
    times: dict[str, dict[str, float]] = {}
    for record in records:
        own = times.setdefault(record["workload"], {})
        if record.get("correct") and record.get(metric):
            own[record["mode"]] = record[metric]
    return {
        model: {
            name: modes["pygraph"] / modes[name]
            for name in REFERENCES
            if "pygraph" in modes and name in modes
        }
        for model, modes in times.items()
    }


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


def _bit_equal(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        record["workload"]: record.get("bit_equal_to_default")
        for record in records
        if record["mode"] == "pygraph"
    }


def compare(
    old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], metric: str = METRICS[0]
) -> list[Row]:
    """A row for every model of either record, in the old one's order."""
    before, after = ratios(old, metric), ratios(new, metric)
    bits_before, bits_after = _bit_equal(old), _bit_equal(new)
    rows = []
    for model in [*before, *(name for name in after if name not in before)]:
        had, has = before.get(model, {}), after.get(model, {})
        lost = None
        if model not in after:
            lost = "not in the new record"
        elif missing := [name for name in REFERENCES if name in had and name not in has]:
            lost = f"no ratio to {', '.join(missing)} any more"
        elif bits_before.get(model) is True and bits_after.get(model) is False:
            lost = "not bit-equal to default any more"
        rows.append(Row(model, had, has, lost))
    return rows


def as_table(rows: Sequence[Row], metric: str, limit: float) -> Table:
    table = Table(title=f"pygraph over ..., {metric}: old -> new (change)", title_justify="left")
    table.add_column("model")
    for name in REFERENCES:
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for row in rows:
        slower = row.slower(limit)
        cells = [_cell(row, name, name in slower) for name in REFERENCES]
        table.add_row(Text(row.model), *cells, _verdict(row, slower))
    return table


def _cell(row: Row, name: str, slower: bool) -> Text:
    old, new, change = row.old.get(name), row.new.get(name), row.change(name)
    shown = ["-" if value is None else f"{value:.3f}" for value in (old, new)]
    text = " -> ".join(shown) + ("" if change is None else f" ({change - 1:+.1%})")
    return Text(text, style="red" if slower else "")


def _verdict(row: Row, slower: Sequence[str]) -> Text:
    if row.lost:
        return Text(f"lost: {row.lost}", style="bold red")
    if slower:
        return Text(f"slower against {' and '.join(slower)}", style="red")
    return Text("new" if not row.old else "", style="dim")


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
        before, after = read(old), read(new)
    except NotARecord as error:
        typer.echo(f"regress: {error}", err=True)
        raise typer.Exit(2) from error
    rows = compare(before, after, metric)
    console = terminal()
    console.print(as_table(rows, metric, limit))
    bad = [row for row in rows if row.lost or row.slower(limit)]
    if not rows:
        console.print(Text("neither record has a model", style="red"))
    elif bad:
        names = ", ".join(row.model for row in bad)
        console.print(Text(f"slower or lost: {names} ({len(bad)} of {len(rows)})", style="red"))
    else:
        console.print(Text(f"none of {len(rows)} models is slower by more than {limit:.0%}"))
    raise typer.Exit(1 if bad or not rows else 0)
