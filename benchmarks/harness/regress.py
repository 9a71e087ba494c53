"""Did pygraph get slower? Two records of one kind, compared.

Machines of one kind differ by up to 1.4x, so times of two runs say nothing. What is compared are
ratios within a run: pygraph's time over that of the same run's incumbents, torch.compile's default
and its reduce-overhead mode. A model got slower where such a ratio grew by more than its bound. The
ratio to the floor is shown and does not count. What pygraph served before and does not serve any
more is lost.

A bound is never less than a limit: processes differ by more than the samples within one show. Where
`confidence` is above 0, it is also that many standard errors of the four medians behind a change.
A median of n samples has a standard error of about 1.25 sigma / sqrt(n), and sigma is about the
distance from the 10th to the 90th percentile over 2.56.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from benchmarks.harness import figures
from benchmarks.harness.record import NotARecord
from benchmarks.harness.shown import NOTHING
from benchmarks.harness.table import Column, Table, made, marked, words
from benchmarks.harness.timed import Timed

OWN = "pygraph"
INCUMBENTS = ("default", "reduce-overhead")
REFERENCES = (*INCUMBENTS, "floor")
METRICS = ("latency_us", "host_us", "pipelined_us")
BITS = {
    "bit_equal_to_default": "not bit-equal to default",
    "bit_equal_to_uncaptured": "not bit-equal to uncaptured",
}
MEDIAN = 1.2533
"""The standard error of a normal distribution's median over that of its mean."""
TENTH = 1.2816
"""Standard deviations from the median to the 90th percentile."""


@dataclass(frozen=True)
class Rule:
    """What counts as a change."""

    metric: str = METRICS[0]
    limit: float = 0.0
    """Relative growth of a ratio that is noise on any model."""
    confidence: float = 0.0
    """Standard errors that are noise beside it."""


@dataclass(frozen=True)
class Kind:
    """What differs between the two kinds of record."""

    noun: str
    verdict: str
    """What is said of those that are bad."""
    read: Callable[[Path], Any]
    """Raises NotARecord."""
    compare: Callable[[Any, Any, Rule], list[Compared]]
    apart: Callable[[Any, Any], Sequence[str]] = lambda old, new: ()
    """In what the machines differ, where that is told."""


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
    """One model."""

    name: str
    changes: Mapping[str, Change] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    """What the new record lacks."""
    worse: tuple[str, ...] = ()
    """What else grew."""
    is_new: bool = False

    @property
    def slower(self) -> list[str]:
        """The incumbents that pygraph lost ground to."""
        return [name for name in INCUMBENTS if name in self.changes and self.changes[name].slower]

    @property
    def bad(self) -> bool:
        return bool(self.slower or self.lost or self.worse)


def relative_error(result: Timed, metric: str) -> float:
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


def compared(name: str, old: figures.Modes | None, new: figures.Modes, rule: Rule) -> Compared:
    """By ratios, and by the bits of pygraph's results."""
    if old is None:
        return Compared(name, is_new=True)
    changes, missing = {}, []
    for reference in REFERENCES:
        was, is_ = (figures.over(each, OWN, reference, rule.metric) for each in (old, new))
        if was is not None and is_ is not None:
            behind = [modes[mode] for modes in (old, new) for mode in (OWN, reference)]
            errors = [relative_error(each, rule.metric) for each in behind]
            bound = max(rule.limit, rule.confidence * math.hypot(*errors))
            changes[reference] = Change(was, is_, bound)
        elif was is not None:
            missing.append(reference)
    lost = [f"no ratio to {', '.join(missing)} any more"] if missing else []
    had, has = (_told(each.get(OWN)) for each in (old, new))
    lost += [
        f"{said} any more" for key, said in BITS.items() if had.get(key) and has.get(key) is False
    ]
    return Compared(name, changes, tuple(lost))


def _told(record: Any) -> Mapping[str, Any]:
    """What was found of a mode's results: its verdict if it is right, or its record's fields."""
    if record is None:
        return {}
    found: Mapping[str, Any] = getattr(record, "verdict", vars(record))
    return found if figures.right(record) or found is vars(record) else {}


def as_table(rows: Iterable[Compared], kind: Kind, rule: Rule) -> Table:
    def ratio(reference: str) -> Column:
        def cell(row: Compared) -> str:
            change = row.changes.get(reference)
            if change is None:
                return NOTHING
            bound = f", {change.bound:.1%}" if rule.confidence else ""
            text = f"{change.old:.3f} -> {change.new:.3f} ({change.growth:+.1%}{bound})"
            return marked(text, "bad" if reference in row.slower else "")

        return Column(reference, cell)

    columns = [words(kind.noun, lambda row: row.name), *map(ratio, REFERENCES)]
    title = f"pygraph over ..., {rule.metric}: old -> new (change"
    title += ", noise bound)" if rule.confidence else ")"
    return made(rows, [*columns, words("verdict", _verdict)], title=title)


def _verdict(row: Compared) -> str:
    said = [f"lost: {each}" for each in row.lost]
    if row.slower:
        said.append(f"slower against {' and '.join(row.slower)}")
    said += row.worse
    return marked("; ".join(said), "bad") if said else marked("new" if row.is_new else "", "none")


def run(files: Sequence[Path], kind: Kind, rule: Rule, console: Console) -> int:
    """1 if anything got slower or was lost, or there is nothing. Raises NotARecord."""
    if rule.metric not in METRICS:
        raise NotARecord(f"no metric {rule.metric!r}: there are {', '.join(METRICS)}")
    old, new = map(kind.read, files)
    rows = kind.compare(old, new, rule)
    console.print(as_table(rows, kind, rule))
    if apart := kind.apart(old, new):
        text = f"measured with other versions or machines: {', '.join(apart)}"
        console.print(Text(text, style="yellow"))
    bad = [row.name for row in rows if row.bad]
    if bad:
        text = f"{kind.verdict}: {', '.join(bad)} ({len(bad)} of {len(rows)})"
        console.print(Text(text, style="red"))
    elif rows:
        beyond = "beyond its noise bound" if rule.confidence else f"by more than {rule.limit:.0%}"
        console.print(Text(f"none of {len(rows)} {kind.noun}s is slower {beyond}"))
    else:
        console.print(Text(f"neither record has a {kind.noun}", style="red"))
    return 1 if bad or not rows else 0
