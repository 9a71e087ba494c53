"""The scenarios as tables, for a terminal and for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import markdown
from benchmarks.harness.figures import Modes, figure, right
from benchmarks.harness.record import by_mode
from benchmarks.harness.shown import NOTHING, microseconds, number, percent, ratio, shortened
from benchmarks.harness.table import Column, Table, by_modes, made, marked, target_table, words
from benchmarks.harness.targets import Target
from benchmarks.selection import goals
from benchmarks.selection.catalogue import THEME_OF
from benchmarks.selection.goals import FINE, MISSED, NOISE
from benchmarks.selection.modes import MODES, OWN
from benchmarks.selection.record import Record, read_records

KINDS = {FINE: "", NOISE: "open", MISSED: "bad"}
LONGEST = 60
"""Of what was decided, in a terminal."""


def cost(mode: str) -> Column:
    return Column(mode, lambda row: microseconds(goals.cost(row[1], mode)))


def best(modes: Modes) -> str:
    name = goals.best(modes)
    if name is None:
        return NOTHING
    return f"{microseconds(goals.cost(modes, name))} ({name.removeprefix('pygraph-')})"


def over_best(modes: Modes) -> str:
    found = goals.over_best(modes)
    text = NOTHING if found is None else f"{found:.3f}"
    return marked(text, KINDS.get(goals.grade(modes) or FINE, ""))


def over_default(modes: Modes) -> str:
    found = goals.over_default(modes)
    return NOTHING if found is None else f"{found:.3f}"


def decisions(modes: Modes) -> list[str]:
    """Each once."""
    return list(dict.fromkeys(figure(modes, OWN, "selection") or []))


def caller(modes: Modes) -> str:
    return str(next(iter(modes.values())).caller)


def costs(records: Sequence[Record], longest: int = LONGEST) -> Table:
    rows = by_mode(records)
    found = goals.summary(rows)

    def feet(name: str) -> tuple[str, str]:
        each = found[name]
        return tuple(  # type: ignore[return-value]
            NOTHING if each[kind] is None else f"{each[kind]:.3f}" for kind in ("median", "geomean")
        )

    columns = [
        words("scenario", lambda row: row[0]),
        words("theme", lambda row: THEME_OF.get(row[0], NOTHING)),
        words("caller", lambda row: caller(row[1])),
        cost("default"),
        cost("reduce-overhead"),
        Column("best", lambda row: best(row[1])),
        cost(OWN),
        Column("/ best", lambda row: over_best(row[1]), feet("pygraph/best")),
        Column("/ default", lambda row: over_default(row[1]), feet("pygraph/default")),
        Column("noise", lambda row: percent(goals.noise(row[1]))),
        Column("p99", lambda row: microseconds(figure(row[1], OWN, "latency_p99_us"))),
        words("decided", lambda row: shortened("; ".join(decisions(row[1])), longest) or NOTHING),
    ]
    title = "cost, us (waits: until the GPU is idle; flows: per call in a row); pygraph / others"
    return made(rows.items(), columns, "median", "geometric mean", title=title)


def choices(records: Sequence[Record]) -> Table:
    """Of all modes."""
    columns = [
        words("scenario", lambda row: row[0]),
        *(
            Column(each.head.removeprefix("pygraph-"), each.show)
            for each in by_modes(MODES, lambda each: microseconds(each.cost_us))
        ),
        Column("settling, s", lambda row: ratio(figure(row[1], OWN, "settling_s"))),
        Column("compile, s", lambda row: ratio(figure(row[1], OWN, "compile_s"))),
        Column("peak, MiB", lambda row: microseconds(figure(row[1], OWN, "peak_mib"))),
    ]
    return made(by_mode(records).items(), columns, title="cost of all modes, us; pygraph's s, MiB")


def tables(records: Sequence[Record]) -> list[Table]:
    return [costs(records), choices(records), target_table(goals.targets(by_mode(records)), True)]


def wrong(modes: Modes) -> list[str]:
    return [mode for mode, each in modes.items() if not right(each)]


def in_short(modes: Modes) -> str:
    """One line about a scenario."""
    known = [f"{mode} {microseconds(goals.cost(modes, mode))}" for mode in MODES if mode in modes]
    named = f"; wrong: {', '.join(wrong(modes))}" if wrong(modes) else ""
    return f"{', '.join(known)} us; {over_best(modes)} of best{named}"


def goal_lines(targets: Sequence[Target]) -> list[str]:
    """The goals in words."""
    met = {True: "met", False: "MISSED", None: "not measured"}
    return [
        f"{met[each.met]}: {each.requirement}: {each.name} {number(each.value)}, "
        f"limit {number(each.limit)}" + (f"; {each.detail}" if each.detail else "")
        for each in targets
    ]


def goals_of(document: Mapping[str, Any]) -> list[str]:
    return goal_lines(goals.targets(by_mode(read_records(document))))


def unsettled(records: Sequence[Record]) -> list[str]:
    return [
        f"{each.workload}, {each.mode}: still undecided after {each.settling_calls} calls, "
        f"{each.settling_s:.1f} s"
        for each in records
        if each.settled is False
    ]


def notes(records: Sequence[Record]) -> list[str]:
    """Beside the tables: what was undecided, compiled within the clocks, or has no graph."""
    lines = unsettled(records)
    for each in records:
        if each.mode == OWN:
            if each.compiled_in_clocks:
                lines.append(f"{each.workload}: {each.compiled_in_clocks} compiled in the clocks")
            why = dict.fromkeys(shortened(found["reason"], 160) for found in each.fallbacks)
            lines += [f"{each.workload}: no graph: {reason}" for reason in why]
    return lines


def page(document: Mapping[str, Any]) -> str:
    """A record in Markdown: its first table, with what scenarios are for their names."""
    records = read_records(document)
    table = costs(records, longest=200)
    about = document["scenarios"]
    rows = [(about[row[0]]["about"], *row[1:]) for row in table.rows]
    return markdown.table(Table(table.columns, rows, table.foot))
