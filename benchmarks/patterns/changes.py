"""Two records of the patterns: what got slower or faster beside torch.compile's default, which the
machine and the version of torch move as well."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.figures import Modes, figure
from benchmarks.harness.record import NotARecord, by_mode, read_json
from benchmarks.patterns.record import Record, read_records

NOISE = 1.05
"""Changes up to this factor, and down to one over it, are not told."""
NEEDED = "needed: a record of ./run bench-patterns"


def read(path: Path) -> list[Record]:
    """Raises NotARecord."""
    content = read_json(path, NEEDED)
    if not isinstance(content, dict) or not {"records", "patterns"} <= content.keys():
        raise NotARecord(f"{path}: {NEEDED}")
    return read_records(content)


def change(before: Modes, now: Modes) -> float | None:
    """How many times what it was is pygraph's latency, over the same of default's."""
    latencies = [
        figure(modes, mode, "latency_us")
        for modes, mode in (
            (now, "pygraph"),
            (before, "pygraph"),
            (before, "default"),
            (now, "default"),
        )
    ]
    if not all(latencies):
        return None
    ours, ours_before, default_before, default = latencies
    return float(ours / ours_before * default_before / default)


def changes(before: Sequence[Record], now: Sequence[Record]) -> dict[str, float]:
    """By pattern that both have, the largest first."""
    old, new = by_mode(before), by_mode(now)
    known = {name: change(old[name], new[name]) for name in new if name in old}
    found = {name: value for name, value in known.items() if value is not None}
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def lines(before: Sequence[Record], now: Sequence[Record]) -> list[str]:
    found = changes(before, now)
    slower = [f"{name} {value:.2f}" for name, value in found.items() if value > NOISE]
    faster = [f"{name} {value:.2f}" for name, value in found.items() if value < 1 / NOISE]
    return [
        f"pygraph's latency over its earlier one, with default's change taken out, of {len(found)} "
        "patterns",
        f"slower by more than {NOISE - 1:.0%}: {', '.join(slower) or 'none'}",
        f"faster by more than {NOISE - 1:.0%}: {', '.join(reversed(faster)) or 'none'}",
    ]
