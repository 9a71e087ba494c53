"""The report in Markdown, and the README's table."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.paper.report import blocks, figures, sections, tables
from benchmarks.paper.report.blocks import Block, Items, Table
from benchmarks.paper.report.figures import OWN, Rows

SPECIAL = str.maketrans({each: f"\\{each}" for each in "\\|*`[]"} | {"<": "&lt;", ">": "&gt;"})

MUCH_MEMORY = 1.02
"""Peak memory in times of default's that is worth naming a row for."""
WIDTH = 108
"""Of the paragraphs in pages that are otherwise written by hand."""


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
    head, *rows = [[*map(escape, cells)] for cells in (given.head, *given.rows, *given.foot)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, marks, *rows))


def whole_table(content: Mapping[str, Any]) -> str:
    """The latency in short, and below it what was measured on what."""
    rows = figures.rows_of(content)
    return f"{table(tables.whole(rows))}\n\n{_paragraph(escape(_provenance(content, rows)))}"


def readme_table(content: Mapping[str, Any]) -> str:
    """Ten rows at most, chosen by a rule, and the means of all."""
    rows = figures.rows_of(content)
    said = (
        f"{_machine(content)}. Microseconds from a call until the GPU is idle, medians. Speed-ups "
        f"and memory are pygraph's. The rows are every third of all {len(rows)} by speed-up over "
        "reduce-overhead, from the best to the worst, and the one with the worst memory."
    )
    return f"{table(tables.short(rows))}\n\n{_paragraph(said)}"


def gain(content: Mapping[str, Any]) -> str:
    """The README's first figures: what is gained, and what it costs."""
    rows = figures.rows_of(content)
    speed = [_faster(rows, mode) for mode in (figures.TORCH, figures.DEFAULT)]
    peak = figures.over(OWN, figures.DEFAULT, "peak_mib")
    memory = figures.mean(rows.values(), peak).value
    worst = figures.entries(rows.values(), peak)[0]
    return _paragraph(
        f"**On {len(rows)} workloads PyGraph is {speed[0]}, and {speed[1]}**, that is "
        "torch.compile without CUDA graphs. These are the workloads of PyGraph's paper "
        "([arXiv 2503.19779](https://arxiv.org/abs/2503.19779)), the means are geometric, "
        f"and the GPU is an {figures.environment(content).get('gpu')}. Peak memory is "
        f"{memory:.2f} times default's in the mean, and {worst.value:.2f} times at worst "
        f"({figures.model(rows[worst.name])})."
    )


def memory(content: Mapping[str, Any]) -> str:
    """The rows whose peak is clearly above default's."""
    rows = figures.rows_of(content)
    found = figures.entries(rows.values(), figures.over(OWN, figures.DEFAULT, "peak_mib"))
    above = [each for each in found if each.value > MUCH_MEMORY]
    named = ", ".join(f"{figures.model(rows[e.name])} ({e.value:.2f})" for e in above)
    return _paragraph(
        f"Above {MUCH_MEMORY} times default's peak are {len(above)} of {len(found)} rows: {named}. "
        f"The smallest is {found[-1].value:.2f} ({figures.model(rows[found[-1].name])}). Between "
        f"calls reduce-overhead keeps up to {_most_held(rows, figures.TORCH)} from everybody else, "
        f"pygraph up to {_most_held(rows, OWN)}."
    )


def _faster(rows: Rows, mode: str) -> str:
    value = figures.speed_up(mode)
    found = figures.entries(rows.values(), value)
    mean = figures.mean(rows.values(), value).value
    return f"{mean:.2f} times as fast as {mode} ({found[-1].value:.2f} to {found[0].value:.2f})"


def _most_held(rows: Rows, mode: str) -> str:
    found = figures.entries(rows.values(), lambda row: figures.figure(row, mode, "held_mib"))
    return f"{blocks.mebibytes(found[0].value)} MiB ({figures.model(rows[found[0].name])})"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _machine(content: Mapping[str, Any]) -> str:
    """GPU, driver, torch and dates."""
    env = figures.environment(content)
    runs = content.get("runs", [])
    dates = sorted({str(run.get("env", {}).get("date", ""))[:10] for run in runs} - {""})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}" if dates else "no date"
    return f"{env.get('gpu')}, driver {env.get('driver')}, torch {env.get('torch')}, {when}"


def _provenance(content: Mapping[str, Any], rows: Rows) -> str:
    """One paragraph on what was measured on what."""
    compared = [figures.verdict(row, OWN).get("bit_equal_to_default") for row in rows.values()]
    known = [each for each in compared if each is not None]
    bound = f" {sections.BOUND_IS}" if any(map(figures.is_bound, rows.values())) else ""
    return (
        f"{_machine(content)}. "
        "Microseconds, medians, until the GPU is idle; speed-ups are pygraph's, behind a mean "
        "stands the number of rows. A dash: that mode failed or was not run. Bit-equal to "
        f"torch.compile's default: {sum(known)} of {len(known)} rows.{bound} "
        f"{_measured_with(content.get('runs', []), rows)}"
    )


def _measured_with(runs: Sequence[Mapping[str, Any]], rows: Rows) -> str:
    if len(runs) <= 1:
        return "".join(f"Measured with {run.get('command')}." for run in runs)
    notes = [
        f" Run {number}, with {figures.rows_in(number - 1, rows)} of the rows: {run['note']}."
        for number, run in enumerate(runs, 1)
        if run.get("note")
    ]
    several = f"Measured in {len(runs)} runs; the report has their commands, and each row's run."
    return several + "".join(notes)
