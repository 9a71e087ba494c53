"""The patterns as tables, for a terminal and for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness.figures import Modes, figure, right
from benchmarks.harness.record import by_mode
from benchmarks.harness.shown import NOTHING, count, microseconds, ratio, seconds, shortened
from benchmarks.harness.table import Cells, Column, Table, by_modes, made, marked, words
from benchmarks.patterns.goals import BEST, GROUPS, LIMIT_OF, over_best, over_clean
from benchmarks.patterns.modes import MODES
from benchmarks.patterns.pattern import LIMITS
from benchmarks.patterns.record import Record, read_records, summarize

PATTERN = words("pattern", lambda row: row[0])
SHORT = {"pygraph/clean": "/ clean", "pygraph/best of torch": "/ best"}
"""Heads in a terminal."""
LONG = {"/ clean": "pygraph / clean", "/ best": "pygraph / best of torch"}
"""And in the docs, where there is room."""


def of_ours(head: str, field: str, show: Any) -> Column:
    """A figure of pygraph's."""
    return Column(head, lambda row: show(figure(row[1], "pygraph", field)))


def beside(name: str, find: Any, mean: float | None) -> Column:
    """Bad is what exceeds its limit."""

    def cell(row: Any) -> str:
        value = find(row[1])
        kind = "" if value is None or value <= LIMIT_OF[name](row[0]) else "bad"
        return marked(ratio(value), kind)

    return Column(SHORT[name], cell, (ratio(mean),))


def wrong(modes: Modes) -> list[str]:
    return [mode for mode, each in modes.items() if not right(each) and not each.not_run]


def verdict(modes: Modes) -> str:
    """Of all modes; pygraph's bits are compared with default's."""
    if wrong(modes):
        return marked("wrong", "bad")
    bits = figure(modes, "pygraph", "bit_equal_to_default")
    return {True: "bit-equal", False: "near", None: NOTHING}[bits]


def latency(records: Sequence[Record]) -> Table:
    mean = {name: each["geomean"] for name, each in summarize(records)["latency"].items()}
    columns = [
        PATTERN,
        *by_modes(MODES, lambda each: microseconds(each.latency_us)),
        beside("pygraph/clean", over_clean, mean["pygraph/clean"]),
        beside("pygraph/best of torch", over_best, mean["pygraph/best of torch"]),
        words("results", lambda row: verdict(row[1])),
    ]
    title = "latency, us (median; a sync after each call); pygraph / clean and / best of torch"
    return made(by_mode(records).items(), columns, "geometric mean", title=title)


def ours(records: Sequence[Record]) -> Table:
    columns = [
        PATTERN,
        of_ours("p99", "latency_p99_us", microseconds),
        of_ours("host", "host_us", microseconds),
        of_ours("pipelined", "pipelined_us", microseconds),
        of_ours("graphs", "graphs", count),
        of_ours("outside", "outside", count),
        of_ours("recompiled", "recompilations", count),
        of_ours("compile, s", "compile_s", seconds),
    ]
    return made(by_mode(records).items(), columns, title="pygraph: us, and counts per call")


def launches(records: Sequence[Record]) -> Table:
    """Of all modes."""

    def show(each: Record) -> str:
        return " / ".join([count(each.graphs), count(each.outside), count(each.recompilations)])

    title = "graphs launched / kernels outside of graphs per call / recompilations"
    return made(by_mode(records).items(), [PATTERN, *by_modes(MODES, show)], title=title)


def goals(records: Sequence[Record]) -> Table:
    """Per group and ratio: the worst pattern, and how many exceed their limits."""

    def worst(found: Mapping[str, Any]) -> str:
        name = found["worst_pattern"]
        return NOTHING if name is None else f"{name} {ratio(found['worst'])}"

    def exceeding(found: Mapping[str, Any]) -> str:
        many = len(found["exceeding"])
        return marked(f"{many} of {found['patterns']}", "bad" if many else "")

    columns = [
        words("patterns", lambda row: row[0]),
        words("pygraph over", lambda row: row[1].removeprefix("pygraph/")),
        words("worst", lambda row: worst(row[2])),
        Column("mean", lambda row: ratio(row[2]["geomean"])),
        Column("over limit", lambda row: exceeding(row[2])),
    ]
    found = summarize(records)["goals"]
    rows = [(group, name, found[group][name]) for group in GROUPS for name in SHORT]
    return made(rows, columns, title="goals, by group of patterns")


def goal_lines(summary: Mapping[str, Any]) -> list[str]:
    """Which patterns exceed their limits, the farthest first."""
    found = summary["goals"]["all"]
    few, more = LIMITS[False], LIMITS[True]
    limits = {
        "pygraph/clean": f"{few:.2f}, or {more:.2f} where one copy more is needed",
        "pygraph/best of torch": f"{BEST:.2f}",
    }
    lines = []
    for name, limit in limits.items():
        each = found[name]
        named = [f"{pattern} {value:.3f}" for pattern, value in each["exceeding"].items()]
        which = f": {', '.join(named)}" if named else ""
        lines.append(f"{name} over {limit}: {len(named)} of {each['patterns']} patterns{which}")
    return lines


def not_run(records: Sequence[Record]) -> list[str]:
    """Modes that would end the process."""
    return [f"{each.workload}, {each.mode}: {each.error}" for each in records if each.not_run]


def tables(records: Sequence[Record]) -> list[Table]:
    return [latency(records), ours(records), launches(records), goals(records)]


def reasons(records: Sequence[Record]) -> list[str]:
    """Why pygraph has no graph, by pattern, each once."""
    lines = []
    for each in records:
        if each.mode == "pygraph":
            why = dict.fromkeys(shortened(found["reason"], 160) for found in each.fallbacks)
            lines += [f"{each.workload}: {reason}" for reason in why]
    return lines


def in_short(modes: Modes) -> str:
    """One line about a pattern."""
    known = [f"{mode} {microseconds(figure(modes, mode, 'latency_us'))}" for mode in modes]
    named = f": {', '.join(wrong(modes))}" if wrong(modes) else ""
    return f"{', '.join(known)} us; {verdict(modes)}{named}"


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    counts = summary["counts"]
    lines = [
        f"{name}: {ratio(each['geomean'])}, geometric mean of {each['patterns']} patterns"
        for name, each in summary["latency"].items()
        if each["geomean"] is not None
    ]
    left_out = f"; not run: {counts['not_run']}" if counts["not_run"] else ""
    return [
        *lines,
        *goal_lines(summary),
        f"bit-equal to torch.compile: {counts['pygraph_bit_equal']} of "
        f"{counts['pygraph_compared']} patterns; wrong: {counts['wrong']} of "
        f"{counts['records']} results{left_out}",
    ]


def page(document: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows for docs/benchmarks.md, with what stands in the way for the pattern's name."""
    records = read_records(document)
    rows = []
    both = [latency(records), ours(records)]
    skipped = {"pattern", "pipelined", "compile, s"}

    def picked(cells: Sequence[Cells]) -> list[str]:
        return [
            cell
            for table, line in zip(both, cells, strict=True)
            for head, cell in zip(table.head, line, strict=True)
            if head not in skipped
        ]

    for line, own in zip(both[0].rows, both[1].rows, strict=True):
        name = line[0]
        rows.append([document["patterns"][name]["about"], *picked([line, own])])
    blank = ("",) * len(both[1].columns)
    rows += [[foot[0], *picked([foot, blank])] for foot in both[0].foot]
    heads = [LONG.get(head, head) for head in picked([each.head for each in both])]
    return ["what stands in the way", *heads], rows
