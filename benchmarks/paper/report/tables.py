"""The report's tables, one per question, from stored rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Any

from benchmarks.harness.record import restored
from benchmarks.harness.shown import (
    NOTHING,
    amount,
    count,
    error_size,
    mebibytes,
    microseconds,
    percent,
    ratio,
    seconds,
    shortened,
    yes,
)
from benchmarks.harness.table import Column, Table, graded, made, target_table, words
from benchmarks.harness.targets import Target
from benchmarks.paper.record import Row
from benchmarks.paper.report import figures, published
from benchmarks.paper.report.figures import (
    COMPILED,
    DEFAULT,
    FLOOR,
    MODES,
    OWN,
    PEAK,
    TORCH,
    Ratio,
    Rows,
    figure,
    mean,
    over,
    speed_up,
)

BOUND = "†"
"""Behind figures that rest on a floor that is a sum of kernel times."""
RANDOM = "‡"
"""Behind workloads that draw random numbers."""

MEAN = "geometric mean"
GRAPHS = ("found", "captured", "deployed")
REFERENCES = (DEFAULT, TORCH)
SHOW = {
    "us": microseconds,
    "mib": mebibytes,
    "s": seconds,
    "share": percent,
    "coverage": percent,
    "copied": amount,
}
"""How a field is shown, by the last word of its name; all others are counts."""

NAME = words("workload", lambda row: row.name)
BATCH = Column("batch", lambda row: count(row.about.get("batch")))


def _marked(row: Row, text: str) -> str:
    """What rests on a floor that is a bound."""
    return text + BOUND if text != NOTHING and figures.is_bound(row) else text


def _of(mode: str, field: str, head: str = "", *feet: str) -> Column:
    show = SHOW.get(field.rpartition("_")[2], count)

    def cell(row: Row) -> str:
        text = show(figure(row, mode, field))
        return _marked(row, text) if (mode, field) == (FLOOR, "latency_us") else text

    return Column(head or mode, cell, feet)


def _by_mode(modes: Iterable[str], field: str, group: str = "") -> list[Column]:
    """A column for each mode, below the name of their group if they have one."""
    return [_of(mode, field, f"{group}: {mode}" if group else mode) for mode in modes]


def _with_mean(head: str, value: Ratio, rows: Rows, *feet: str) -> Column:
    return Column(head, lambda row: ratio(value(row)), (_mean(rows, value), *feet))


def _to_floor(mode: str, rows: Rows) -> Column:
    value = over(mode, FLOOR)
    column = _with_mean(f"{mode} / {FLOOR}", value, rows)
    return replace(column, show=lambda row: _marked(row, ratio(value(row))))


def _over(mode: str, foot: str) -> Column:
    value = speed_up(mode)
    return Column(f"over {mode}", lambda row: graded(value(row), ratio(value(row))), (foot,))


def _speed_ups(rows: Rows) -> list[Column]:
    means = [_over(mode, _mean(rows, speed_up(mode))) for mode in REFERENCES]
    return [_to_floor(OWN, rows), *means]


def _mean(rows: Rows, value: Ratio) -> str:
    found = mean(rows.values(), value)
    return NOTHING if found.value is None else f"{found.value:.2f} ({found.rows})"


def _published(head: str, field: str, *feet: str) -> Column:
    return Column(head, lambda row: getattr(published.of(row.name), field) or NOTHING, feet)


def latency(rows: Rows, runs: int = 1) -> Table:
    """With the run that a row comes from where there are several."""
    columns = [NAME, BATCH, *_by_mode(MODES, "latency_us"), *_speed_ups(rows)]
    columns.append(_published("published", "speed_up", f"{published.GEOMEAN} (25)"))
    if runs > 1:
        columns.append(Column("run", lambda row: str(row.run + 1)))
    return made(rows.values(), columns, MEAN)


def whole(rows: Rows) -> Table:
    """The latency in short, for those who do not know the workloads' names."""
    columns = [NAME, words("model", figures.model), BATCH]
    columns += [*_by_mode((*COMPILED, FLOOR), "latency_us"), *_speed_ups(rows)]
    return made(rows.values(), columns, MEAN)


