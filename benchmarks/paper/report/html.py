"""The report as one page that needs nothing but itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.harness.shown import ratio
from benchmarks.harness.table import Cells, Table, kind
from benchmarks.paper.report import figures, sections
from benchmarks.paper.report.figures import DEFAULT, FLOOR, OWN, TORCH, Rows, mean, over, speed_up
from benchmarks.paper.report.markdown import as_markdown

STYLE = Path(__file__).with_name("style.css")
LONG = 24
"""Characters of a text that may be broken into lines."""
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
<ul class="cards">{cards}</ul>
<nav aria-label="Sections"><ul>{contents}</ul></nav>
</header>
<main>
{sections}
</main>
</body>
</html>
"""


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
    slugs = {title: title.lower().replace(" ", "-") for title in made}
    return PAGE.format(
        title=escape(sections.TITLE),
        style=STYLE.read_text(),
        on=escape(", ".join(str(each) for each in measured_on if each)),
        cards="".join(
            f"<li><strong>{escape(value)}</strong> <span>{escape(said)}</span></li>"
            for value, said in _cards(content, rows)
        ),
        contents="".join(f'<li><a href="#{slugs[each]}">{escape(each)}</a></li>' for each in made),
        sections="\n".join(
            f'<section id="{slugs[title]}" aria-labelledby="{slugs[title]}-h">\n'
            f'<h2 id="{slugs[title]}-h">{escape(title)}</h2>\n'
            + "\n".join(_block(block, rows, title) for block in blocks)
            + "\n</section>"
            for title, blocks in made.items()
        ),
    )


def _cards(content: Mapping[str, Any], rows: Rows) -> list[tuple[str, str]]:
    """The few figures that all others explain."""
    made = []
    for value, said in (
        (speed_up(TORCH), "times as fast as reduce-overhead"),
        (speed_up(DEFAULT), "times as fast as default"),
        (over(OWN, FLOOR), "times the floor"),
    ):
        found = mean(rows.values(), value)
        made.append((ratio(found.value), f"{said}, geometric mean of {found.rows}"))
    right = sum(map(figures.right, rows.values()))
    made.append((f"{right} of {len(rows)}", "workloads run, and every result of pygraph is right"))
    judged = [each["met"] for each in content.get("targets", []) if each.get("met") is not None]
    if judged:
        made.append((f"{sum(judged)} of {len(judged)}", "requirements met, of those judged"))
    return made


def _block(block: sections.Block, rows: Rows, title: str) -> str:
    match block:
        case str():
            return f"<p>{escape(block)}</p>"
        case list():
            return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in block) + "</ul>"
        case sections.Chart():
            return _chart(block.name, rows)
    return (
        f'<div class="wide" role="region" aria-label="{escape(title)}" tabindex="0">\n'
        f"{_table(block)}\n</div>"
    )


def _chart(name: str, rows: Rows) -> str:
    try:
        from benchmarks.paper.report import charts

        drawn = charts.draw(name, rows)
    except ModuleNotFoundError as error:
        return f'<p class="note">No chart: {escape(str(error))}.</p>'
    if drawn is None:
        return ""
    return f'<figure class="wide chart-{name}" tabindex="0">{drawn.svg}</figure>'


def _table(table: Table) -> str:
    def line(cells: Cells, is_head: bool = False) -> str:
        made = []
        for place, (cell, column) in enumerate(zip(cells, table.columns, strict=True)):
            tag, scope = "td", ""
            if is_head or not place:
                tag, scope = "th", f' scope="{"col" if is_head else "row"}"'
            is_long = place and column.is_text and len(cell) > LONG
            kinds = ["w" * column.is_text, "long" * bool(is_long), kind(cell)]
            found = " ".join(filter(None, kinds))
            of_class = f' class="{found}"' if found else ""
            made.append(f"<{tag}{scope}{of_class}>{escape(cell)}</{tag}>")
        return f"<tr>{''.join(made)}</tr>"

    parts = [("thead", [line(table.head, is_head=True)])]
    parts += [("tbody", [*map(line, table.rows)]), ("tfoot", [*map(line, table.foot)])]
    inner = ["\n".join([f"<{tag}>", *lines, f"</{tag}>"]) for tag, lines in parts if lines]
    return "\n".join(["<table>", *inner, "</table>"])
