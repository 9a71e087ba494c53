"""What got slower, was lost or grew between two stored results of the paper's benchmark.

Machines of one kind differ, so times of two files say nothing. What is compared are ratios within a
row: pygraph's time over that of default and of reduce-overhead, which ran in the same process. A
row got slower where such a ratio grew beyond its noise bound. The ratio to the floor is shown and
does not count.

A median of n samples has a standard error of about 1.25 sigma / sqrt(n), and sigma is about the
distance from the 10th to the 90th percentile over 2.56. The bound is CONFIDENCE such errors of the
four medians behind a change together, and never less than a limit: processes differ by more than
the samples within one show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.harness.record import NotARecord, read_json
from benchmarks.paper.record import Result, Row
from benchmarks.paper.report import blocks, figures
from benchmarks.paper.report.figures import DEFAULT, FLOOR, OWN, TORCH

INCUMBENTS = (DEFAULT, TORCH)
REFERENCES = (*INCUMBENTS, FLOOR)
METRICS = ("latency_us", "host_us", "pipelined_us")
LIMIT = 0.03
CONFIDENCE = 3.0
MEDIAN = 1.2533
"""The standard error of a normal distribution's median over that of its mean."""
TENTH = 1.2816
"""Standard deviations from the median to the 90th percentile."""
COVERAGE = 0.005
"""A loss of coverage that counts: half a percentage point."""
MEMORY = 1.05
ENVIRONMENT = ("gpu", "driver", "torch", "cuda")


@dataclass(frozen=True)
class Change:
    """pygraph's time over a reference's, before and after."""

    old: float
    new: float
    bound: float
    """Relative growth that may be noise."""

    @property
    def growth(self) -> float:
        """Above 0 is slower."""
        return self.new / self.old - 1

    @property
    def slower(self) -> bool:
        return self.growth > self.bound


@dataclass(frozen=True)
class Compared:
    """One workload."""

    name: str
    changes: Mapping[str, Change] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    """What the new result lacks."""
    worse: tuple[str, ...] = ()
    """Coverage, bytes and memory."""
    is_new: bool = False

    @property
    def slower(self) -> list[str]:
        """The incumbents that pygraph lost ground to."""
        return [name for name in INCUMBENTS if name in self.changes and self.changes[name].slower]

    @property
    def bad(self) -> bool:
        return bool(self.slower or self.lost or self.worse)


def relative_error(result: Result, metric: str) -> float:
    """Of the median; 0 where nothing is stored of the spread."""
    middle = getattr(result, metric)
    if not middle or result.samples < 2:
        return 0.0
    sigma = 0.0
    if metric == "latency_us" and result.latency_p10_us and result.latency_p90_us:
        sigma = (result.latency_p90_us - result.latency_p10_us) / (2 * TENTH)
    elif metric == "host_us" and result.host_p90_us:
        sigma = (result.host_p90_us - middle) / TENTH
    return MEDIAN * max(0.0, sigma) / math.sqrt(result.samples) / middle


def compare(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    metric: str = METRICS[0],
    limit: float = LIMIT,
) -> list[Compared]:
    """A row for every workload of either, in the old one's order."""
    before, after = figures.rows_of(old), figures.rows_of(new)
    return [
        _compared(name, before.get(name), after.get(name), metric, limit)
        for name in dict.fromkeys((*before, *after))
    ]


def _compared(name: str, old: Row | None, new: Row | None, metric: str, limit: float) -> Compared:
    if old is None:
        return Compared(name, is_new=True)
    if new is None or new.error is not None:
        if figures.usable(old, OWN) is None:
            return Compared(name)
        why = "not in the new result" if new is None else blocks.shortened(str(new.error), 120)
        return Compared(name, lost=(why,))
    changes, lost = {}, _lost_answers(old, new)
    for reference in REFERENCES:
        ratio = figures.over(OWN, reference, metric)
        was, is_ = ratio(old), ratio(new)
        if was is not None and is_ is None:
            lost.append(f"no ratio to {reference} any more")
        elif was is not None and is_ is not None:
            found = [row.mode(mode) for row in (old, new) for mode in (OWN, reference)]
            errors = [relative_error(each, metric) for each in found if each is not None]
            changes[reference] = Change(was, is_, max(limit, CONFIDENCE * math.hypot(*errors)))
    return Compared(name, changes, tuple(lost), tuple(_worse(old, new)))


