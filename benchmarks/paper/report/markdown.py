"""The report in Markdown, and the tables and figures of other pages."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from benchmarks.harness.markdown import escape, table
from benchmarks.harness.shown import mebibytes
from benchmarks.harness.table import Table
from benchmarks.paper.report import figures, sections, tables
from benchmarks.paper.report.figures import DEFAULT, OWN, PEAK, TORCH, Rows

MUCH_MEMORY = 1.02
"""Peak memory in times of default's that is worth naming a row for."""
WIDTH = 108
"""Of the paragraphs in pages that are otherwise written by hand."""


def as_markdown(content: Mapping[str, Any], page: str | None = None) -> str:
    """`page`: where the same with charts lies, as seen from the report."""
    parts = [f"# {sections.TITLE}"]
    if page:
        parts.append(f"The same with charts: [{page}]({page}).")
    for title, blocks in sections.sections(content).items():
        parts += [f"## {title}", *filter(None, map(_block, blocks))]
    return "\n\n".join(parts) + "\n"


def _block(block: sections.Block) -> str:
    match block:
        case str():
            return escape(block)
        case Table():
            return table(block)
        case list():
            return "\n".join(f"- {escape(line)}" for line in block)
    return ""


def whole_table(content: Mapping[str, Any]) -> str:
    """The latency in short, and below it what was measured on what."""
    rows = figures.rows_of(content)
    compared = [figures.verdict(row).get("bit_equal_to_default") for row in rows.values()]
    known = [each for each in compared if each is not None]
    bound = f" {sections.BOUND_IS}" if any(map(figures.is_bound, rows.values())) else ""
    said = (
        f"{_machine(content)}. "
        "Microseconds, medians, until the GPU is idle; speed-ups are pygraph's, behind a mean "
        "stands the number of rows. A dash: that mode failed or was not run. Bit-equal to "
        f"torch.compile's default: {sum(known)} of {len(known)} rows.{bound} "
    )
    runs = content.get("runs", [])
    if len(runs) > 1:
        said += f"Measured in {len(runs)} runs; the report has their commands, and each row's run."
        for number, run in enumerate(runs, 1):
            if run.get("note"):
                count = figures.rows_in(number - 1, rows)
                said += f" Run {number}, with {count} of the rows: {run['note']}."
    else:
        said += "".join(f"Measured with {run.get('command')}." for run in runs)
    return f"{table(tables.whole(rows))}\n\n{_paragraph(escape(said))}"


def readme_table(content: Mapping[str, Any]) -> str:
    """Ten rows at most, chosen by a rule, and the means of all."""
    rows = figures.rows_of(content)
    said = (
        f"{_machine(content)}. Microseconds from a call until the GPU is idle, medians. Speed-ups "
        f"and memory are pygraph's. The rows are every third of all {len(rows)} by speed-up over "
        "reduce-overhead, from the best to the worst, and the one with the worst memory."
    )
    for mode in (DEFAULT, TORCH):
        measured = figures.mean(rows.values(), figures.speed_up(mode)).rows
        said += f" The mean over {mode} is of {measured} rows." if measured < len(rows) else ""
    return f"{table(tables.short(rows))}\n\n{_paragraph(said)}"


def gain(content: Mapping[str, Any]) -> str:
    """The README's first figures: what is gained, and what it costs."""
    rows = figures.rows_of(content)
    worst = figures.entries(rows.values(), PEAK)[0]
    return _paragraph(
        f"**On {len(rows)} workloads PyGraph is {_faster(rows, TORCH)}, and "
        f"{_faster(rows, DEFAULT)}**, that is "
        "torch.compile without CUDA graphs. These are the workloads of PyGraph's paper "
        "([arXiv 2503.19779](https://arxiv.org/abs/2503.19779)), the means are geometric, "
        f"and the GPU is an {figures.environment(content).get('gpu')}. Peak memory is "
        f"{figures.mean(rows.values(), PEAK).value:.2f} times default's in the mean, and "
        f"{worst.value:.2f} times at worst ({figures.model(rows[worst.name])})."
    )


def memory(content: Mapping[str, Any]) -> str:
    """The rows whose peak is clearly above default's."""
    rows = figures.rows_of(content)
    found = figures.entries(rows.values(), PEAK)
    above = [each for each in found if each.value > MUCH_MEMORY]
    named = ", ".join(f"{figures.model(rows[e.name])} ({e.value:.2f})" for e in above)
    return _paragraph(
        f"Above {MUCH_MEMORY} times default's peak are {len(above)} of {len(found)} rows: {named}. "
        f"The smallest is {found[-1].value:.2f} ({figures.model(rows[found[-1].name])}). Between "
        f"calls reduce-overhead keeps up to {_most_held(rows, TORCH)} from everybody else, "
        f"pygraph up to {_most_held(rows, OWN)}."
    )


def _faster(rows: Rows, mode: str) -> str:
    value = figures.speed_up(mode)
    found = figures.entries(rows.values(), value)
    mean = figures.mean(rows.values(), value)
    measured = f"{mean.rows} of them, " if mean.rows < len(rows) else ""
    span = f"{found[-1].value:.2f} to {found[0].value:.2f}"
    return f"{mean.value:.2f} times as fast as {mode} ({measured}{span})"


def _most_held(rows: Rows, mode: str) -> str:
    most, *_ = figures.entries(rows.values(), lambda row: figures.figure(row, mode, "held_mib"))
    return f"{mebibytes(most.value)} MiB ({figures.model(rows[most.name])})"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _machine(content: Mapping[str, Any]) -> str:
    """GPU, driver, torch and dates."""
    env, runs = figures.environment(content), content.get("runs", [])
    dates = sorted({str(run.get("env", {}).get("date", ""))[:10] for run in runs} - {""})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "no date"
    return f"{env.get('gpu')}, driver {env.get('driver')}, torch {env.get('torch')}, {when}"
