"""The summary of a record, and the goals: how many times serial's, or the floor's, a figure of the
mode parallel is. Below 1 it is faster, or takes less.

Where a workload has no floor, since an iteration is no single graph, its latency is not part of the
mean over floors, and its pipelined time is taken over serial's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.harness.figures import Modes, over, right
from benchmarks.harness.measure import geomean
from benchmarks.harness.record import by_mode
from benchmarks.harness.targets import Target, judged
from benchmarks.parallel.modes import FLOOR, LANES, PARALLEL, SERIAL
from benchmarks.parallel.workloads import BRANCHY, OTHER, WORKLOADS, Workload

FIGURES = {"latency": "latency_us", "pipelined": "pipelined_us"}
LATENCY_LIMIT, PIPELINED_LIMIT = 0.75, 0.95
"""Of branchy workloads: the mean over the floors', and each over the floor's."""
OTHER_LIMIT, MEMORY_LIMIT = 1.0, 1.05
SLACK = 0.005
"""A figure so far beyond its limit, relative, still is that limit: clocks tell no more."""

Ratios = dict[str, Any]


def ratios(modes: Modes) -> Ratios:
    """Of one workload."""
    found: Ratios = {"kind": _extra(modes, "kind"), "lanes": _extra(modes, "lanes")}
    for name, field in FIGURES.items():
        for mode, reference in ((PARALLEL, SERIAL), (PARALLEL, FLOOR), (SERIAL, FLOOR)):
            found[f"{name} {mode}/{reference}"] = over(modes, mode, reference, field)
        found[f"{name} {PARALLEL}/best"] = _over_best(modes, field)
    found[f"peak {PARALLEL}/{SERIAL}"] = over(modes, PARALLEL, SERIAL, "peak_mib")
    found[f"arena {PARALLEL}/{SERIAL}"] = _arena(modes)
    return found


def _extra(modes: Modes, name: str) -> Any:
    row = modes.get(PARALLEL) or next(iter(modes.values()))
    return row.extra.get(name)


def _over_best(modes: Modes, field: str) -> float | None:
    """Over the fastest of serial and the fixed numbers of lanes."""
    fixed = [mode for mode in (SERIAL, *LANES) if mode != PARALLEL]
    known = [value for mode in fixed if (value := over(modes, PARALLEL, mode, field))]
    return max(known, default=None)


def _arena(modes: Modes) -> float | None:
    ours, serial = (
        modes[mode].extra.get("arena_bytes") if mode in modes and right(modes[mode]) else None
        for mode in (PARALLEL, SERIAL)
    )
    return ours / serial if ours is not None and serial else None


def summary(records: Sequence[Any], wanted: Mapping[str, Workload] = WORKLOADS) -> dict[str, Any]:
    """`wanted`: what has to be measured for a goal to be met."""
    rows = by_mode(records)
    found = {name: ratios(modes) for name, modes in rows.items()}
    kinds = {
        kind: {name: each for name, each in found.items() if each["kind"] == kind}
        for kind in (BRANCHY, OTHER)
    }
    branchy, other = kinds[BRANCHY], kinds[OTHER]
    return {
        "workloads": found,
        BRANCHY: {
            f"latency {PARALLEL}/{reference}, geomean": _mean(
                branchy, f"latency {PARALLEL}/{reference}"
            )
            for reference in (SERIAL, FLOOR)
        }
        | {"pipelined, worst": _worst(pipelined(branchy, wanted))},
        OTHER: {
            f"{name}, worst": _worst(_known(other, f"{name} {PARALLEL}/{SERIAL}"))
            for name in FIGURES
        },
        "memory": {
            f"{name}, worst": _worst(_known(found, f"{name} {PARALLEL}/{SERIAL}"))
            for name in ("peak", "arena")
        },
        "compiled_apart": [
            f"{each.workload}, {each.mode}" for each in records if each.extra.get("compiled_apart")
        ],
        "goals": [each.to_dict() for each in targets(rows, wanted)],
    }


def _known(found: Mapping[str, Ratios], name: str) -> dict[str, float]:
    return {workload: each[name] for workload, each in found.items() if each[name] is not None}


def _mean(found: Mapping[str, Ratios], name: str) -> float | None:
    return geomean(list(_known(found, name).values()))


def _worst(known: Mapping[str, float]) -> dict[str, Any] | None:
    if not known:
        return None
    name = max(known, key=known.__getitem__)
    return {"workload": name, "ratio": known[name]}


def pipelined(found: Mapping[str, Ratios], wanted: Mapping[str, Workload]) -> dict[str, float]:
    """Over the floor's, or over serial's where there is no floor."""
    over_floor = _known(found, f"pipelined {PARALLEL}/{FLOOR}")
    over_serial = _known(found, f"pipelined {PARALLEL}/{SERIAL}")
    without = [name for name, each in wanted.items() if each.without_floor is not None]
    return over_floor | _of(over_serial, without)


def targets(
    rows: Mapping[str, Modes], wanted: Mapping[str, Workload] = WORKLOADS
) -> Iterator[Target]:
    found = {name: ratios(modes) for name, modes in rows.items()}
    branchy = [name for name, each in wanted.items() if each.kind == BRANCHY]
    other = [name for name, each in wanted.items() if each.kind == OTHER]
    with_floor = [name for name in branchy if wanted[name].without_floor is None]
    over_floor = _of(_known(found, f"latency {PARALLEL}/{FLOOR}"), branchy)
    yield judged(
        "branchy, latency",
        f"{PARALLEL} over the serial floor, geometric mean",
        geomean(list(over_floor.values())),
        LATENCY_LIMIT,
        _listed(over_floor, LATENCY_LIMIT),
        failed=_failed(rows, branchy),
        complete=set(with_floor) <= over_floor.keys(),
        slack=SLACK,
    )
    yield _each(
        "branchy, pipelined",
        f"{PARALLEL} over the serial floor, each",
        _of(pipelined(found, wanted), branchy),
        PIPELINED_LIMIT,
        branchy,
        rows,
    )
    for name in FIGURES:
        known = _of(_known(found, f"{name} {PARALLEL}/{SERIAL}"), other)
        requirement = f"{PARALLEL} over {SERIAL}, each"
        yield _each(f"other, {name}", requirement, known, OTHER_LIMIT, other, rows)
    peaks = _of(_known(found, f"peak {PARALLEL}/{SERIAL}"), list(wanted))
    requirement = f"peak of {PARALLEL} over that of {SERIAL}, each"
    yield _each("memory", requirement, peaks, MEMORY_LIMIT, list(wanted), rows)


def _of(known: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    return {name: known[name] for name in names if name in known}


def _each(
    name: str,
    requirement: str,
    known: Mapping[str, float],
    limit: float,
    names: Sequence[str],
    rows: Mapping[str, Modes],
) -> Target:
    """Of all these workloads, the worst counts."""
    return judged(
        name,
        requirement,
        max(known.values(), default=None),
        limit,
        _listed(known, limit),
        failed=_failed(rows, names),
        complete=set(names) <= known.keys(),
        slack=SLACK,
    )


def _listed(known: Mapping[str, float], limit: float) -> str:
    """What is beyond the limit, the farthest first."""
    beyond = {name: each for name, each in known.items() if each > limit * (1 + SLACK)}
    ordered = sorted(beyond.items(), key=lambda each: -each[1])
    text = ", ".join(f"{name} {value:.3f}" for name, value in ordered)
    return f"of {len(known)}; beyond: {text}" if text else f"of {len(known)}"


def _failed(rows: Mapping[str, Modes], names: Sequence[str]) -> bool:
    """Whether the mode was wrong, or raised, in one of these."""
    ours = [rows[name].get(PARALLEL) for name in names if name in rows]
    return any(row is not None and not row.timed for row in ours)
