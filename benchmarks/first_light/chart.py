"""The measurements as a picture: how much faster than torch.compile each mode is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.first_light.record import Record
from benchmarks.harness.figures import over
from benchmarks.harness.record import by_mode

COLOURS = {
    "eager": "#b8bec7",
    "default": "#7d8796",
    "reduce-overhead": "#e0a33e",
    "pygraph": "#1f7a4d",
    "floor": "#ffffff",
}
INK = "#222831"


def draw(records: Sequence[Record], environment: Mapping[str, Any], path: Path) -> bool:
    """Write a PNG; False where no model has a timed default to compare with."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = {
        name: modes
        for name, modes in by_mode(records).items()
        if "default" in modes and modes["default"].timed
    }
    present = [mode for mode in COLOURS if any(mode in modes for modes in models.values())]
    if not models:
        return False
    figure, axes = pyplot.subplots(figsize=(max(7.0, 1.45 * len(models) + 2.5), 4.8), dpi=150)
    width = 0.8 / len(present)
    for place, mode in enumerate(present):
        offset = (place - (len(present) - 1) / 2) * width
        values = [over(modes, "default", mode) for modes in models.values()]
        bars = axes.bar(
            [position + offset for position in range(len(models))],
            [value or 0.0 for value in values],
            width * 0.92,
            color=COLOURS[mode],
            edgecolor=INK if mode == "floor" else "none",
            hatch="////" if mode == "floor" else None,
            linewidth=0.8,
            label="floor (limit)" if mode == "floor" else mode,
        )
        for position, modes in enumerate(models.values()):
            if mode in modes and not modes[mode].timed:
                axes.text(position + offset, 0.03, "failed", rotation=90, ha="center", fontsize=7)
        if mode == "pygraph":
            labels = ["" if value is None else f"{value:.2f}" for value in values]
            axes.bar_label(bars, labels, fontsize=7, padding=2, color=COLOURS[mode], weight="bold")
    axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
    names = [f"{_wrap(name)}\nbatch {_batch(modes)}" for name, modes in models.items()]
    axes.set_xticks(range(len(models)), names, fontsize=7)
    axes.set_ylabel("speed-up over torch.compile (latency)", fontsize=9)
    axes.set_title(_title(environment), fontsize=9, loc="left", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01, y=0.14)
    axes.legend(fontsize=8, frameon=False, ncols=len(present), loc="upper left")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
    return True


def _batch(modes: Mapping[str, Record]) -> int:
    return next(iter(modes.values())).batch


def _wrap(name: str) -> str:
    """Long class names in two lines, cut where "For" begins."""
    head, separator, tail = name.partition("For")
    return f"{head}\n{separator}{tail}" if tail else name.replace("_patch", "\n_patch")


def _title(environment: Mapping[str, Any]) -> str:
    parts = [environment.get("gpu"), f"torch {environment.get('torch')}"]
    if environment.get("driver"):
        parts.append(f"driver {environment['driver']}")
    return ", ".join(str(part) for part in parts if part)
