"""The report as one page that needs nothing but itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.harness.table import BAD, GOOD
from benchmarks.paper.report import figures, sections
from benchmarks.paper.report.blocks import NOTHING, Block, Cells, Chart, Items, Section, Table
from benchmarks.paper.report.figures import DEFAULT, FLOOR, OWN, TORCH, Rows, mean, over, speed_up
from benchmarks.paper.report.markdown import as_markdown

BESIDE = {"yes": "good", "NO": "bad"}
STYLE = Path(__file__).with_name("style.css")
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p>{on}</p>
{cards}
<nav aria-label="Sections"><ul>{contents}</ul></nav>
</header>
<main>
{sections}
</main>
</body>
</html>
"""
SPEED_UPS = ("over default", "over reduce-overhead")
"""Columns and cells that are coloured by what they say."""


def write_report(content: Mapping[str, Any], markdown: Path, html: Path) -> None:
    """`content` is what record.Document.content gives, or its file. The page's charts need
    matplotlib; without it the page says so."""
    for path in (markdown, html):
        path.parent.mkdir(parents=True, exist_ok=True)
    link = Path(os.path.relpath(html, markdown.parent)).as_posix()
    markdown.write_text(as_markdown(content, link), encoding="utf-8")
    html.write_text(as_html(content), encoding="utf-8")


def as_html(content: Mapping[str, Any]) -> str:
    rows, made = figures.rows_of(content), sections.sections(content)
    env = figures.environment(content)
    measured_on = [env.get("gpu"), env.get("driver") and f"driver {env['driver']}"]
    measured_on += [env.get("torch") and f"torch {env['torch']}", str(env.get("date") or "")[:10]]
    parts = {
        "title": escape(sections.TITLE),
        "style": STYLE.read_text(),
        "on": escape(", ".join(str(each) for each in measured_on if each)),
        "cards": _cards(content, rows),
        "contents": "".join(
            f'<li><a href="#{_slug(each)}">{escape(each.title)}</a></li>' for each in made
        ),
        "sections": "\n".join(_section(section, rows) for section in made),
    }
    return PAGE.format(**parts)


def _cards(content: Mapping[str, Any], rows: Rows) -> str:
    """The few figures that all others explain."""
    made = []
    for value, said in (
        (speed_up(TORCH), "times as fast as reduce-overhead"),
        (speed_up(DEFAULT), "times as fast as default"),
        (over(OWN, FLOOR), "times the floor"),
    ):
        found = mean(rows.values(), value)
        shown = NOTHING if found.value is None else f"{found.value:.2f}"
        made.append((shown, f"{said}, geometric mean of {found.count}"))
    right = sum(map(figures.right, rows.values()))
    made.append((f"{right} of {len(rows)}", "workloads run, and every result of pygraph is right"))
    met = [each.get("met") for each in content.get("targets", [])]
    judged = [each for each in met if each is not None]
    if judged:
        made.append((f"{sum(judged)} of {len(judged)}", "requirements met, of those judged"))
    items = "".join(
        f"<li><strong>{escape(value)}</strong> <span>{escape(said)}</span></li>"
        for value, said in made
    )
    return f'<ul class="cards">{items}</ul>'


def _slug(section: Section) -> str:
    return section.title.lower().replace(" ", "-")


def _section(section: Section, rows: Rows) -> str:
    inner = "\n".join(_block(block, rows, section.title) for block in section.blocks)
    slug = _slug(section)
    return (
        f'<section id="{slug}" aria-labelledby="{slug}-h">\n'
        f'<h2 id="{slug}-h">{escape(section.title)}</h2>\n{inner}\n</section>'
    )


def _block(block: Block, rows: Rows, title: str) -> str:
    if isinstance(block, str):
        return f"<p>{escape(block)}</p>"
    if isinstance(block, Items):
        return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in block.lines) + "</ul>"
    if isinstance(block, Chart):
        return _chart(block.name, rows)
    return _table(block, title)


def _chart(name: str, rows: Rows) -> str:
    try:
        from benchmarks.paper.report import charts

        drawn = charts.draw(name, rows)
    except ModuleNotFoundError as error:
        return f'<p class="note">No chart: {escape(str(error))}.</p>'
    if drawn is None:
        return ""
    return f'<figure class="wide chart-{name}" tabindex="0">{drawn.svg}</figure>'


def _table(table: Table, title: str) -> str:
    body = "\n".join(_row(table, row) for row in table.rows)
    foot = "\n".join(_row(table, row, is_foot=True) for row in table.foot)
    label = escape(title, quote=True)
    return (
        f'<div class="wide" role="region" aria-label="{label}" tabindex="0">\n<table>\n'
        f"<thead>\n{_head(table)}\n</thead>\n<tbody>\n{body}\n</tbody>\n"
        + (f"<tfoot>\n{foot}\n</tfoot>\n" if foot else "")
        + "</table>\n</div>"
    )


def _head(table: Table) -> str:
    """Columns called `group: name` stand below their group."""
    split = [name.partition(": ") if ": " in name else ("", "", name) for name in table.head]
    groups = [(group, len(list(same))) for group, same in groupby(each[0] for each in split)]
    line = "".join(
        f'<th scope="col"{_kind(table, place, name)}>{escape(name)}</th>'
        for place, (_, _, name) in enumerate(split)
    )
    if len(groups) == 1:
        return f"<tr>{line}</tr>"
    above = "".join(
        f'<th scope="colgroup" colspan="{width}" class="group">{escape(group)}</th>'
        if group
        else f'<td colspan="{width}"></td>'
        for group, width in groups
    )
    return f"<tr>{above}</tr>\n<tr>{line}</tr>"


def _row(table: Table, row: Cells, is_foot: bool = False) -> str:
    first, *rest = row
    cells = [f'<th scope="row"{_kind(table, 0, first)}>{escape(first)}</th>']
    cells += [
        f"<td{_kind(table, place, text, is_foot)}>{escape(text)}</td>"
        for place, text in enumerate(rest, start=1)
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _kind(table: Table, place: int, text: str, is_foot: bool = False) -> str:
    """Classes of a cell: words, and whether they are long; nothing there; good or bad; the first
    of a group."""
    name = table.head[place]
    found = ["w"] if place in table.text else []
    if place and place in table.text and len(text) > 24:
        found.append("long")
    if text == NOTHING:
        found.append("none")
    if name == OWN:
        found.append("own")
    if name == "met" and text in BESIDE:
        found.append(BESIDE[text])
    if name in SPEED_UPS and not is_foot and (kind := _speed_up(text)):
        found.append(kind)
    group, colon, _ = name.partition(": ")
    if colon and not table.head[place - 1].startswith(f"{group}: "):
        found.append("first")
    return f' class="{" ".join(found)}"' if found else ""


def _speed_up(text: str) -> str:
    """Between the limits it is noise."""
    try:
        value = float(text)
    except ValueError:
        return ""
    return "good" if value >= GOOD else "bad" if value <= BAD else ""
