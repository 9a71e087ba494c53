"""What is asked of training, judged on stored figures.

Times and copies are from the clocks' process, memory from a process per mode. A mode that is wrong
was not timed, and meets nothing; neither does pygraph where it fell back to run without graphs,
since what runs uncaptured copies nothing and needs no more memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness.measure import geomean
from benchmarks.harness.record import by_mode
from benchmarks.harness.targets import PEAK_LIMIT, Target
from benchmarks.training.record import Result, Weight

FLOOR_LIMIT = 1.10
TORCH_MODES = ("default", "reduce-overhead")


def latency(modes: dict[str, Result], mode: str) -> float | None:
    found = modes.get(mode)
    return found.latency_us if found is not None and found.timed else None


def over_floor(modes: dict[str, Result]) -> float | None:
    own, floor = latency(modes, "pygraph"), latency(modes, "floor")
    return own / floor if own and floor else None


def over_torch(modes: dict[str, Result]) -> tuple[float | None, str]:
    """pygraph over the faster of torch's modes, and which that is. None unless both were timed: one
    that is missing might be the faster."""
    own = latency(modes, "pygraph")
    times = {mode: latency(modes, mode) for mode in TORCH_MODES}
    known = {mode: value for mode, value in times.items() if value}
    if not known:
        return None, "neither default nor reduce-overhead was timed"
    best = min(known, key=lambda mode: known[mode])
    lacking = [mode for mode in TORCH_MODES if mode not in known]
    detail = f"{lacking[0]} was not timed" if lacking else f"{best} is the faster of torch's"
    return (own / known[best] if own else None), detail


def peak_ratio(weights: dict[str, Weight]) -> float | None:
    default, own = weights.get("default"), weights.get("pygraph")
    if default is None or own is None or not default.peak_mib or not own.peak_mib:
        return None
    return own.peak_mib / default.peak_mib


def evaluate(
    names: Sequence[str], results: Sequence[Result], weights: Sequence[Weight]
) -> list[Target]:
    """One target for all models together, four for each; those not measured included."""
    timed, weighed = by_mode(results), by_mode(weights)
    targets = [_floor_target(names, timed)]
    for name in names:
        modes = timed.get(name, {})
        targets += [
            _right_target(name, modes.get("pygraph")),
            _latency_target(name, modes),
            _copies_target(name, modes.get("pygraph")),
            _memory_target(name, weighed.get(name, {})),
        ]
    return targets


def bits(own: Result) -> str | None:
    """Whose bits pygraph's training steps have; None where that is not known."""
    if own.verdict.get("bit_equal_to_default"):
        return "default's"
    if own.verdict.get("bit_equal_to_uncaptured"):
        return "uncaptured's"
    if not own.verdict:
        return None
    return "within spread" if own.correct else "no"


def _failed(own: Result | None) -> bool:
    """Ran, and was wrong or raised."""
    return own is not None and not own.timed


def _floor_target(names: Sequence[str], timed: dict[str, dict[str, Result]]) -> Target:
    ratios = {name: over_floor(timed.get(name, {})) for name in names}
    known = [ratio for ratio in ratios.values() if ratio]
    value = geomean(known)
    lacking = [name for name, ratio in ratios.items() if not ratio]
    bounds = [
        name for name in names if (floor := timed.get(name, {}).get("floor")) and floor.is_bound
    ]
    parts = [f"{len(known)} of {len(names)} models"]
    if lacking:
        parts.append(f"without {', '.join(lacking)}")
    if bounds:
        parts.append(f"against the sum of kernel times: {', '.join(bounds)}")
    met: bool | None = None if value is None or lacking else value <= FLOOR_LIMIT
    if any(_failed(timed.get(name, {}).get("pygraph")) for name in names):
        met = False
    return Target(
        "floor",
        "geometric mean of pygraph's latency over the floor's",
        met,
        value,
        FLOOR_LIMIT,
        "; ".join(parts),
    )


def _right_target(name: str, own: Result | None) -> Target:
    detail = ""
    if own is not None:
        found = bits(own)
        detail = own.error or (f"bits: {found}" if found else "")
        served = own.verdict.get("served")
        if served and served["replays"] < served["calls"]:
            detail += f"; graphs served {served['replays']} of {served['calls']} calls"
    met = None if own is None else own.correct
    requirement = "losses, gradients and weights as of the same code without graphs"
    return Target(f"right, {name}", requirement, met, detail=detail)


def _latency_target(name: str, modes: dict[str, Result]) -> Target:
    value, detail = over_torch(modes)
    lacking = any(latency(modes, mode) is None for mode in TORCH_MODES)
    met = None if value is None else False if value > 1.0 else None if lacking else True
    if _failed(modes.get("pygraph")):
        met, detail = False, "pygraph was not timed"
    return Target(
        f"latency, {name}",
        "pygraph at most the faster of default and reduce-overhead",
        met,
        value,
        1.0,
        detail if modes else "",
    )


def _copies_target(name: str, own: Result | None) -> Target:
    value = own.bytes_copied if own is not None and own.timed else None
    met = None if value is None else value == 0.0
    detail = ""
    if own is not None:
        replayed = f", {own.coverage:.0%} of calls replayed" if own.coverage is not None else ""
        detail = f"{own.graphs or 0} graphs, {len(own.fallbacks)} not graphed{replayed}"
        if _failed(own) or not own.fully_graphed:
            met = False
    return Target(f"copies, {name}", "bytes copied by a step", met, value, 0.0, detail)


def _memory_target(name: str, weights: dict[str, Weight]) -> Target:
    ratio, detail = peak_ratio(weights), ""
    met = None if ratio is None else ratio <= PEAK_LIMIT
    default, own = weights.get("default"), weights.get("pygraph")
    if ratio is not None and default is not None and own is not None:
        detail = f"{own.peak_mib:,.0f} of {default.peak_mib:,.0f} MiB"
    if own is not None and own.error is None and (not own.graphs or own.fallbacks):
        met = False
        detail += f"{'; ' if detail else ''}{len(own.fallbacks)} not graphed"
    return Target(f"memory, {name}", "peak at most that of default", met, ratio, PEAK_LIMIT, detail)
