"""Two records of one suite: what got slower or faster beside torch.compile's default, which the
machine and the version of torch move as well."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import Modes, figure
from benchmarks.harness.record import NotARecord, by_mode, read_json

NOISE = 1.05
"""Changes up to this factor, and down to one over it, are not told."""


def read(path: Path, key: str, command: str) -> dict[str, Any]:
    """A record that has `records` and something under this key. Raises NotARecord."""
    needed = f"needed: a record of ./run {command}"
    content = read_json(path, needed)
    if not isinstance(content, dict) or not {"records", key} <= content.keys():
        raise NotARecord(f"{path}: {needed}")
    return content


def change(before: Modes, now: Modes, field: str = "latency_us") -> float | None:
    """How many times what it was is pygraph's figure, over the same of default's."""
    found = [
        figure(modes, mode, field)
        for modes, mode in (
            (now, "pygraph"),
            (before, "pygraph"),
            (before, "default"),
            (now, "default"),
        )
    ]
    if not all(found):
        return None
    ours, ours_before, default_before, default = found
    return float(ours / ours_before * default_before / default)


def changes(
    before: Sequence[Any], now: Sequence[Any], field: str = "latency_us"
) -> dict[str, float]:
    """By workload that both have, the largest first."""
    old, new = by_mode(before), by_mode(now)
    known = {name: change(old[name], new[name], field) for name in new if name in old}
    found = {name: value for name, value in known.items() if value is not None}
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def lines(
    before: Sequence[Any], now: Sequence[Any], many: str, field: str = "latency_us"
) -> list[str]:
    """`many`: what the suite calls its workloads."""
    found = changes(before, now, field)
    slower = [f"{name} {value:.2f}" for name, value in found.items() if value > NOISE]
    faster = [f"{name} {value:.2f}" for name, value in found.items() if value < 1 / NOISE]
    return [
        f"pygraph's {field.removesuffix('_us')} over its earlier one, with default's change taken "
        f"out, of {len(found)} {many}",
        f"slower by more than {NOISE - 1:.0%}: {', '.join(slower) or 'none'}",
        f"faster by more than {NOISE - 1:.0%}: {', '.join(reversed(faster)) or 'none'}",
    ]
