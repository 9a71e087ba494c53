"""The report in Markdown, and the README's table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pygraph.bench.paper.report import figures, sections, tables
from pygraph.bench.paper.report.blocks import NOTHING, Block, Cells, Items, Table
from pygraph.bench.paper.report.figures import OWN, Rows

SPECIAL = str.maketrans({each: f"\\{each}" for each in "\\|*`[]"} | {"<": "&lt;", ">": "&gt;"})


def as_markdown(content: Mapping[str, Any], page: str | None = None) -> str:
    """`page`: where the same with charts lies, as seen from the report."""
    lines = [f"# {sections.TITLE}", ""]
    if page:
        lines += [f"The same with charts: [{page}]({page}).", ""]
    for section in sections.sections(content):
        lines += [f"## {section.title}", ""]
        for block in section.blocks:
            if text := _block(block):
                lines += [text, ""]
    return "\n".join(lines).rstrip() + "\n"


def escape(text: str) -> str:
    """On one line, with nothing in it that Markdown would take for more than text."""
    return " ".join(text.split()).translate(SPECIAL)


def _block(block: Block) -> str:
    if isinstance(block, str):
        return escape(block)
    if isinstance(block, Table):
        return table(block)
    if isinstance(block, Items):
        return "\n".join(f"- {escape(line)}" for line in block.lines)
    return ""


def table(given: Table) -> str:
    marks = ["---" if place in given.text else "---:" for place in range(len(given.head))]
    return "\n".join(
        [
            _line(map(escape, given.head)),
            _line(marks),
            *(_line(map(escape, row)) for row in (*given.rows, *given.foot)),
        ]
    )


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def readme_table(content: Mapping[str, Any]) -> str:
    """The latency in short, and below it what was measured on what."""
    rows = figures.rows_of(content)
    whole = tables.latency(rows)
    kept = [place for place, name in enumerate(whole.head) if name not in ("eager", "published")]
    head: list[Cells] = [("workload", "model", *(whole.head[place] for place in kept[1:]))]
    lines = [
        (line[0], _model(row.about), *(line[place] for place in kept[1:]))
        for line, row in zip(whole.rows, rows.values(), strict=True)
    ]
    foot = [(line[0], "", *(line[place] for place in kept[1:])) for line in whole.foot]
    made = table(Table(head[0], lines, (0, 1), foot))
    return f"{made}\n\n{escape(provenance(content, rows))}"


def _model(about: Mapping[str, Any]) -> str:
    model = str(about.get("model") or NOTHING)
    return f"{model}, training" if about.get("training") else model


def provenance(content: Mapping[str, Any], rows: Rows) -> str:
    """One paragraph on what was measured on what."""
    runs: Sequence[Mapping[str, Any]] = content.get("runs", [])
    env = runs[-1].get("env", {}) if runs else {}
    dates = sorted({str(run.get("env", {}).get("date", ""))[:10] for run in runs} - {""})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}" if dates else "no date"
    compared = [figures.verdict(row, OWN).get("bit_equal_to_default") for row in rows.values()]
    known = [each for each in compared if each is not None]
    bound = f" {sections.BOUND_IS}" if any(map(figures.is_bound, rows.values())) else ""
    return (
        f"{env.get('gpu')}, driver {env.get('driver')}, torch {env.get('torch')}, {when}. "
        "Microseconds, medians, until the GPU is idle; speed-ups are pygraph's, behind a mean "
        "stands the number of rows. A dash: that mode failed or was not run. Bit-equal to "
        f"torch.compile's default: {sum(known)} of {len(known)} rows.{bound} "
        f"{_runs(runs, rows)}"
    )


def _runs(runs: Sequence[Mapping[str, Any]], rows: Rows) -> str:
    if len(runs) <= 1:
        return "".join(f"Measured with {run.get('command')}." for run in runs)
    said = [f"Measured in {len(runs)} runs; the report has their commands, and each row's run."]
    for number, run in enumerate(runs):
        if run.get("note"):
            mine = figures.rows_in(number, rows)
            said.append(f"Run {number + 1}, with {mine} of the rows: {run['note']}.")
    return " ".join(said)
