"""What is stored of one model in one mode of `./run demo`, and the summary over the models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.first_light.models import NOT_REAL
from benchmarks.harness.measure import geomean
from benchmarks.harness.timed import Timed

REQUIRED = (
    "workload",
    "batch",
    "mode",
    "latency_us",
    "host_us",
    "pipelined_us",
    "bytes_copied",
    "peak_mib",
    "compile_s",
    "correct",
)

RATIOS = {
    "pygraph/floor": ("pygraph", "floor"),
    "reduce-overhead/floor": ("reduce-overhead", "floor"),
    "default/floor": ("default", "floor"),
    "reduce-overhead/pygraph": ("reduce-overhead", "pygraph"),
    "default/pygraph": ("default", "pygraph"),
    "eager/pygraph": ("eager", "pygraph"),
}
"""Ratios of latencies. Over pygraph: how many times faster pygraph is. Over the floor: how far a
mode is from the limit."""


@dataclass
class Record(Timed):
    """One model in one mode: calls."""

    bytes_copied: float | None = None
    """Per call, to bring inputs in place or results out."""
    peak_mib: float | None = None
    """What calls in the steady state need at most: the model, all inputs, and by how much the
    allocated memory grew since before this mode was prepared. Private pools of graphs count whole,
    since nobody else can use what their graphs leave free in them. None, and a note in `extra`,
    where the readings cannot mean that."""
    reserved_mib: float | None = None
    """The same of what torch's allocator holds; at least `peak_mib`."""
    compile_s: float | None = None
    """Up to the steady state. Modes share Inductor's caches unless they were told not to, and then
    the first that compiles pays for all."""
    error: str | None = None
    relative_error: float | None = None
    """Against eager."""
    fresh: bool | None = None
    bit_equal_to_default: bool | None = None
    max_difference_to_default: float | None = None
    default_spread: float | None = None
    """Largest difference between two runs of the default mode."""
    extra: dict[str, Any] = field(default_factory=dict)


def _ratios(records: Sequence[Record], field_name: str, models: set[str]) -> dict[str, Any]:
    values = {
        (record.workload, record.mode): getattr(record, field_name)
        for record in records
        if record.timed and record.workload in models
    }
    found: dict[str, Any] = {}
    for label, (over, under) in RATIOS.items():
        pairs = [
            values[name, over] / values[name, under]
            for name in sorted(models)
            if values.get((name, over)) and values.get((name, under))
        ]
        found[label] = {"geomean": geomean(pairs), "models": len(pairs)}
    return found


def summarize(records: Sequence[Record]) -> dict[str, Any]:
    """Geometric means over the real models, and what went wrong."""
    names = {record.workload for record in records}
    real = names.difference(NOT_REAL)
    failed = [record for record in records if not record.correct]
    compared = [record for record in records if record.bit_equal_to_default is not None]
    ours = [record for record in compared if record.mode == "pygraph"]
    return {
        "latency": _ratios(records, "latency_us", real),
        "host": _ratios(records, "host_us", real),
        "counts": {
            "models": len(names),
            "real_models": len(real),
            "records": len(records),
            "timed": sum(record.timed for record in records),
            "failed": len(failed),
            "pygraph_bit_equal": sum(bool(record.bit_equal_to_default) for record in ours),
            "pygraph_compared": len(ours),
        },
        "failed": [f"{record.workload}, {record.mode}: {record.error}" for record in failed],
    }


def document(
    records: Sequence[Record],
    environment: Mapping[str, Any],
    command: str,
    phases: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    """`phases`: by model, where the seconds went."""
    return {
        "env": dict(environment),
        "command": command,
        "records": [asdict(record) for record in records],
        "summary": summarize(records),
        "phases": {name: dict(seconds) for name, seconds in (phases or {}).items()},
    }
