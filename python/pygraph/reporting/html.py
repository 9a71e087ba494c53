"""An explanation as one page of HTML: no script, nothing from a network, every text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from pygraph.reporting.explained import verdict
from pygraph.reporting.text import as_bytes, environment_line, graph_lines

if TYPE_CHECKING:
    from pygraph.reporting.explanation import Explanation
    from pygraph.reporting.model import GraphReport

STYLE = """\
body { font: 15px/1.45 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em;
  color: #1a1a1a; background: #fff }
h1 { font-size: 1.4em } h2 { font-size: 1.15em; margin-top: 1.8em }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .3em .6em; border-bottom: 1px solid #ddd }
td.n { text-align: right; font-variant-numeric: tabular-nums }
pre, code { font-family: ui-monospace, monospace; font-size: .92em; white-space: pre-wrap }
.bar { height: .9em; background: #e08a3c; border-radius: 3px; overflow: hidden }
.bar div { height: 100%; background: #3c8a5a }
.muted { color: #666 } .bad { color: #b3261e }
@media (prefers-color-scheme: dark) {
  body { color: #e6e6e6; background: #16181b } th, td { border-color: #3a3d42 }
  .muted { color: #a0a0a0 } .bad { color: #ff8a80 }
}
"""


def page(explanation: Explanation) -> str:
    parts = [
        f"<h1>{escape(explanation.name)}</h1>",
        f"<p>{escape(verdict(explanation))}</p>",
        f'<div class="bar"><div style="width: {100 * explanation.coverage:.1f}%"></div></div>',
        _paragraph(f"the program ended early: {explanation.error}", "bad")
        if explanation.error
        else "",
        _paragraph(environment_line(explanation.report), "muted"),
        _paragraph(
            f"{explanation.seconds:.1f} s in all; graphs took {explanation.build_ms:.1f} ms to "
            "build",
            "muted",
        ),
        *_blockers(explanation),
        *_kernels(explanation),
        *_graphs(explanation.report.graphs),
        *_list("Compiled by Dynamo", explanation.compiled),
        *_list("Notes", explanation.notes),
    ]
    head = f"<title>{escape(explanation.name)}</title>\n<style>\n{STYLE}</style>"
    meta = '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">'
    body = "\n".join(part for part in parts if part)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{meta}\n{head}\n</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _paragraph(text: str, kind: str) -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if text else ""


def _blockers(explanation: Explanation) -> list[str]:
    rows = [
        [
            escape(each.graph or ""),
            escape(each.what),
            _code(each.operator),
            _code(each.source) + (f"<pre>{escape(each.code)}</pre>" if each.code else ""),
            escape(each.remedy),
        ]
        for each in explanation.blockers
    ]
    head = ("graph", "what stands in the way", "operator", "line", "to do")
    return _table("Blockers", head, rows)


def _kernels(explanation: Explanation) -> list[str]:
    rows = [
        [_code(each.name), f"{each.count:g}", f"{each.us:.1f}"]
        for each in explanation.kernels_outside
    ]
    return _table("Kernels outside of graphs", ("kernel", "how many", "us"), rows)


def _graphs(graphs: Sequence[GraphReport]) -> list[str]:
    head = ("graph", "state", "nodes", "programs", "replays / calls", "copied", "arena", "ms")
    rows = [
        [
            escape(graph.name),
            escape(graph.state),
            str(graph.nodes),
            str(graph.programs),
            f"{graph.replays} / {graph.calls}",
            as_bytes(graph.bytes_copied),
            as_bytes(graph.arena_bytes),
            f"{sum(graph.timings_ms.get(step, 0.0) for step in ('link', 'proof')):.1f}",
        ]
        for graph in graphs
    ]
    details = [
        f"<details><summary>{escape(graph.name)}</summary>"
        f"<pre>{escape(chr(10).join(graph_lines(graph)))}</pre></details>"
        for graph in graphs
    ]
    return [*_table("Graphs", head, rows), *details]


def _list(title: str, texts: Sequence[str]) -> list[str]:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return [f"<h2>{escape(title)}</h2>", f"<ul>{items}</ul>"] if texts else []


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """`rows` are HTML."""
    if not rows:
        return []
    heads = "".join(f"<th>{escape(each)}</th>" for each in head)
    lines = ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows]
    table = [f"<table><thead><tr>{heads}</tr></thead><tbody>", *lines, "</tbody></table>"]
    return [f"<h2>{escape(title)}</h2>", *table]


def _code(text: str | None) -> str:
    return f"<code>{escape(text)}</code>" if text else ""
