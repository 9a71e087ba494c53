"""The benchmark's figures as tables, for a terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.callables.modes import CALLABLES, MODES, OWN
from benchmarks.callables.record import Record, beyond_eager
from benchmarks.callables.targets import evaluate, goal
from benchmarks.harness import markdown
from benchmarks.harness.figures import right
from benchmarks.harness.record import by_mode, restored
from benchmarks.harness.shown import (
    NOTHING,
    count,
    mebibytes,
    microseconds,
    number,
    ratio,
    seconds,
    shortened,
)
from benchmarks.harness.table import Column, Table, made, marked, target_table, words

ROW = words("row", lambda row: row[0])
SKIPPED = "skipped"
PLAIN = [mode for mode in MODES if mode not in CALLABLES]


def columns(show: Callable[[Record], str], modes: Sequence[str] = PLAIN) -> list[Column]:
    """One per mode. What was not run is none of the failures."""

    def column(mode: str) -> Column:
        def cell(row: Any) -> str:
            found: Record | None = row[1].get(mode)
            if found is None:
                return NOTHING
            if found.skipped is not None:
                return marked(SKIPPED, "none")
            return show(found) if right(found) else marked("failed", "bad")

        return Column(mode, cell)

    return list(map(column, modes))


def _goal(row: Any) -> str:
    target = goal(*row)
    if target is None:
        return NOTHING
    text = f"{number(target.value)} of {number(target.limit)}"
    if target.met is None:
        return marked(text, "open")
    return marked(
        f"{text}, met" if target.met else f"{text}, MISSED", "good" if target.met else "bad"
    )


def tables(records: Sequence[Record]) -> list[Table]:
    rows = list(by_mode(records).items())
    return [
        made(
            rows,
            [ROW, *columns(lambda each: microseconds(each.latency_us)), words("goal", _goal)],
            title="latency of a call, us (median; a sync after each)",
        ),
        made(
            rows,
            [ROW, *columns(lambda each: microseconds(each.host_us))],
            title="host time until a call returns, us (median; the GPU idle before)",
        ),
        made(
            rows,
            [ROW, *columns(lambda each: microseconds(each.pipelined_us))],
            title="pipelined time of a call, us (no sync between calls)",
        ),
        made(
            rows,
            [ROW, *columns(_jitter)],
            title="99th percentile of the latency, us, and over the median",
        ),
        _memory(rows),
        made(
            rows,
            [ROW, *columns(_prepared)],
            title="seconds until the steady state; graphs launched, kernels outside of graphs",
        ),
        *_graphed(rows),
    ]


def _jitter(found: Record) -> str:
    return f"{microseconds(found.latency_p99_us)}; {ratio(found.jitter)}"


def _prepared(found: Record) -> str:
    return f"{seconds(found.prepare_s)}; {count(found.graphs)}, {count(found.outside)}"


def _memory(rows: Sequence[Any]) -> Table:
    def held(mode: str) -> Column:
        def cell(row: Any) -> str:
            found = beyond_eager(row[1], mode)
            if found is None:
                return NOTHING
            peak = mebibytes(row[1][mode].peak_mib)
            return "/".join([*(f"{each:+,.0f}" for each in found.values()), peak])

        return Column(mode, cell)

    title = (
        "MiB held between calls beyond eager's, by torch allocated/torch reserved/the driver"
        "/and the peak allocated in calls, with the program"
    )
    return made(rows, [ROW, *map(held, PLAIN)], title=title)


def _graphed(rows: Sequence[Any]) -> list[Table]:
    """Those rows that have make_graphed_callables."""
    having = [row for row in rows if any(mode in row[1] for mode in CALLABLES)]
    if not having:
        return []

    def show(found: Record) -> str:
        return f"{microseconds(found.host_us)} / {microseconds(found.latency_us)}"

    title = "host time / latency of a call with parts graphed, us"
    return [made(having, [ROW, *columns(show, ["eager", *CALLABLES, OWN])], title=title)]


def wrong(records: Sequence[Record]) -> list[str]:
    return [
        f"{each.workload}, {each.mode}: {each.error}"
        for each in records
        if each.skipped is None and not each.timed
    ]


def skipped(records: Sequence[Record]) -> list[str]:
    return [
        f"{each.workload}, {each.mode}: {each.skipped}"
        for each in records
        if each.skipped is not None
    ]


def not_graphed(records: Sequence[Record]) -> list[str]:
    """What runs as it is, since it has no graph: it can be right, and shows nothing of graphs."""
    return [
        f"{each.workload}, {each.mode}, {found['graph']}: {shortened(found['reason'])}"
        for each in records
        for found in each.fallbacks
    ]


def bits(records: Sequence[Record]) -> str:
    """How many of pygraph's results have eager's bits."""
    own = [each for each in records if each.mode == OWN and each.timed]
    equal = sum(bool(each.verdict.get("bit_equal")) for each in own)
    return f"pygraph bit-equal to eager, results and state: {equal} of {len(own)} rows"


def _host_speed(row: Mapping[str, Any]) -> str:
    steps = " and ".join(f"{each:.0f}" for each in row.get("loop_step_ns", ()))
    return f"; the host took {steps} ns for a step of a loop in Python" if steps else ""


def page(content: Mapping[str, Any]) -> str:
    """A record in Markdown."""
    records = [restored(Record, each) for each in content["records"]]
    env = content["env"]
    machine = f"{env.get('gpu')}, driver {env.get('driver')}, torch {env.get('torch')}"
    rows = content["rows"].items()
    about = [f"- `{name}`: {row['about']}{_host_speed(row)}" for name, row in rows]
    parts = [f"{machine}, {str(env.get('date'))[:10]}. `{content['command']}`", "\n".join(about)]
    targets = target_table(evaluate(list(content["rows"]), records), with_requirement=True)
    for table in [*tables(records), targets]:
        parts += [f"**{table.title}**", markdown.table(table)]
    told = [bits(records), *(f"wrong: {each}" for each in wrong(records))]
    told += [f"without a graph: {each}" for each in not_graphed(records)]
    told += [f"skipped: {each}" for each in skipped(records)]
    told += [f"failed: {each['job']}: {each['error']}" for each in content["errors"]]
    parts.append("\n".join(f"- {markdown.escape(each)}" for each in told))
    return "\n\n".join(parts) + "\n"
