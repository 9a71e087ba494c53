"""The report's charts as SVG for a page: text stays text, and ink takes the page's colour.

The same rows always give the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.paper.record import Row
from benchmarks.paper.report import figures
from benchmarks.paper.report.figures import (
    COMPILED,
    DEFAULT,
    EAGER,
    FLOOR,
    OWN,
    PARTS,
    TORCH,
    Rows,
    figure,
    mean,
    over,
    speed_up,
)

COLOURS = {
    EAGER: "#9aa5b1",
    DEFAULT: "#647589",
    TORCH: "#d98e04",
    OWN: "#1b8f5a",
    FLOOR: "none",
    "pygraph-untransformed": "#b5533c",
    "pygraph-copies": "#4f7cac",
    "pygraph-always": "#7a5195",
    "pygraph-parallel": "#2b6f9e",
}
INK = "#010203"
"""Stands for the text's colour until the chart is in a page."""
OWN_INK = "#010204"
"""The same for words about pygraph."""
STYLE = {
    "svg.hashsalt": "pygraph",
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "font.size": 9.0,
    "legend.frameon": False,
}
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
MEAN = "geomean"
LABEL_SIZE = 7.5


@dataclass(frozen=True)
class Drawn:
    svg: str
    alt: str
    """What the chart shows, in words."""


@dataclass(frozen=True)
class Series:
    mode: str
    values: Sequence[float | None]
    failed: Sequence[bool] = ()
    """Per value, whether the mode was run and gave none."""


def draw(name: str, rows: Rows) -> Drawn | None:
    """None where there is nothing to show."""
    return CHARTS[name](rows)


def speed_ups(rows: Rows) -> Drawn | None:
    """The paper's figure 7: over default, per workload and as a mean."""
    modes = (EAGER, TORCH, OWN, FLOOR)
    shown = [row for row in rows.values() if row.latency(DEFAULT)]
    series = [_with_mean(mode, shown, speed_up(DEFAULT, mode)) for mode in modes]
    names = [*(row.name for row in shown), MEAN]
    own = series[modes.index(OWN)].values[-1]
    said = "" if own is None else f" The geometric mean of pygraph is {own:.2f}."
    alt = f"Bars: speed-up over default of {_listed(modes)} for {len(shown)} workloads.{said}"
    return _bars("speed-up", names, series, "speed-up over default", alt, line=1.0, labelled=OWN)


def _with_mean(mode: str, shown: Sequence[Row], value: figures.Ratio) -> Series:
    values = [*map(value, shown), mean(shown, value).value]
    return Series(mode, values, [row.mode(mode) is not None and not value(row) for row in shown])


def compile_times(rows: Rows) -> Drawn | None:
    """The paper's figure 13."""
    shown = [row for row in rows.values() if _any(row, COMPILED, "compile_s")]
    series = [Series(mode, [figure(row, mode, "compile_s") for row in shown]) for mode in COMPILED]
    alt = f"Bars: seconds to the steady state of {_listed(COMPILED)} for {len(shown)} workloads."
    names = [row.name for row in shown]
    return _bars("compile", names, series, "seconds to the steady state", alt)


def floor_distances(rows: Rows) -> Drawn | None:
    """How far from the limit, the farthest first."""
    shown = [row for row in figures.by_distance(rows.values()) if row.latency(FLOOR)]
    series = [Series(mode, list(map(over(mode, FLOOR), shown))) for mode in (TORCH, OWN)]
    alt = (
        f"Dots: latency of {_listed((TORCH, OWN))} in times of the floor, {len(shown)} workloads, "
        "the farthest first; 1 is the limit."
    )
    names = [row.name + ("†" if figures.is_bound(row) else "") for row in shown]
    return _dots("floor", names, series, "latency in times of the floor", alt, line=1.0)


