"""The requirements on the paper's benchmark, judged on stored figures.

What has to hold on every row is met only where every row was measured; a mean is judged on the rows
that have it, and says how many those are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.harness.targets import Target
from benchmarks.paper.record import Row
from benchmarks.paper.report import blocks, figures, published
from benchmarks.paper.report.figures import DEFAULT, FLOOR, OWN, TORCH, Entry, Ratio

OVER_TORCH, OVER_DEFAULT = 1.15, 1.6
SLOWER = 1.03
COMPILE = 1.3
NEAR = 1.10
SHORT = 120
"""Characters of an error in a detail."""
ROUNDING = 1e-9
"""Relative: a figure that is its limit meets it."""


def evaluate(names: Sequence[str], rows: Mapping[str, Row]) -> list[Target]:
    """For the workloads named, whether they are in the file or not."""
    measured = [rows[name] for name in names if name in rows]
    return [
        _right(names, rows),
        _faster("faster than reduce-overhead", OVER_TORCH, TORCH, names, measured),
        _faster("faster than default", OVER_DEFAULT, DEFAULT, names, measured),
        _never_slower(names, measured),
        _bytes(names, measured),
        _compile(names, measured),
        _near(names, measured),
    ]


def _right(names: Sequence[str], rows: Mapping[str, Row]) -> Target:
    good = [name for name in names if name in rows and figures.right(rows[name])]
    bad = [f"{name}: {_trouble(rows.get(name))}" for name in names if name not in good]
    met = None if not any(name in rows for name in names) else not bad
    requirement = f"all {len(names)} rows there, every mode of pygraph right"
    return Target("rows", requirement, met, len(good), len(names), _several(bad))


def _trouble(row: Row | None) -> str:
    if row is None:
        return "missing"
    if row.error is not None:
        return blocks.shortened(row.error, SHORT)
    own = [each for each in row.records if each.mode == OWN or each.mode.startswith(f"{OWN}-")]
    reasons = [
        f"{each.mode}: {blocks.shortened(reason, SHORT)}"
        for each in own
        if (reason := figures.why_wrong(each))
    ]
    if row.mode(OWN) is None:
        reasons.insert(0, f"no {OWN}")
    return ", ".join(reasons)


def _faster(
    name: str, limit: float, reference: str, names: Sequence[str], rows: Iterable[Row]
) -> Target:
    found = figures.entries(rows, figures.speed_up(reference))
    mean = figures.mean(rows, figures.speed_up(reference))
    met = None if mean.value is None else mean.value >= limit * (1 - ROUNDING)
    detail = f"over {mean.count} of {len(names)} rows"
    if found:
        detail += f"; from {found[-1].value:.2f} ({found[-1].name}) to {_shown(found[0])}"
    requirement = f"geometric mean of the latency's speed-up at least {limit}"
    return Target(name, requirement, met, mean.value, limit, detail)


def _never_slower(names: Sequence[str], rows: Iterable[Row]) -> Target:
    found = figures.entries(rows, figures.over_best)
    over = [each for each in found if each.value > SLOWER * (1 + ROUNDING)]
    detail = f"worst {_shown(found[0], 3)}" if found else ""
    if over:
        offenders = ", ".join(_shown(each, 3) for each in over)
        detail = f"{len(over)} slower: {offenders}"
    return Target(
        "never slower",
        f"on every row at most {SLOWER} times the better of default and reduce-overhead",
        _on_every_row(not over, found, names),
        found[0].value if found else None,
        SLOWER,
        _with_gaps(detail, found, names),
    )


def _bytes(names: Sequence[str], rows: Iterable[Row]) -> Target:
    found = figures.entries(rows, _bytes_copied)
    limit = published.MOST_BYTES.value
    over = [each for each in found if each.value >= limit]
    detail = f"most {found[0].value:,.0f} B ({found[0].name})" if found else ""
    if len(over) > 1:
        detail += "; too many on " + ", ".join(each.name for each in over)
    return Target(
        "bytes copied",
        f"on every row below the paper's {limit:.0f} B per iteration",
        _on_every_row(not over, found, names),
        found[0].value if found else None,
        limit,
        _with_gaps(detail, found, names),
    )


def _bytes_copied(row: Row) -> float | None:
    value: float | None = figures.figure(row, OWN, "bytes_copied")
    return value


def _compile(names: Sequence[str], rows: Iterable[Row]) -> Target:
    ratio: Ratio = figures.over(OWN, TORCH, "compile_s")
    mean, found = figures.mean(rows, ratio), figures.entries(rows, ratio)
    met = None if mean.value is None else mean.value <= COMPILE * (1 + ROUNDING)
    detail = f"over {mean.count} of {len(names)} rows"
    if found:
        detail += f"; worst {_shown(found[0])}"
    requirement = f"geometric mean at most {COMPILE} times reduce-overhead's"
    return Target("compile time", requirement, met, mean.value, COMPILE, detail)


def _near(names: Sequence[str], rows: Iterable[Row]) -> Target:
    """Information: it is neither met nor missed."""
    found = figures.entries(rows, figures.over(OWN, FLOOR))
    near = sum(each.value <= NEAR * (1 + ROUNDING) for each in found)
    detail = f"{near} of {len(found)} rows with a floor; no requirement" if found else ""
    return Target(
        "near the floor",
        f"information: share of rows at most {NEAR:.2f} times their floor",
        None,
        near / len(found) if found else None,
        detail=detail,
    )


def _on_every_row(good: bool, found: Sequence[Entry], names: Sequence[str]) -> bool | None:
    if not good:
        return False
    return True if found and len(found) == len(names) else None


def _with_gaps(detail: str, found: Sequence[Entry], names: Sequence[str]) -> str:
    known = {each.name for each in found}
    gaps = [name for name in names if name not in known]
    parts = [detail, f"not measured on {', '.join(gaps)}" if gaps else ""]
    return _several([part for part in parts if part])


def _several(parts: Sequence[str]) -> str:
    return "; ".join(parts)


def _shown(entry: Entry, digits: int = 2) -> str:
    return f"{entry.value:.{digits}f} ({entry.name})"
