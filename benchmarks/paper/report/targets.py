"""The requirements on the paper's benchmark, judged on stored figures.

What has to hold on every row is met only where every row was measured; a mean is judged on the rows
that have it, and says how many those are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.harness.shown import shortened
from benchmarks.harness.targets import Target, judged
from benchmarks.paper.record import Row
from benchmarks.paper.report import figures, published
from benchmarks.paper.report.figures import DEFAULT, FLOOR, OWN, PARALLEL, TORCH, Entry

OVER = {TORCH: 1.15, DEFAULT: 1.6}
SLOWER = 1.03
COMPILE = 1.3
NEAR = 1.10
PARALLEL_NEAR = 1.03
SHORT = 120
"""Characters of an error in a detail."""
ROUNDING = 1e-9
"""Relative: a figure that is its limit meets it."""

_judged = partial(judged, slack=ROUNDING)


def evaluate(names: Sequence[str], rows: Mapping[str, Row]) -> list[Target]:
    """For the workloads named, whether they are in the file or not."""
    measured = [rows[name] for name in names if name in rows]
    return [
        _right(names, rows),
        *(_faster(mode, names, measured) for mode in OVER),
        _never_slower(names, measured),
        _bytes(names, measured),
        _compile(names, measured),
        _near(measured),
        *_side_by_side(measured),
    ]


def _right(names: Sequence[str], rows: Mapping[str, Row]) -> Target:
    good = [name for name in names if name in rows and figures.right(rows[name])]
    bad = [f"{name}: {_trouble(rows.get(name))}" for name in names if name not in good]
    met = None if not any(name in rows for name in names) else not bad
    requirement = f"all {len(names)} rows there, every mode of pygraph right"
    return Target("rows", requirement, met, len(good), len(names), "; ".join(bad))


def _trouble(row: Row | None) -> str:
    if row is None:
        return "missing"
    if row.error is not None:
        return shortened(row.error, SHORT)
    own = figures.own_modes(row)
    reasons = [f"no {OWN}"] if row.mode(OWN) is None else []
    reasons += [
        f"{mode}: {shortened(why, SHORT)}" for _, mode, why in figures.wrong([row]) if mode in own
    ]
    return ", ".join(reasons)


def _faster(reference: str, names: Sequence[str], rows: Sequence[Row]) -> Target:
    limit, value = OVER[reference], figures.speed_up(reference)
    found, mean = figures.entries(rows, value), figures.mean(rows, value)
    detail = f"over {mean.rows} of {len(names)} rows"
    detail += f"; from {_shown(found[-1])} to {_shown(found[0])}" if found else ""
    requirement = f"geometric mean of the latency's speed-up at least {limit}"
    return _judged(f"faster than {reference}", requirement, mean.value, limit, detail, least=True)


def _compile(names: Sequence[str], rows: Sequence[Row]) -> Target:
    value = figures.compile_over(TORCH)
    found, mean = figures.entries(rows, value), figures.mean(rows, value)
    detail = f"over {mean.rows} of {len(names)} rows"
    detail += f"; worst {_shown(found[0])}" if found else ""
    requirement = f"geometric mean at most {COMPILE} times reduce-overhead's"
    return _judged("compile time", requirement, mean.value, COMPILE, detail)


def _never_slower(names: Sequence[str], rows: Sequence[Row]) -> Target:
    found = figures.entries(rows, figures.over_best)
    slower = [_shown(each, 3) for each in found if each.value > SLOWER * (1 + ROUNDING)]
    detail = f"worst {_shown(found[0], 3)}" if found else ""
    if slower:
        detail = f"{len(slower)} slower: {', '.join(slower)}"
    requirement = f"on every row at most {SLOWER} times the better of default and reduce-overhead"
    return _on_every_row("never slower", requirement, SLOWER, [detail], found, names)


def _bytes(names: Sequence[str], rows: Sequence[Row]) -> Target:
    found = figures.entries(rows, lambda row: figures.figure(row, OWN, "bytes_copied"))
    limit = published.MOST_BYTES
    too_many = [each.name for each in found if each.value >= limit]
    parts = [f"most {found[0].value:,.0f} B ({found[0].name})"] if found else []
    if len(too_many) > 1:
        parts.append(f"too many on {', '.join(too_many)}")
    requirement = f"on every row below the paper's {limit:.0f} B per iteration"
    target = _on_every_row("bytes copied", requirement, limit, parts, found, names)
    return replace(target, met=False) if too_many else target


def _on_every_row(
    name: str,
    requirement: str,
    limit: float,
    parts: Sequence[str],
    found: Sequence[Entry],
    names: Sequence[str],
) -> Target:
    """On the largest figure, if there is one of every row."""
    gaps = [name for name in names if name not in {each.name for each in found}]
    said = [*parts, f"not measured on {', '.join(gaps)}" if gaps else ""]
    most = found[0].value if found else None
    detail = "; ".join(filter(None, said))
    return _judged(name, requirement, most, limit, detail, complete=not gaps)


def _near(rows: Sequence[Row]) -> Target:
    """Information: it is neither met nor missed."""
    found = figures.entries(rows, figures.over(OWN, FLOOR))
    near = sum(each.value <= NEAR * (1 + ROUNDING) for each in found)
    return Target(
        "near the floor",
        f"information: share of rows at most {NEAR:.2f} times their floor",
        None,
        near / len(found) if found else None,
        detail=f"{near} of {len(found)} rows with a floor; no requirement" if found else "",
    )


def _side_by_side(rows: Sequence[Row]) -> Iterator[Target]:
    """Where that was measured; a sum of kernel times is no floor to run side by side below."""
    value = figures.over(PARALLEL, FLOOR)
    whole = [row for row in rows if not figures.is_bound(row)]
    found, mean = figures.entries(whole, value), figures.mean(whole, value)
    if found:
        detail = f"over {mean.rows} rows with a floor"
        detail += f"; worst {_shown(found[0])}, best {_shown(found[-1])}"
        requirement = f"{PARALLEL} at most {PARALLEL_NEAR} of the serial floor, geometric mean"
        yield _judged("side by side", requirement, mean.value, PARALLEL_NEAR, detail)


def _shown(entry: Entry, digits: int = 2) -> str:
    return f"{entry.value:.{digits}f} ({entry.name})"