def busy_shares(rows: Rows) -> Drawn | None:
    """How much of the latency the GPU computes."""
    shown = [row for row in rows.values() if _any(row, COMPILED, "idle_share")]
    idle = [(mode, [figure(row, mode, "idle_share") for row in shown]) for mode in COMPILED]
    series = [Series(mode, [None if i is None else 1 - i for i in each]) for mode, each in idle]
    alt = f"Dots: share of the latency in which the GPU is busy, {_listed(COMPILED)}."
    names = [row.name for row in shown]
    label = "share of the latency in which the GPU is busy"
    return _dots("busy", names, series, label, alt, percent=True)


def ablation(rows: Rows) -> Drawn | None:
    """What each of the paper's three ideas gains."""
    shown = [row for row in rows.values() if row.latency(OWN) and any(map(row.latency, PARTS))]
    series = [_with_mean(mode, shown, over(mode, OWN)) for mode in PARTS]
    alt = (
        f"Bars: latency of {_listed(PARTS)} in times of pygraph's, {len(shown)} workloads; above 1 "
        "the part switched off gains."
    )
    names = [*(row.name for row in shown), MEAN]
    return _bars("ablation", names, series, "latency in times of pygraph's", alt, line=1.0)


def in_short(rows: Rows) -> Drawn | None:
    """The speed-ups of the README's rows and the means of all rows, over both of torch's modes."""
    references = (DEFAULT, TORCH)
    shown = figures.sample(rows)
    if not shown:
        return None
    names = [*map(figures.model, shown), "geometric mean of all"]
    with _axes(8.6, 0.46 * len(names) + 0.9) as (figure_, axes):
        for order, mode in enumerate(references):
            values = [speed_up(mode)(row) or 0.0 for row in shown]
            values.append(mean(rows.values(), speed_up(mode)).value or 0.0)
            places = [place + (order - 0.5) * 0.38 for place in range(len(names))]
            bars = axes.barh(places, values, 0.34, color=COLOURS[mode], label=f"over {mode}")
            axes.bar_label(bars, [f"{each:.2f}" for each in values], padding=3, fontsize=8.0)
        _name_rows(axes, names)
        axes.set_xlabel("pygraph's speed-up (latency of one iteration)")
        alt = f"Bars: speed-up of pygraph over {_listed(references)} for {len(shown)} workloads, "
        return _drawn("short", f"{alt}and the means.", figure_, axes, "x", 1.0)


def picture(drawn: Drawn) -> str:
    """A chart as a file of its own: dark on white."""
    text = drawn.svg.replace("currentColor", "#222831")
    text = text.replace(f"var(--own, {COLOURS[OWN]})", COLOURS[OWN])
    end = text.index(">", text.index("<svg")) + 1
    return f'{text[:end]}\n <rect width="100%" height="100%" fill="#ffffff"/>{text[end:]}\n'


CHARTS: dict[str, Callable[[Rows], Drawn | None]] = {
    "speed-up": speed_ups,
    "busy": busy_shares,
    "compile": compile_times,
    "floor": floor_distances,
    "ablation": ablation,
}


def _any(row: Row, modes: Sequence[str], field: str) -> bool:
    return any(figure(row, mode, field) is not None for mode in modes)


def _listed(modes: Sequence[str]) -> str:
    return f"{', '.join(modes[:-1])} and {modes[-1]}"


