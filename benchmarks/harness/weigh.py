"""What a mode needs of the GPU's memory, as growth over what was there before it was prepared, so
that modes that live together do not count for each other.

Both readings are taken when all garbage is gone and cuBLAS's workspaces with it: what frees those
in between (capturing does) would otherwise seem to need less than nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import modes
from benchmarks.harness.device import MIB, Memory, nbytes

WEIGHED_CALLS = 5
ROUGHLY_NONE = 1.0
"""MiB that a reading may be off, by rounding and small blocks."""


@dataclass
class Peaks:
    """What a record takes from it."""

    peak_mib: float | None = None
    reserved_mib: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def steady(runner: modes.Runner, bench: modes.Bench, calls: int) -> Memory:
    """Read behind some calls in the steady state, with their peaks."""
    device = bench.device
    device.tidy()
    device.restart_peaks()
    for n in range(calls):
        outputs = runner.run(bench.inputs[n % len(bench.inputs)])
        device.synchronize()
        if n + 1 < calls:
            outputs = ()
    # Read while the outputs live: in a private pool they are not idle, and not counted twice.
    found = device.memory()
    del outputs
    return found


def weigh(record: Any, runner: modes.Runner, bench: modes.Bench, before: Memory) -> None:
    """Peaks of some calls: the model, its inputs and what this mode added."""
    note_memory(record, before, steady(runner, bench, WEIGHED_CALLS), own_memory(bench))


def note_memory(record: Any, before: Memory, after: Memory, own: float) -> None:
    """From the readings to the figures; what cannot be is left out, with a note."""
    peak = after.peak_allocated - before.allocated
    reserved = max(peak, after.peak_reserved - before.reserved)
    driver = after.in_use - before.in_use
    note = None
    if before.idle is None or after.idle is None or before.private is None or after.private is None:
        note = "no peak: this torch does not tell what private pools hold"
    else:
        peak += max(0.0, after.idle - before.idle)
        reserved = max(peak, reserved)
        record.extra["private_mib"] = max(0.0, after.private - before.private)
        if peak < -ROUGHLY_NONE:
            note = f"no peak: {-peak:.0f} MiB less than before this mode, something else was freed"
    record.peak_mib = own + max(0.0, peak) if note is None else None
    record.reserved_mib = own + max(0.0, reserved) if reserved >= -ROUGHLY_NONE else None
    record.extra["driver_mib"] = own + driver if driver >= -ROUGHLY_NONE else None
    if note:
        record.extra["memory_note"] = note


def own_memory(bench: modes.Bench) -> float:
    tensors = [*bench.model.parameters(), *bench.model.buffers()]
    tensors += [tensor for inputs in bench.inputs for tensor in inputs]
    return nbytes(tensors) / MIB
