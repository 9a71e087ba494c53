"""The training benchmark's figures as rich tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from benchmarks.harness.record import by_mode
from benchmarks.training.modes import MODES
from benchmarks.training.record import Result, Weight
from benchmarks.training.targets import bits, over_floor, over_torch, peak_ratio


def _ratio(value: float | None, limit: float) -> Text:
    if value is None:
        return Text("-", style="dim")
    return Text(f"{value:.3f}", style="green" if value <= limit else "red")


def _cell(result: Result | None) -> Text:
    if result is None:
        return Text("-", style="dim")
    if not result.timed:
        return Text("failed", style="bold red")
    return Text(f"{result.latency_us:,.0f}{' (kernels)' if result.is_bound else ''}")


def latency_table(results: Sequence[Result], weights: Sequence[Weight]) -> Table:
    table = Table(title="a training step, us (median; a sync after each)", title_justify="left")
    table.add_column("model")
    for mode in MODES:
        table.add_column(mode, justify="right")
    for name in ("pygraph / floor", "pygraph / best of torch", "peak / default"):
        table.add_column(name, justify="right")
    weighed = by_mode(weights)
    for name, modes in by_mode(results).items():
        table.add_row(
            Text(f"{name} ({next(iter(modes.values())).batch})"),
            *(_cell(modes.get(mode)) for mode in MODES),
            _ratio(over_floor(modes), 1.10),
            _ratio(over_torch(modes)[0], 1.0),
            _ratio(peak_ratio(weighed.get(name, {})), 1.02),
        )
    return table


def detail_table(results: Sequence[Result]) -> Table:
    table = Table(title="host time / pipelined time of a step, us", title_justify="left")
    table.add_column("model")
    for mode in MODES:
        table.add_column(mode, justify="right")
    for name in ("bits", "graphs", "not graphed", "copied"):
        table.add_column(name, justify="right")
    for name, modes in by_mode(results).items():
        own = modes.get("pygraph")
        table.add_row(
            Text(name),
            *(_times(modes.get(mode)) for mode in MODES),
            "-" if own is None else bits(own) or "-",
            "-" if own is None or own.graphs is None else str(own.graphs),
            "-" if own is None else str(len(own.fallbacks)),
            "-" if own is None or own.bytes_copied is None else f"{own.bytes_copied:,.0f}",
        )
    return table


def _times(result: Result | None) -> Text:
    if result is None or result.host_us is None or result.pipelined_us is None:
        return Text("-", style="dim")
    return Text(f"{result.host_us:,.0f} / {result.pipelined_us:,.0f}")