def _bars(
    name: str,
    names: Sequence[str],
    series: Sequence[Series],
    axis: str,
    alt: str,
    line: float | None = None,
    labelled: str = "",
) -> Drawn | None:
    """Groups of bars side by side; a series of nothing is left out."""
    present = [each for each in series if any(value is not None for value in each.values)]
    if not present:
        return None
    with _axes(max(6.0, 0.42 * len(names) + 1.0), 4.2) as (figure_, axes):
        width = 0.82 / len(present)
        # The mean stands apart.
        places = [index + (0.5 if each == MEAN else 0.0) for index, each in enumerate(names)]
        for order, each in enumerate(present):
            offset = (order - (len(present) - 1) / 2) * width
            axes.bar(
                [place + offset for place in places],
                [value or 0.0 for value in each.values],
                width * 0.9,
                color=COLOURS[each.mode],
                edgecolor=INK if each.mode == FLOOR else "none",
                linewidth=0.7,
                label="floor (limit)" if each.mode == FLOOR else each.mode,
            )
            for place, is_failed in zip(places, each.failed, strict=False):
                if is_failed:
                    axes.text(
                        *(place + offset, 0.03, "failed"),
                        rotation=90,
                        ha="center",
                        va="bottom",
                        fontsize=LABEL_SIZE,
                        alpha=0.8,
                    )
            if each.mode == labelled:
                texts = ["" if value is None else f"{value:.2f}" for value in each.values]
                tops = [max((s.values[i] or 0.0) for s in present) for i in range(len(names))]
                for place, text, top in zip(places, texts, tops, strict=True):
                    axes.annotate(
                        text,
                        (place, top),
                        (0, 3),
                        textcoords="offset points",
                        ha="center",
                        fontsize=LABEL_SIZE,
                        weight="bold",
                        color=OWN_INK,
                    )
        axes.set_xticks(places, names, rotation=45, ha="right", rotation_mode="anchor")
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.6, places[-1] + 0.6)
        axes.set_ylabel(axis)
        return _drawn(name, alt, figure_, axes, "y", line)


def _dots(
    name: str,
    names: Sequence[str],
    series: Sequence[Series],
    axis: str,
    alt: str,
    line: float | None = None,
    percent: bool = False,
) -> Drawn | None:
    """A line per workload, from its lowest to its highest dot."""
    present = [each for each in series if any(value is not None for value in each.values)]
    if not present:
        return None
    with _axes(6.4, 0.235 * len(names) + 1.1) as (figure_, axes):
        for place in range(len(names)):
            found = [each.values[place] for each in present]
            known = [value for value in found if value is not None]
            if known:
                ends = (min(known), max(known))
                axes.plot(ends, (place, place), color=INK, alpha=0.35, linewidth=1.0, zorder=1)
        for each in present:
            points = [
                (value, place) for place, value in enumerate(each.values) if value is not None
            ]
            axes.scatter(
                [value for value, _ in points],
                [place for _, place in points],
                s=30,
                color=COLOURS[each.mode],
                label=each.mode,
                zorder=2 + (each.mode == OWN),
            )
        _name_rows(axes, names)
        axes.set_xlabel(axis)
        if percent:
            axes.set_xlim(0, 1.02)
            marks = [step / 5 for step in range(6)]
            axes.set_xticks(marks, [f"{mark:.0%}" for mark in marks])
        return _drawn(name, alt, figure_, axes, "x", line)


@contextmanager
def _axes(width: float, height: float) -> Iterator[tuple[Any, Any]]:
    """A figure with one pair of axes, in this module's style."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(STYLE):
        figure_, axes = pyplot.subplots(figsize=(width, height))
        try:
            yield figure_, axes
        finally:
            pyplot.close(figure_)


def _name_rows(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def _drawn(name: str, alt: str, figure_: Any, axes: Any, along: str, line: float | None) -> Drawn:
    """With a grid, a line at what is compared with, and a legend above."""
    axes.set_axisbelow(True)
    axes.grid(axis=along, color=INK, alpha=0.12, linewidth=0.7)
    if line is not None:
        draw_line = axes.axhline if along == "y" else axes.axvline
        draw_line(line, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    count = len(axes.get_legend_handles_labels()[1])
    axes.legend(ncols=count, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2)
    figure_.tight_layout(pad=0.6)
    return Drawn(_svg(figure_, name, alt), alt)


def _svg(figure_: Any, name: str, alt: str) -> str:
    """To be put into a page beside others: names are its own, and nothing is said twice."""
    from html import escape

    out = io.StringIO()
    figure_.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{name}-", text)
    text = text.replace(INK, "currentColor")
    text = text.replace(OWN_INK, f"var(--own, {COLOURS[OWN]})")
    text = re.sub(r"'DejaVu Sans'", FONTS, text)
    label = escape(alt, quote=True)
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1).strip()
