"""The report on a stored measurement, as Markdown and as a page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.paper.report import html as page
from benchmarks.paper.report.markdown import as_markdown


def write_report(content: Mapping[str, Any], markdown: Path, html: Path) -> None:
    """`content` is what record.Document.content gives, or its file. The page's charts need
    matplotlib; without it the page says so."""
    for path in (markdown, html):
        path.parent.mkdir(parents=True, exist_ok=True)
    link = Path(os.path.relpath(html, markdown.parent)).as_posix()
    markdown.write_text(as_markdown(content, link), encoding="utf-8")
    html.write_text(page.as_html(content), encoding="utf-8")
