"""The goals, judged on stored figures: of each row, that pygraph is right, its own goal, and that
nothing is held between calls that eager does not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.callables.catalogue import ROWS
from benchmarks.callables.modes import OWN
from benchmarks.callables.record import Record, beyond_eager
from benchmarks.harness.figures import figure, over
from benchmarks.harness.record import by_mode
from benchmarks.harness.targets import Target, judged

HELD_LIMIT = 0.0
SEGMENT_MIB = 2.0
"""What torch's allocator takes from the driver at least: readings are not finer."""

Modes = Mapping[str, Record]


def evaluate(names: Sequence[str], records: Sequence[Record]) -> list[Target]:
    found = by_mode(records)
    targets = []
    for name in names:
        modes = found.get(name, {})
        targets += [_right(name, modes.get(OWN)), _held(name, modes)]
        if (own := goal(name, modes)) is not None:
            targets.append(own)
    return targets


def goal(name: str, modes: Modes) -> Target | None:
    """What is asked of this row alone, if anything."""
    wanted = ROWS[name].goal
    if wanted is None:
        return None
    if wanted.reference is None:
        value = figure(modes, OWN, wanted.field)
    elif wanted.inverse:
        value = over(modes, wanted.reference, OWN, wanted.field)
    else:
        value = over(modes, OWN, wanted.reference, wanted.field)
    return judged(
        f"goal, {name}",
        f"pygraph: {wanted.requirement}",
        value,
        wanted.limit,
        least=wanted.inverse,
        failed=_failed(modes),
    )


def _failed(modes: Modes) -> bool:
    """pygraph ran, and was wrong or raised."""
    return OWN in modes and modes[OWN].skipped is None and not modes[OWN].timed


def _right(name: str, own: Record | None) -> Target:
    requirement = "results and state as eager's"
    if own is None or own.skipped is not None:
        detail = own.skipped or "" if own is not None else ""
        return Target(f"right, {name}", requirement, None, detail=detail)
    bits = {True: "bit-equal", False: "within eager's spread", None: ""}
    detail = own.error or bits[own.verdict.get("bit_equal")]
    if own.fallbacks:
        detail += "; graphed in part" if own.graphs else "; not graphed"
    return Target(f"right, {name}", requirement, own.correct, detail=detail)


def _held(name: str, modes: Modes) -> Target:
    found, value, detail = beyond_eager(modes, OWN), None, ""
    if found is not None:
        detail = ", ".join(f"{kind} {each:+,.1f}" for kind, each in found.items())
        most = max(found.values())
        value = most if most > SEGMENT_MIB else 0.0
    requirement = "MiB held between calls beyond eager's, by torch or the driver"
    return judged(f"held, {name}", requirement, value, HELD_LIMIT, detail, failed=_failed(modes))
