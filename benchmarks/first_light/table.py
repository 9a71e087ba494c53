"""The measurements as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.first_light.record import Record
from benchmarks.harness.figures import over
from benchmarks.harness.modes import MODES
from benchmarks.harness.record import by_mode
from benchmarks.harness.shown import NOTHING, count, mebibytes, microseconds
from benchmarks.harness.table import (
    MODEL,
    MODEL_AND_BATCH,
    Column,
    Table,
    by_modes,
    graded,
    made,
)


def speed_up(records: Sequence[Record]) -> str:
    """Of one model: pygraph's latency, and how many times as long the other modes take."""
    modes = by_mode(records)[records[0].workload]
    ours = modes.get("pygraph")
    if ours is None or not ours.timed:
        timed = [each for each in modes.values() if each.timed]
        times = [f"{each.mode} {microseconds(each.latency_us)} us" for each in timed]
        return ", ".join([*times, "pygraph was not timed"])
    ratios = {mode: over(modes, mode, "pygraph") for mode in MODES}
    said = [
        f"{value:.2f}x over {mode}"
        for mode, value in ratios.items()
        if value is not None and mode not in ("pygraph", "floor")
    ]
    return ", ".join([f"pygraph {microseconds(ours.latency_us)} us", *said])


def _times(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}x"


def _faster(head: str, reference: str) -> Column:
    def cell(row: Any) -> str:
        value = over(row[1], reference, "pygraph")
        return graded(value, _times(value))

    return Column(head, cell)


def tables(records: Sequence[Record]) -> list[Table]:
    def of_modes(title: str, show: Callable[[Record], str], modes: Iterable[str] = MODES) -> Table:
        return made(models, [MODEL, *by_modes(modes, show)], title=title)

    models = list(by_mode(records).items())
    latency = [
        MODEL_AND_BATCH,
        *by_modes(MODES, lambda r: microseconds(r.latency_us)),
        _faster("pygraph vs default", "default"),
        _faster("vs reduce-overhead", "reduce-overhead"),
        Column("over the floor", lambda row: _times(over(row[1], "pygraph", "floor"))),
    ]
    return [
        made(models, latency, title="latency, us (median; a sync after each call)"),
        of_modes(
            "host time per call / pipelined time per call, us",
            lambda r: f"{microseconds(r.host_us)} / {microseconds(r.pipelined_us)}",
        ),
        of_modes(
            "peak MiB allocated / MiB reserved / bytes copied per call",
            lambda r: " / ".join(
                [mebibytes(r.peak_mib), mebibytes(r.reserved_mib), count(r.bytes_copied)]
            ),
            [mode for mode in MODES if mode != "floor"],
        ),
        of_modes(
            "relative error against eager, bits against default; time to the steady state", _check
        ),
    ]


def _check(record: Record) -> str:
    error = NOTHING if record.relative_error is None else f"{record.relative_error:.0e}"
    same = {True: ", bit-equal", False: ", not bit-equal", None: ""}
    compile_s = NOTHING if record.compile_s is None else f"{record.compile_s:.1f} s"
    return f"{error}{same[record.bit_equal_to_default]}; {compile_s}"


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """The geometric means, for the last lines of a run."""
    lines = []
    for label, found in summary["latency"].items():
        if found["geomean"] is not None:
            host = summary["host"][label]["geomean"]
            lines.append(
                f"{label}: {found['geomean']:.2f} (host time: {host:.2f}), "
                f"geometric mean of {found['models']} models"
            )
    counts = summary["counts"]
    if counts["pygraph_compared"]:
        lines.append(
            f"bit-equal to torch.compile: {counts['pygraph_bit_equal']} of "
            f"{counts['pygraph_compared']} models"
        )
    return lines


def time_line(phases: Iterable[Mapping[str, float]], total: float) -> str:
    """Where the time of a whole run went."""
    spent: dict[str, float] = {}
    for each in phases:
        for name, seconds in each.items():
            spent[name] = spent.get(name, 0.0) + seconds
    spent["elsewhere"] = max(0.0, total - sum(spent.values()))
    parts = ", ".join(f"{name} {seconds:.0f}" for name, seconds in spent.items())
    return f"time: {total:.0f} s ({parts})"
