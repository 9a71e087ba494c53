"""The training benchmark's figures as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.harness.figures import over
from benchmarks.harness.record import by_mode
from benchmarks.harness.shown import NOTHING, count, microseconds
from benchmarks.harness.table import (
    MODEL,
    MODEL_AND_BATCH,
    Column,
    Table,
    by_modes,
    made,
    marked,
)
from benchmarks.harness.targets import PEAK_LIMIT
from benchmarks.training.modes import MODES
from benchmarks.training.record import Result, Weight
from benchmarks.training.targets import FLOOR_LIMIT, bits, over_torch, peak_ratio


def _at_most(head: str, limit: float, value: Callable[[Any], float | None]) -> Column:
    def cell(row: Any) -> str:
        found = value(row)
        if found is None:
            return NOTHING
        return marked(f"{found:.3f}", "good" if found <= limit else "bad")

    return Column(head, cell)


def _latency(result: Result) -> str:
    return microseconds(result.latency_us) + (" (kernels)" if result.is_bound else "")


def latency_table(results: Sequence[Result], weights: Sequence[Weight]) -> Table:
    weighed = by_mode(weights)
    columns = [
        MODEL_AND_BATCH,
        *by_modes(MODES, _latency),
        _at_most("pygraph / floor", FLOOR_LIMIT, lambda row: over(row[1], "pygraph", "floor")),
        _at_most("pygraph / best of torch", 1.0, lambda row: over_torch(row[1])[0]),
        _at_most("peak / default", PEAK_LIMIT, lambda row: peak_ratio(weighed.get(row[0], {}))),
    ]
    title = "a training step, us (median; a sync after each)"
    return made(by_mode(results).items(), columns, title=title)


def detail_table(results: Sequence[Result]) -> Table:
    def own(head: str, show: Callable[[Result], str | None]) -> Column:
        return Column(
            head, lambda row: (show(row[1]["pygraph"]) if "pygraph" in row[1] else "") or NOTHING
        )

    columns = [
        MODEL,
        *by_modes(MODES, lambda r: f"{microseconds(r.host_us)} / {microseconds(r.pipelined_us)}"),
        own("bits", bits),
        own("graphs", lambda result: count(result.graphs)),
        own("not graphed", lambda result: str(len(result.fallbacks))),
        own("copied", lambda result: count(result.bytes_copied)),
    ]
    title = "host time / pipelined time of a step, us"
    return made(by_mode(results).items(), columns, title=title)