def short(rows: Rows) -> Table:
    """Of a few rows, with the means of all."""

    def mean_of(value: Ratio) -> str:
        return ratio(mean(rows.values(), value).value)

    columns = [words("model", figures.model), BATCH, *_by_mode(COMPILED, "latency_us")]
    columns += [_over(mode, mean_of(speed_up(mode))) for mode in REFERENCES]
    columns.append(replace(_with_mean("peak memory / default", PEAK, rows), feet=[mean_of(PEAK)]))
    return made(figures.sample(rows), columns, f"{MEAN} of all")


def host(rows: Rows) -> Table:
    columns = [NAME]
    for what in ("host", "pipelined"):
        for mode in MODES:
            means = [_mean(rows, over(each, OWN, f"{what}_us")) for each in REFERENCES]
            feet = means if mode == OWN else [""] * len(means)
            columns.append(_of(mode, f"{what}_us", f"{what}: {mode}", *feet))
    return made(rows.values(), columns, *(f"speed-up over {mode}" for mode in REFERENCES))


def coverage(rows: Rows) -> Table:
    """Table 2 of the paper."""

    def counted(head: str, mode: str, field: str) -> Column:
        known = [n for row in rows.values() if (n := figure(row, mode, field)) is not None]
        return _of(mode, field, head, count(sum(known) if known else None))

    columns = [
        *(NAME, *_kernels(TORCH)),
        counted(f"{TORCH}: graphs", TORCH, "graphs_deployed"),
        *_kernels(OWN),
        _published("published: PyTorch", "coverage_torch"),
        _published("published: PyGraph", "coverage"),
        _of(OWN, "graph_launches", f"{OWN}'s graphs: launches"),
        *(counted(f"{OWN}'s graphs: {what}", OWN, f"graphs_{what}") for what in GRAPHS),
    ]
    return made(rows.values(), columns, "sum")


def _kernels(mode: str) -> list[Column]:
    def outside(row: Row) -> str:
        """Kernels that no graph launches."""
        kernels, inside = figure(row, mode, "kernels"), figure(row, mode, "kernels_in_graphs")
        return count(None if kernels is None or inside is None else kernels - inside)

    return [
        _of(mode, "kernels_in_graphs", f"{mode}: inside"),
        Column(f"{mode}: outside", outside),
        _of(mode, "coverage", f"{mode}: coverage"),
    ]


def copied(rows: Rows) -> Table:
    """Table 3 of the paper."""

    def read(row: Row) -> str:
        own = row.mode(OWN)
        return amount(own.extra.get("indices_read") if own is not None else None)

    columns = _by_mode((*COMPILED, *figures.ablations(rows.values())), "bytes_copied")
    columns.append(Column("indices read on the host", read))
    return made(rows.values(), [NAME, *columns, _published("published: PyTorch", "bytes_torch")])


def ablation(rows: Rows) -> Table | None:
    """None where no part was switched off. A ratio above 1: the part makes it faster."""
    modes = figures.ablations(rows.values())
    columns = [NAME, _of(OWN, "latency_us")]
    for mode in modes:
        columns.append(_of(mode, "latency_us"))
        columns.append(_with_mean(f"{mode} / {OWN}", over(mode, OWN), rows))
    shown = [row for row in rows.values() if any(map(row.mode, modes))]
    return made(shown, columns, MEAN) if modes else None


def compile_cost(rows: Rows) -> Table:
    """Figure 13 of the paper, and what the first call takes without caches."""

    def over_mode(mode: str, theirs: str) -> Column:
        return _with_mean(f"{OWN} / {mode}", figures.compile_over(mode), rows, theirs)

    columns = [NAME, *_by_mode(COMPILED, "compile_s")]
    columns += [over_mode(DEFAULT, ""), over_mode(TORCH, published.COMPILE)]
    columns += _by_mode(COMPILED, "cold_compile_s", "no caches")
    return made(rows.values(), columns, MEAN, "published")


def memory(rows: Rows) -> Table:
    peak, *others = (_by_mode(COMPILED, f"{of}_mib", of) for of in ("peak", "reserved", "held"))
    over_default = _with_mean(f"peak: {OWN} / {DEFAULT}", PEAK, rows)
    return made(rows.values(), [NAME, *peak, over_default, *others[0], *others[1]], MEAN)


