"""Which kernel ran when in a call of the steady state, by torch's profiler, and a picture of that.
No measurement: the profiler slows what it looks at, and lanes more than a chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch

from benchmarks.first_light.chart import INK
from benchmarks.harness.modes import Runner, Tensors
from pygraph.runtime.kernels import CALLS, ON_GPU, recorded

Span = tuple[float, float, str]
"""Start and duration in microseconds since the first of them began, and name."""

CALLED = 3
"""The profiler is new to the first calls; the last one counts."""
WIDTH, LANE, GAP, MARGIN = 1200.0, 16.0, 34.0, 60.0
COLOURS = {"kernel": "#1f7a4d", "other": "#e0a33e"}
"""Of kernels, and of copies and fills."""
FAINT = "#e6e9ed"


def observed(runner: Runner, inputs: Sequence[Tensors]) -> list[Span]:
    with recorded() as events:
        for n in range(CALLED):
            if runner.before is not None:
                runner.before()
            torch.cuda.synchronize()
            runner.step(*inputs[n % len(inputs)])
    return last_call(events)


def last_call(events: Iterable[Mapping[str, Any]]) -> list[Span]:
    """What ran behind the last wait for the GPU that has something behind it."""
    known = [each for each in events if "dur" in each and each.get("cat") in (*CALLS, *ON_GPU)]
    ran = sorted((each for each in known if each["cat"] in ON_GPU), key=lambda each: each["ts"])
    if not ran:
        return []
    waits = [
        each["ts"] + each["dur"]
        for each in known
        if each["cat"] in CALLS and "DeviceSynchronize" in each.get("name", "")
    ]
    start = max((end for end in waits if end <= ran[-1]["ts"]), default=ran[0]["ts"])
    ran = [each for each in ran if each["ts"] >= start]
    first = ran[0]["ts"]
    return [
        (
            round(each["ts"] - first, 2),
            round(each["dur"], 2),
            each.get("name", "") if each["cat"] == "kernel" else each["cat"],
        )
        for each in ran
    ]


def rows_of(spans: Iterable[Sequence[Any]]) -> list[list[Sequence[Any]]]:
    """As many rows as there is at the same time. (The driver runs a lane's kernels on several
    streams.)"""
    rows: list[list[Sequence[Any]]] = []
    for span in sorted(spans, key=lambda each: each[0]):
        free = next((row for row in rows if row[-1][0] + row[-1][1] <= span[0] + 0.01), None)
        if free is None:
            rows.append(free := [])
        free.append(span)
    return rows


def draw(name: str, timelines: Mapping[str, Sequence[Sequence[Any]]], path: Path) -> bool:
    """Write an SVG, the modes below each other on one axis; False where nothing ran."""
    ends = {
        mode: max(start + duration for start, duration, _ in spans)
        for mode, spans in timelines.items()
        if spans
    }
    if not ends:
        return False
    scale = (WIDTH - 2 * MARGIN) / max(ends.values())
    parts, top = [], GAP
    for mode, end in ends.items():
        rows = rows_of(timelines[mode])
        kernels = sum(map(len, rows))
        parts.append(_text(f"{name}, {mode}: {kernels} kernels, {end:,.0f} us", MARGIN, top - 6))
        for number, row in enumerate(rows):
            parts += _row(row, number, top + number * LANE, scale)
        top += len(rows) * LANE + GAP
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0f}" height="{top:.0f}">'
    path.write_text("\n".join([head, *parts, "</svg>", ""]))
    return True


def _row(row: Sequence[Sequence[Any]], number: int, top: float, scale: float) -> list[str]:
    parts = [_bar(MARGIN, top, WIDTH - 2 * MARGIN, FAINT), _text(str(number + 1), 40.0, top + 11)]
    for start, duration, name in row:
        colour = COLOURS["other" if name in ON_GPU else "kernel"]
        about = f"{name}: {duration} us at {start}"
        width = max(0.4, duration * scale)
        parts.append(_bar(MARGIN + start * scale, top, width, colour, about))
    return parts


def _bar(left: float, top: float, width: float, colour: str, about: str = "") -> str:
    where = f'x="{left:.2f}" y="{top:.1f}" width="{width:.2f}" height="{LANE - 3:.0f}"'
    title = f"<title>{escape(about)}</title>" if about else ""
    return f'<rect {where} fill="{colour}">{title}</rect>'


def _text(text: str, left: float, top: float) -> str:
    style = f'font-family="sans-serif" font-size="11" fill="{INK}"'
    return f'<text x="{left:.1f}" y="{top:.1f}" {style}>{escape(text)}</text>'
