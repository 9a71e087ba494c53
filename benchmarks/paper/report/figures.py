"""Numbers derived from stored rows: ratios, means, coverage, distance from the floor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from benchmarks.harness import figures as harness
from benchmarks.harness.measure import geomean
from benchmarks.paper.record import Result, Row
from benchmarks.paper.workloads.catalogue import WORKLOADS

EAGER, DEFAULT, TORCH, OWN, FLOOR = "eager", "default", "reduce-overhead", "pygraph", "floor"
MODES = (EAGER, DEFAULT, TORCH, OWN, FLOOR)
"""What a row is measured in, parts of pygraph switched off left out."""
COMPILED = (DEFAULT, TORCH, OWN)
PARTS = (f"{OWN}-untransformed", f"{OWN}-copies", f"{OWN}-always")
"""The modes without one of the paper's three ideas, in its order."""

PARALLEL = f"{OWN}-parallel"
"""The mode with nodes side by side."""

Rows = Mapping[str, Row]
Ratio = Callable[[Row], float | None]


def rows_of(content: Mapping[str, Any]) -> dict[str, Row]:
    """Of a stored document, in the paper's order; what the paper does not have comes last."""
    found = content.get("workloads", {})
    names = dict.fromkeys((*WORKLOADS, *found))
    return {name: Row.from_dict(name, found[name]) for name in names if name in found}


def environment(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of the last run."""
    runs: list[dict[str, Any]] = content.get("runs") or [{}]
    found: Mapping[str, Any] = runs[-1].get("env", {})
    return found


def rows_in(run: int, rows: Rows) -> int:
    """How many rows come from a run, counted from 0."""
    return sum(row.run == run for row in rows.values())


class Mean(NamedTuple):
    """A geometric mean; None over no rows."""

    value: float | None
    rows: int


class Entry(NamedTuple):
    """A row's figure."""

    name: str
    value: float


def entries(rows: Iterable[Row], value: Ratio) -> list[Entry]:
    """Of all rows that have it, the largest first."""
    found = [(row.name, value(row)) for row in rows]
    known = [Entry(name, figure) for name, figure in found if figure is not None]
    return sorted(known, key=lambda each: -each.value)


def mean(rows: Iterable[Row], value: Ratio) -> Mean:
    """Over all rows that have it."""
    known = [each.value for each in entries(rows, value) if each.value > 0]
    return Mean(geomean(known), len(known))


def sample(rows: Rows) -> list[Row]:
    """Every third row from the largest speed-up over reduce-overhead to the smallest, and the one
    that needs the most memory beside default."""
    ranked = entries(rows.values(), speed_up(TORCH))
    memory = entries(rows.values(), PEAK)
    kept = {each.name for each in (*ranked[::3], *memory[:1])}
    return [rows[each.name] for each in ranked if each.name in kept]


def ablations(rows: Iterable[Row]) -> list[str]:
    """Modes in which a part of pygraph is switched off, in the order they are first met in."""
    modes = [record.mode for row in rows for record in row.records]
    off = (mode for mode in modes if mode.startswith(f"{OWN}-") and mode != PARALLEL)
    return list(dict.fromkeys(off))


def own_modes(row: Row) -> list[str]:
    """pygraph, and its other modes that were run."""
    wide = [PARALLEL] if row.mode(PARALLEL) is not None else []
    return [OWN, *wide, *ablations([row])]


def by_mode(row: Row) -> dict[str, Result]:
    return {each.mode: each for each in row.records}


def figure(row: Row, mode: str, name: str) -> Any:
    """A field of one mode; None where there is none or the mode is wrong."""
    return harness.figure(by_mode(row), mode, name)


def over(mode: str, reference: str, field: str = "latency_us") -> Ratio:
    """How many times one mode's figure is another's."""
    return lambda row: harness.over(by_mode(row), mode, reference, field)


def compile_over(reference: str) -> Ratio:
    """How many times as long as the reference pygraph compiles; None where Inductor's cache did not
    have the code of one of them, as where Dynamo breaks a function and, in a process that has met
    other sizes, makes other graphs of it."""

    def value(row: Row) -> float | None:
        both = [each for each in map(row.mode, (OWN, reference)) if each is not None]
        anew = any(each.extra.get(name) for each in both for name in harness.NOT_CACHED)
        return None if anew else over(OWN, reference, "compile_s")(row)

    return value


PEAK = over(OWN, DEFAULT, "peak_mib")


def speed_up(reference: str, mode: str = OWN) -> Ratio:
    """How many times faster a mode is than the reference."""
    return over(reference, mode)


def over_best(row: Row) -> float | None:
    """pygraph's latency over that of torch's better mode, with or without graphs."""
    found = [value for mode in (DEFAULT, TORCH) if (value := over(OWN, mode)(row))]
    return max(found, default=None)


def is_bound(row: Row) -> bool:
    """Whether its floor is a sum of kernel times rather than a graph."""
    return bool(figure(row, FLOOR, "is_bound"))


def model(row: Row) -> str:
    """The model's name, for those who do not know the workload's."""
    name = str(row.about.get("model") or row.name)
    return f"{name}, training" if row.about.get("training") else name


def verdict(row: Row, mode: str = OWN) -> dict[str, Any]:
    found = row.mode(mode)
    return found.verdict if found is not None else {}


def why_wrong(record: Result) -> str:
    """A reason for a mode without figures; empty where it is right."""
    if harness.right(record):
        return ""
    return str(record.error or record.verdict.get("reason") or "wrong results")


def wrong(rows: Iterable[Row]) -> list[tuple[str, str, str]]:
    """Workload, mode and reason of everything that ran and was not right."""
    return [
        (row.name, record.mode, reason)
        for row in rows
        for record in row.records
        if (reason := why_wrong(record))
    ]


def right(row: Row) -> bool:
    """Whether pygraph ran it, and all of its modes that were run are right."""
    return row.error is None and all(
        found is not None and found.correct for found in map(row.mode, own_modes(row))
    )


def by_distance(rows: Iterable[Row]) -> list[Row]:
    """The farthest from its floor first; those without one last."""
    return sorted(rows, key=lambda row: -(over(OWN, FLOOR)(row) or 0.0))
