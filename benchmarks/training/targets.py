"""What is asked of training, judged on stored figures.

Times and copies are from the clocks' process, memory from a process per mode. A mode that is wrong
was not timed, and meets nothing; neither does pygraph where it fell back to run without graphs,
since what runs uncaptured copies nothing and needs no more memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from benchmarks.harness.figures import Modes, figure, over
from benchmarks.harness.measure import geomean
from benchmarks.harness.record import by_mode
from benchmarks.harness.targets import PEAK_LIMIT, Target, judged
from benchmarks.training.record import Result, Weight

FLOOR_LIMIT = 1.10
TORCH_MODES = ("default", "reduce-overhead")


def over_torch(modes: Modes) -> tuple[float | None, str]:
    """pygraph over the faster of torch's modes that were timed, and which that is."""
    times = {mode: figure(modes, mode, "latency_us") for mode in TORCH_MODES}
    lacking = [mode for mode, value in times.items() if not value]
    if len(lacking) == len(times):
        return None, "neither default nor reduce-overhead was timed"
    best = min((mode for mode in times if mode not in lacking), key=lambda mode: times[mode])
    detail = f"{lacking[0]} was not timed" if lacking else f"{best} is the faster of torch's"
    return over(modes, "pygraph", best), detail


def peak_ratio(weights: Modes) -> float | None:
    return over(weights, "pygraph", "default", "peak_mib")


def evaluate(
    names: Sequence[str], results: Iterable[Result], weights: Iterable[Weight]
) -> list[Target]:
    """One target for all models together, four for each; those not measured included."""
    timed, weighed = by_mode(results), by_mode(weights)
    targets = [_floor({name: timed.get(name, {}) for name in names})]
    for name in names:
        modes = timed.get(name, {})
        targets += [
            _right(name, modes.get("pygraph")),
            _latency(name, modes),
            _copies(name, modes.get("pygraph")),
            _memory(name, weighed.get(name, {})),
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


def _failed(modes: Modes) -> bool:
    """pygraph ran, and was wrong or raised."""
    return "pygraph" in modes and not modes["pygraph"].timed


def _floor(models: Mapping[str, Modes]) -> Target:
    ratios = {name: over(modes, "pygraph", "floor") for name, modes in models.items()}
    known = [ratio for ratio in ratios.values() if ratio]
    lacking = [name for name, ratio in ratios.items() if not ratio]
    bounds = [name for name, modes in models.items() if figure(modes, "floor", "is_bound")]
    detail = f"{len(known)} of {len(models)} models"
    detail += f"; without {', '.join(lacking)}" if lacking else ""
    detail += f"; against the sum of kernel times: {', '.join(bounds)}" if bounds else ""
    requirement = "geometric mean of pygraph's latency over the floor's"
    failed = any(map(_failed, models.values()))
    target = judged("floor", requirement, geomean(known), FLOOR_LIMIT, detail, failed=failed)
    return replace(target, met=None) if lacking and not failed else target


def _right(name: str, own: Result | None) -> Target:
    requirement = "losses, gradients and weights as of the same code without graphs"
    if own is None:
        return Target(f"right, {name}", requirement, None)
    found, served = bits(own), own.verdict.get("served")
    detail = own.error or (f"bits: {found}" if found else "")
    if served and served["replays"] < served["calls"]:
        detail += f"; graphs served {served['replays']} of {served['calls']} calls"
    return Target(f"right, {name}", requirement, own.correct, detail=detail)


def _latency(name: str, modes: Modes) -> Target:
    value, detail = over_torch(modes) if modes else (None, "")
    complete = all(figure(modes, mode, "latency_us") for mode in TORCH_MODES)
    requirement = "pygraph at most the faster of default and reduce-overhead"
    failed = _failed(modes)
    detail = "pygraph was not timed" if failed else detail
    target = f"latency, {name}"
    return judged(target, requirement, value, 1.0, detail, failed=failed, complete=complete)


def _copies(name: str, own: Result | None) -> Target:
    target, requirement = f"copies, {name}", "bytes copied by a step"
    if own is None:
        return judged(target, requirement, None, 0.0)
    detail = f"{own.graphs or 0} graphs, {len(own.fallbacks)} not graphed"
    if own.coverage is not None:
        detail += f", {own.coverage:.0%} of calls replayed"
    value, failed = own.bytes_copied if own.timed else None, not (own.timed and own.fully_graphed)
    return judged(target, requirement, value, 0.0, detail, failed=failed)


def _memory(name: str, weights: Modes) -> Target:
    ratio, own = peak_ratio(weights), weights.get("pygraph")
    parts = []
    if ratio is not None:
        parts.append(
            f"{weights['pygraph'].peak_mib:,.0f} of {weights['default'].peak_mib:,.0f} MiB"
        )
    failed = own is not None and own.error is None and bool(not own.graphs or own.fallbacks)
    if failed:
        parts.append(f"{len(weights['pygraph'].fallbacks)} not graphed")
    target, requirement = f"memory, {name}", "peak at most that of default"
    return judged(target, requirement, ratio, PEAK_LIMIT, "; ".join(parts), failed=failed)
