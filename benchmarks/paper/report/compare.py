"""What got slower, was lost or grew between two stored results of the paper's benchmark.

Ratios are compared as harness/regress.py says; what is within CONFIDENCE standard errors is noise.
Beside them, pygraph's results must be right and their bits the same, and its coverage, bytes and
memory as good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from benchmarks.harness.figures import right
from benchmarks.harness.record import NotARecord, read_json
from benchmarks.harness.regress import METRICS, Compared, Kind, Rule, compared, run
from benchmarks.harness.shown import amount, mebibytes, percent, shortened
from benchmarks.paper.record import Row
from benchmarks.paper.report import figures
from benchmarks.paper.report.figures import OWN

LIMIT = 0.03
CONFIDENCE = 3.0
COVERAGE = 0.005
"""A loss of coverage that counts: half a percentage point."""
MEMORY = 1.05
ENVIRONMENT = ("gpu", "driver", "torch", "cuda")
SHORT = 120
"""Characters of an error."""


def compare(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    rule: Rule | None = None,
) -> list[Compared]:
    """A row for every workload of either, in the old one's order."""
    before, after = figures.rows_of(old), figures.rows_of(new)
    found = rule or Rule(METRICS[0], LIMIT, CONFIDENCE)
    names = dict.fromkeys((*before, *after))
    return [_compared(name, before.get(name), after.get(name), found) for name in names]


def _compared(name: str, old: Row | None, new: Row | None, rule: Rule) -> Compared:
    if old is None:
        return Compared(name, is_new=True)
    had = old.mode(OWN)
    if new is None or new.error is not None:
        why = "not in the new result" if new is None else shortened(str(new.error), SHORT)
        return Compared(name, lost=(why,) if had is not None and right(had) else ())
    row, has = compared(name, figures.by_mode(old), figures.by_mode(new), rule), new.mode(OWN)
    lost = row.lost
    if had is not None and had.correct and has is None:
        lost = ("pygraph was not run", *lost)
    elif had is not None and had.correct and has is not None and not has.correct:
        lost = (f"pygraph is wrong: {shortened(figures.why_wrong(has), SHORT)}", *lost)
    return replace(row, lost=lost, worse=_worse(old, new))


def _worse(old: Row, new: Row) -> tuple[str, ...]:
    checks = (
        ("coverage", "coverage", lambda a, b: b < a - COVERAGE, percent),
        ("bytes copied", "bytes_copied", lambda a, b: b >= a + 1, amount),
        ("peak MiB", "peak_mib", lambda a, b: b > a * MEMORY, mebibytes),
    )
    pairs = [
        (figures.figure(old, OWN, key), figures.figure(new, OWN, key)) for _, key, _, _ in checks
    ]
    return tuple(
        f"{name} {show(was)} -> {show(is_)}"
        for (name, _, is_worse, show), (was, is_) in zip(checks, pairs, strict=True)
        if was is not None and is_ is not None and is_worse(was, is_)
    )


def read(path: Path) -> dict[str, Any]:
    """Raises NotARecord."""
    needed = "needed: a result of `./run bench`, JSON with runs and at least one of workloads"
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


def _apart(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    was, is_ = figures.environment(old), figures.environment(new)
    return [f"{k} {was.get(k)} -> {is_.get(k)}" for k in ENVIRONMENT if was.get(k) != is_.get(k)]


KIND = Kind("workload", "slower, lost or grown", read, compare, _apart)


def run_compare(a: Path, b: Path, metric: str, limit: float, console: Console) -> int:
    """1 if anything got slower, was lost or grew; 2 where that cannot be said."""
    try:
        return run((a, b), KIND, Rule(metric, limit, CONFIDENCE), console)
    except NotARecord as error:
        console.print(Text(str(error), style="red"), soft_wrap=True)
        return 2
