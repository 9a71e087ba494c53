"""The measurements as rich tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from benchmarks.first_light.record import Record
from benchmarks.harness.modes import MODES
from benchmarks.harness.record import by_mode
from benchmarks.harness.table import BAD, GOOD


def ratio(modes: Mapping[str, Record], over: str, under: str) -> float | None:
    """How many times as long `over` takes as `under`, where both were timed."""
    a, b = modes.get(over), modes.get(under)
    if a is None or b is None or not (a.timed and b.timed):
        return None
    return (a.latency_us or 0.0) / (b.latency_us or 1.0)


def _cell(record: Record | None, show: Callable[[Record], str]) -> Text:
    if record is None:
        return Text("-", style="dim")
    if not record.correct:
        return Text("failed", style="bold red")
    return Text(show(record))


def _speed_up(value: float | None, limit: bool = False) -> Text:
    if value is None:
        return Text("-", style="dim")
    style = "" if limit else "green" if value >= GOOD else "red" if value <= BAD else ""
    return Text(f"{value:.2f}x", style=style)


def _microseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def speed_up(records: Sequence[Record]) -> str:
    """Of one model: pygraph's latency, and how many times as long the other modes take."""
    modes = by_mode(records)[records[0].workload]
    ours = modes.get("pygraph")
    if ours is None or not ours.timed:
        timed = [each for each in modes.values() if each.timed]
        shown = [f"{each.mode} {_microseconds(each.latency_us)} us" for each in timed]
        return ", ".join([*shown, "pygraph was not timed"])
    ratios = {mode: ratio(modes, mode, "pygraph") for mode in MODES}
    over = [
        f"{value:.2f}x over {mode}"
        for mode, value in ratios.items()
        if value is not None and mode not in ("pygraph", "floor")
    ]
    return ", ".join([f"pygraph {_microseconds(ours.latency_us)} us", *over])


def latency_table(records: Sequence[Record]) -> Table:
    table = Table(title="latency, us (median; a sync after each call)", title_justify="left")
    table.add_column("model")
    for mode in MODES:
        table.add_column(mode, justify="right")
    table.add_column("pygraph vs default", justify="right")
    table.add_column("vs reduce-overhead", justify="right")
    table.add_column("over the floor", justify="right")
    for name, modes in by_mode(records).items():
        table.add_row(
            Text(f"{name} ({next(iter(modes.values())).batch})"),
            *(_cell(modes.get(mode), lambda r: _microseconds(r.latency_us)) for mode in MODES),
            _speed_up(ratio(modes, "default", "pygraph")),
            _speed_up(ratio(modes, "reduce-overhead", "pygraph")),
            _speed_up(ratio(modes, "pygraph", "floor"), limit=True),
        )
    return table


def _mode_table(
    title: str, records: Sequence[Record], show: Callable[[Record], str], skip: str = ""
) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("model")
    chosen = [mode for mode in MODES if mode != skip]
    for mode in chosen:
        table.add_column(mode, justify="right")
    for name, modes in by_mode(records).items():
        table.add_row(Text(name), *(_cell(modes.get(mode), show) for mode in chosen))
    return table


def host_table(records: Sequence[Record]) -> Table:
    return _mode_table(
        "host time per call / pipelined time per call, us",
        records,
        lambda r: f"{_microseconds(r.host_us)} / {_microseconds(r.pipelined_us)}",
    )


def memory_table(records: Sequence[Record]) -> Table:
    def show(record: Record) -> str:
        copied = "-" if record.bytes_copied is None else f"{record.bytes_copied:,.0f}"
        peaks = (record.peak_mib, record.reserved_mib)
        mib = " / ".join("-" if value is None else f"{value:,.0f}" for value in peaks)
        return f"{mib} / {copied}"

    return _mode_table(
        "peak MiB allocated / MiB reserved / bytes copied per call", records, show, skip="floor"
    )


def check_table(records: Sequence[Record]) -> Table:
    def show(record: Record) -> str:
        error = "-" if record.relative_error is None else f"{record.relative_error:.0e}"
        same = {True: ", bit-equal", False: ", not bit-equal", None: ""}
        compile_s = "-" if record.compile_s is None else f"{record.compile_s:.1f} s"
        return f"{error}{same[record.bit_equal_to_default]}; {compile_s}"

    return _mode_table(
        "relative error against eager, bits against default; time to the steady state",
        records,
        show,
    )


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