def _lost_answers(old: Row, new: Row) -> list[str]:
    had, has = old.mode(OWN), new.mode(OWN)
    if had is None or not had.correct:
        return []
    if has is None:
        return ["pygraph was not run"]
    if not has.correct:
        return [f"pygraph is wrong: {blocks.shortened(figures.why_wrong(has), 120)}"]
    return [
        f"not {key.replace('_', ' ').replace('bit equal', 'bit-equal')} any more"
        for key in ("bit_equal_to_default", "bit_equal_to_uncaptured")
        if had.verdict.get(key) is True and has.verdict.get(key) is False
    ]


def _worse(old: Row, new: Row) -> list[str]:
    checks: tuple[tuple[str, str, Callable[[float, float], bool], Callable[[float], str]], ...] = (
        ("coverage", "coverage", lambda a, b: b < a - COVERAGE, blocks.percent),
        ("bytes copied", "bytes_copied", lambda a, b: b >= a + 1, blocks.amount),
        ("peak MiB", "peak_mib", lambda a, b: b > a * MEMORY, blocks.mebibytes),
    )
    found = []
    for name, key, is_worse, show in checks:
        was, is_ = figures.figure(old, OWN, key), figures.figure(new, OWN, key)
        if was is not None and is_ is not None and is_worse(was, is_):
            found.append(f"{name} {show(was)} -> {show(is_)}")
    return found


def as_table(rows: list[Compared], metric: str) -> Table:
    table = Table(
        title=f"pygraph over ..., {metric}: old -> new (change, noise bound)", title_justify="left"
    )
    table.add_column("workload")
    for name in REFERENCES:
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for row in rows:
        cells = [_cell(row.changes.get(name), name in row.slower) for name in REFERENCES]
        table.add_row(Text(row.name), *cells, _verdict(row))
    return table


def _cell(change: Change | None, slower: bool) -> Text:
    if change is None:
        return Text(blocks.NOTHING, style="dim")
    text = f"{change.old:.3f} -> {change.new:.3f} ({change.growth:+.1%}, {change.bound:.1%})"
    return Text(text, style="red" if slower else "")


def _verdict(row: Compared) -> Text:
    said = [f"lost: {each}" for each in row.lost]
    if row.slower:
        said.append(f"slower against {' and '.join(row.slower)}")
    said += row.worse
    if said:
        return Text("; ".join(said), style="red")
    return Text("new" if row.is_new else "", style="dim")


def read(path: Path) -> dict[str, Any]:
    """Raises NotARecord."""
    needed = "needed: a result of `pygraph bench`, JSON with runs and at least one of workloads"
    content = read_json(path, needed)
    if not isinstance(content, dict):
        raise NotARecord(f"{path}: found a JSON {type(content).__name__}; {needed}")
    if not isinstance(content.get("workloads"), dict) or not isinstance(content.get("runs"), list):
        keys = ", ".join(list(content)[:6]) or "nothing"
        hint = ""
        if "records" in content:
            hint = " (a record of `./run demo`: compare it with `./run regress`)"
        raise NotARecord(f"{path}: found {keys}{hint}; {needed}")
    if not content["workloads"]:
        raise NotARecord(f"{path}: found no workloads; {needed}")
    try:
        figures.rows_of(content)
    except (AttributeError, KeyError, TypeError) as error:
        raise NotARecord(f"{path}: found workloads of another form ({error}); {needed}") from error
    return content


def run_compare(a: Path, b: Path, metric: str, limit: float, console: Console) -> int:
    """1 if anything got slower, was lost or grew; 2 where that cannot be said."""
    try:
        if metric not in METRICS:
            raise NotARecord(f"no metric {metric!r}: there are {', '.join(METRICS)}")
        old, new = read(a), read(b)
    except NotARecord as error:
        console.print(Text(str(error), style="red"))
        return 2
    rows = compare(old, new, metric, limit)
    console.print(as_table(rows, metric))
    was, is_ = figures.environment(old), figures.environment(new)
    apart = [f"{k} {was.get(k)} -> {is_.get(k)}" for k in ENVIRONMENT if was.get(k) != is_.get(k)]
    if apart:
        text = f"measured with other versions or machines: {', '.join(apart)}"
        console.print(Text(text, style="yellow"))
    bad = [row for row in rows if row.bad]
    if bad:
        names = ", ".join(row.name for row in bad)
        text = f"slower, lost or grown: {names} ({len(bad)} of {len(rows)})"
        console.print(Text(text, style="red"))
        return 1
    console.print(Text(f"none of {len(rows)} workloads is slower beyond its noise bound"))
    return 0
