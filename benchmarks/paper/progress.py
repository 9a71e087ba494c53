"""What every workload is at, as a table that is drawn anew while the benchmark runs, or as lines
where the output is no terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from benchmarks.harness.turns import status
from benchmarks.paper.record import Row

REFRESH_S = 0.5
SHOWN = ("default", "reduce-overhead", "pygraph", "floor")


class Progress:
    """`turns`: the folder of turns.py, where each worker says what it is at. Not thread-safe."""

    def __init__(self, console: Console, names: Sequence[str], turns: Path) -> None:
        self._console, self._names, self._turns = console, list(names), turns
        self._started = time.monotonic()
        self._done: dict[str, tuple[Row | None, float]] = {}
        self._drawn = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live = Live(self.table(), console=self._console, auto_refresh=False)
            self._live.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._live is not None:
            self._live.update(self.table(), refresh=True)
            self._live.__exit__(*raised)

    def tick(self) -> None:
        """Called often; draws where the last time is long enough ago."""
        now = time.monotonic()
        if self._live is not None and now - self._drawn > REFRESH_S:
            self._drawn = now
            self._live.update(self.table(), refresh=True)

    def measured(self, name: str, row: Row | None, seconds: float) -> None:
        self._done[name] = (row, seconds)
        if self._live is None:
            style = "red" if row is None or row.error else ""
            self._console.print(Text(f"  {name}: {summary(row)} ({seconds:.0f} s)", style=style))

    def remaining_s(self) -> float | None:
        """By what the workloads that are done took; None before the first."""
        if not self._done:
            return None
        spent = time.monotonic() - self._started
        return spent / len(self._done) * (len(self._names) - len(self._done))

    def table(self) -> Group:
        table = Table(title="the paper's workloads", title_justify="left")
        for name in ("workload", "state", "seconds"):
            table.add_column(name, justify="right" if name == "seconds" else "left")
        for name in self._names:
            if name in self._done:
                row, seconds = self._done[name]
                style = "red" if row is None or row.error else "green"
                table.add_row(name, Text(summary(row), style=style), f"{seconds:.0f}")
            else:
                table.add_row(name, Text(status(self._turns, name), style="dim"), "")
        elapsed = time.monotonic() - self._started
        line = f"{len(self._done)} of {len(self._names)}, {elapsed:.0f} s elapsed"
        remaining = self.remaining_s()
        line += "" if remaining is None else f", about {remaining:.0f} s to go"
        return Group(table, Text(line))


def summary(row: Row | None) -> str:
    """A workload's latencies in one line, or why there are none."""
    if row is None:
        return "not run"
    if row.error is not None:
        return row.error
    shown = []
    for mode in SHOWN:
        result = row.mode(mode)
        if result is not None and result.timed and result.latency_us is not None:
            shown.append(f"{mode} {result.latency_us:,.0f}{' (bound)' if result.is_bound else ''}")
        elif result is not None:
            shown.append(f"{mode} failed")
    return ", ".join(shown) + " us"