def distance(rows: Rows) -> Table:
    """The farthest from the floor first."""
    columns = [NAME, _of(FLOOR, "latency_us"), *(_to_floor(mode, rows) for mode in (TORCH, OWN))]
    columns.append(_of(OWN, "kernel_us", "kernel time"))
    columns += _by_mode((TORCH, OWN), "idle_share", "idle")
    return made(figures.by_distance(rows.values()), columns, MEAN)


def correctness(rows: Rows) -> Table:
    def told(head: str, key: str, show: Callable[[Any], str] = error_size) -> Column:
        """Of pygraph's verdict."""
        return Column(head, lambda row: show(figures.verdict(row).get(key)), is_text=show is yes)

    def allowed(head: str, kind: str) -> Column:
        def cell(row: Row) -> str:
            return error_size(row.about.get("check", {}).get("tolerance", {}).get(kind))

        return Column(head, cell)

    def trained(column: Column) -> Column:
        def cell(row: Row) -> str:
            return column.show(row) if row.about.get("training") else NOTHING

        return replace(column, show=cell)

    def right(row: Row) -> str:
        good = sum(not figures.why_wrong(each) for each in row.records)
        return f"{good} of {len(row.records)}" if row.records else NOTHING

    columns = [
        words("workload", lambda row: row.name + (RANDOM if row.about.get("random") else "")),
        words("pygraph right", lambda row: yes(getattr(row.mode(OWN), "correct", None))),
        told("results: error", "relative_error"),
        allowed("results: allowed", "outputs"),
        trained(told("gradients: error", "gradient_error")),
        trained(allowed("gradients: allowed", "gradients")),
        told("bit-equal to default", "bit_equal_to_default", yes),
        told("without graphs: bit-equal", "bit_equal_to_uncaptured", yes),
        told("without graphs: distance", "distance_to_uncaptured"),
        told("without graphs: its spread", "uncaptured_spread"),
        Column("modes right", right),
    ]
    return made(rows.values(), columns)


def about(rows: Rows) -> Table:
    def said(key: str) -> Column:
        return words(key, lambda row: str(row.about.get(key) or NOTHING))

    kind = words("iteration", lambda row: "training" if row.about.get("training") else "inference")
    end = map(said, ("precision", "source", "deviation"))
    return made(rows.values(), [NAME, said("model"), said("suite"), kind, BATCH, *end])


def fallbacks(rows: Rows) -> Table | None:
    """Compiled graphs that pygraph runs as they are."""
    found = [
        (name, str(each.get("graph", NOTHING)), shortened(str(each.get("reason", NOTHING))))
        for name, row in rows.items()
        for each in figure(row, OWN, "fallbacks") or []
    ]
    heads = enumerate(("workload", "graph", "why it is no CUDA graph"))
    return made(found, [words(head, itemgetter(n)) for n, head in heads]) if found else None


ENVIRONMENT = {
    "gpu": "GPU",
    "driver": "driver",
    "torch": "torch",
    "cuda": "CUDA",
    "python": "Python",
    "cpu": "CPU",
}


def common(content: Mapping[str, Any]) -> dict[str, str]:
    """What all runs were measured on, by the name of its column."""
    found = [run.get("env", {}) for run in content.get("runs", [])]
    values = {
        name: {str(env.get(key) or NOTHING) for env in found} for key, name in ENVIRONMENT.items()
    }
    return {name: next(iter(each)) for name, each in values.items() if len(each) == 1}


def runs(content: Mapping[str, Any], rows: Rows) -> Table:
    """With what differs from run to run; `common` has the rest."""

    def env(head: str, key: str, most: int | None = None) -> Column:
        return words(head, lambda each: str(each[1].get("env", {}).get(key) or NOTHING)[:most])

    def minutes(each: tuple[int, Mapping[str, Any]]) -> str:
        took = each[1].get("seconds")
        return f"{took / 60:,.0f}" if took else NOTHING

    columns = [
        words("run", lambda each: str(each[0] + 1)),
        env("date", "date", 10),
        *(env(name, key) for key, name in ENVIRONMENT.items() if name not in common(content)),
        Column("workloads", lambda each: str(figures.rows_in(each[0], rows))),
        Column("minutes", minutes),
        words("command", lambda each: str(each[1].get("command") or NOTHING)),
    ]
    return made(enumerate(content.get("runs", [])), columns)


def targets(found: Iterable[Mapping[str, Any]]) -> Table:
    return target_table((restored(Target, each) for each in found), with_requirement=True)
