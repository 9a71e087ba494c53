"""A call's timelines as a picture: for each mode what the host did, and what the GPU did."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.callables.timeline import Timeline
from benchmarks.first_light.chart import COLOURS, INK
from benchmarks.harness.record import restored

CALL, HEIGHT = "#e6e9ed", 0.34
"""The colour of the span in which the host had not returned; the height of a lane."""


def draw(content: Mapping[str, Any], path: Path) -> bool:
    """Write a picture of the first row that has timelines, PNG or SVG by the name; False where
    none has."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "callables"  # the same picture for the same figures
    from matplotlib import pyplot

    found = [row for row in content["rows"].values() if row.get("timelines")]
    if not found:
        return False
    lines = {mode: restored(Timeline, each) for mode, each in found[0]["timelines"].items()}
    figure, axes = pyplot.subplots(figsize=(10.0, 1.1 * len(lines) + 1.2), dpi=150)
    for place, (mode, line) in enumerate(lines.items()):
        _draw_mode(axes, -place, COLOURS[mode], line)
    axes.set_yticks([-place for place in range(len(lines))], list(lines), fontsize=8)
    axes.set_xlabel("microseconds since the call began, with the profiler", fontsize=8)
    title = f"{found[0]['about']}. Above: the host; below: the GPU"
    axes.set_title(f"{title}\n{_machine(content['env'])}", fontsize=8, loc="left", color=INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlim(left=0.0)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    return True


def _draw_mode(axes: Any, place: int, colour: str, line: Timeline) -> None:
    axes.broken_barh([(0.0, line.host_us)], (place + 0.02, HEIGHT), color=CALL)
    axes.broken_barh(line.launches, (place + 0.02, HEIGHT), color=INK)
    axes.broken_barh(line.kernels, (place - 0.02 - HEIGHT, HEIGHT), color=colour)
    axes.annotate(
        f" {line.total_us:,.0f}", (line.total_us, place), fontsize=7, va="center", color=INK
    )


def _machine(env: Mapping[str, Any]) -> str:
    return f"{env.get('gpu')}, driver {env.get('driver')}, torch {env.get('torch')}"
