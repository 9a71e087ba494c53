"""The report's tables, one per question, from stored rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.paper.record import Row
from benchmarks.paper.report import blocks, figures, published
from benchmarks.paper.report.blocks import NOTHING, Column, Table, made, words
from benchmarks.paper.report.figures import (
    COMPILED,
    DEFAULT,
    FLOOR,
    MODES,
    OWN,
    TORCH,
    Ratio,
    Rows,
    figure,
    mean,
    over,
    speed_up,
)

MEAN = "geometric mean"
PEAK = over(OWN, DEFAULT, "peak_mib")
GRAPHS = ("found", "captured", "deployed")
REFERENCES = (DEFAULT, TORCH)

NAME = words("workload", lambda row: row.name)
BATCH = Column("batch", lambda row: blocks.count(row.about.get("batch")))


def _mark(row: Row) -> str:
    return blocks.BOUND if figures.is_bound(row) else ""


def _figure(
    head: str, mode: str, field: str, show: Callable[[Any], str], feet: Sequence[str] = ()
) -> Column:
    return Column(head, lambda row: show(figure(row, mode, field)), feet)


def _by_mode(
    modes: Iterable[str], field: str, show: Callable[[Any], str], group: str = ""
) -> list[Column]:
    """A column for each mode, below the name of their group if they have one."""
    return [_figure(f"{group}: {m}" if group else m, m, field, show) for m in modes]


def _latency(mode: str) -> Column:
    """A floor that is a bound is marked."""

    def show(row: Row) -> str:
        text = blocks.microseconds(figure(row, mode, "latency_us"))
        return text + _mark(row) if mode == FLOOR and text != NOTHING else text

    return Column(mode, show)


def _ratio(head: str, value: Ratio, *feet: str) -> Column:
    return Column(head, lambda row: blocks.ratio(value(row)), feet)


def _with_mean(head: str, value: Ratio, rows: Rows, *feet: str) -> Column:
    return _ratio(head, value, _mean(rows, value), *feet)


def _to_floor(mode: str, rows: Rows) -> Column:
    value = over(mode, FLOOR)

    def show(row: Row) -> str:
        return blocks.ratio(value(row), _mark(row))

    return Column(f"{mode} / {FLOOR}", show, (_mean(rows, value),))


def _mean(rows: Rows, value: Ratio) -> str:
    found = mean(rows.values(), value)
    return NOTHING if found.value is None else f"{found.value:.2f} ({found.count})"


def _published(head: str, field: str, feet: Sequence[str] = ()) -> Column:
    return Column(head, lambda row: getattr(published.of(row.name), field) or NOTHING, feet)


def latency(rows: Rows, runs: int = 1) -> Table:
    """With the run that a row comes from where there are several."""
    columns = [NAME, BATCH, *map(_latency, MODES), *_speed_ups(rows)]
    columns.append(_published("published", "speed_up", [f"{published.GEOMEAN} (25)"]))
    if runs > 1:
        columns.append(Column("run", lambda row: str(row.run + 1)))
    return made(rows.values(), columns, MEAN)


def _speed_ups(rows: Rows) -> list[Column]:
    over_torch = [_with_mean(f"over {mode}", speed_up(mode), rows) for mode in REFERENCES]
    return [_to_floor(OWN, rows), *over_torch]


def whole(rows: Rows) -> Table:
    """The latency in short, for those who do not know the workloads' names."""
    columns = [NAME, words("model", figures.model), BATCH]
    columns += [*map(_latency, (*COMPILED, FLOOR)), *_speed_ups(rows)]
    return made(rows.values(), columns, MEAN)


def short(rows: Rows) -> Table:
    """Of a few rows, with the means of all."""
    ratios: dict[str, Ratio] = {f"over {mode}": speed_up(mode) for mode in REFERENCES}
    ratios["peak memory / default"] = PEAK
    columns = [words("model", figures.model), BATCH, *map(_latency, COMPILED)]
    for head, value in ratios.items():
        columns.append(_ratio(head, value, blocks.ratio(mean(rows.values(), value).value)))
    return made(figures.sample(rows), columns, f"{MEAN} of all {len(rows)}")


def host(rows: Rows) -> Table:
    columns = [NAME]
    for what in ("host", "pipelined"):
        for mode in MODES:
            field, feet = f"{what}_us", [""] * len(REFERENCES)
            if mode == OWN:
                feet = [_mean(rows, over(each, OWN, field)) for each in REFERENCES]
            columns.append(_figure(f"{what}: {mode}", mode, field, blocks.microseconds, feet))
    return made(rows.values(), columns, *(f"speed-up over {mode}" for mode in REFERENCES))


def coverage(rows: Rows) -> Table:
    """Table 2 of the paper."""

    def counted(head: str, mode: str, field: str) -> Column:
        known = [n for row in rows.values() if (n := figure(row, mode, field)) is not None]
        total = blocks.count(sum(known) if known else None)
        return _figure(head, mode, field, blocks.count, (total,))

    return made(
        rows.values(),
        [
            *(NAME, *_kernels(TORCH)),
            counted(f"{TORCH}: graphs", TORCH, "graphs_deployed"),
            *_kernels(OWN),
            _published("published: PyTorch", "coverage_torch"),
            _published("published: PyGraph", "coverage"),
            _figure(f"{OWN}'s graphs: launches", OWN, "graph_launches", blocks.count),
            *(counted(f"{OWN}'s graphs: {what}", OWN, f"graphs_{what}") for what in GRAPHS),
        ],
        "sum",
    )


def _kernels(mode: str) -> list[Column]:
    def outside(row: Row) -> str:
        """Kernels that no graph launches."""
        kernels, inside = figure(row, mode, "kernels"), figure(row, mode, "kernels_in_graphs")
        return blocks.count(None if kernels is None or inside is None else kernels - inside)

    return [
        _figure(f"{mode}: inside", mode, "kernels_in_graphs", blocks.count),
        Column(f"{mode}: outside", outside),
        _figure(f"{mode}: coverage", mode, "coverage", blocks.percent),
    ]


def copied(rows: Rows) -> Table:
    """Table 3 of the paper."""

    def read(row: Row) -> str:
        own = row.mode(OWN)
        return blocks.amount(own.extra.get("indices_read") if own is not None else None)

    modes = (*COMPILED, *figures.ablations(rows))
    columns = _by_mode(modes, "bytes_copied", blocks.amount)
    columns += [Column("indices read on the host", read)]
    columns += [_published("published: PyTorch", "bytes_torch")]
    return made(rows.values(), [NAME, *columns])


def ablation(rows: Rows) -> Table | None:
    """None where no part was switched off. A ratio above 1: the part makes it faster."""
    modes = figures.ablations(rows)
    columns = [NAME, _latency(OWN)]
    for mode in modes:
        columns += [_latency(mode), _with_mean(f"{mode} / {OWN}", over(mode, OWN), rows)]
    shown = [row for row in rows.values() if any(map(row.mode, modes))]
    return made(shown, columns, MEAN) if modes else None


def compile_cost(rows: Rows) -> Table:
    """Figure 13 of the paper, and what the first call takes without caches."""

    def ratio(mode: str, theirs: str) -> Column:
        return _with_mean(f"{OWN} / {mode}", over(OWN, mode, "compile_s"), rows, theirs)

    columns = [NAME, *_by_mode(COMPILED, "compile_s", blocks.seconds)]
    columns += [ratio(DEFAULT, ""), ratio(TORCH, published.COMPILE)]
    columns += _by_mode(REFERENCES, "cold_compile_s", blocks.seconds, "no caches")
    return made(rows.values(), columns, MEAN, "published")


def memory(rows: Rows) -> Table:
    def of(what: str) -> list[Column]:
        return _by_mode(COMPILED, f"{what}_mib", blocks.mebibytes, what)

    ratio = _with_mean(f"peak: {OWN} / {DEFAULT}", PEAK, rows)
    columns = [NAME, *of("peak"), ratio, *of("reserved"), *of("held")]
    return made(rows.values(), columns, MEAN)


def distance(rows: Rows) -> Table:
    """The farthest from the floor first."""
    return made(
        figures.by_distance(rows.values()),
        [
            *(NAME, _latency(FLOOR), *(_to_floor(mode, rows) for mode in (TORCH, OWN))),
            _figure("kernel time", OWN, "kernel_us", blocks.microseconds),
            *_by_mode((TORCH, OWN), "idle_share", blocks.percent, "idle"),
        ],
        MEAN,
    )


def correctness(rows: Rows) -> Table:
    def name(row: Row) -> str:
        return row.name + (blocks.RANDOM if row.about.get("random") else "")

    def own(row: Row) -> str:
        found = row.mode(OWN)
        return blocks.yes(found.correct if found else None)

    def error(head: str, key: str, trained: bool = False) -> Column:
        def show(row: Row) -> str:
            return blocks.error_size(figures.verdict(row, OWN).get(key))

        return Column(head, trained_only(show) if trained else show)

    def equal(head: str, key: str) -> Column:
        return words(head, lambda row: blocks.yes(figures.verdict(row, OWN).get(key)))

    def allowed(row: Row, kind: str) -> str:
        return blocks.error_size(row.about.get("check", {}).get("tolerance", {}).get(kind))

    def right(row: Row) -> str:
        count = sum(not figures.why_wrong(each) for each in row.records)
        return f"{count} of {len(row.records)}" if row.records else NOTHING

    return made(
        rows.values(),
        [
            words("workload", name),
            words("pygraph right", own),
            error("results: error", "relative_error"),
            Column("results: allowed", lambda row: allowed(row, "outputs")),
            error("gradients: error", "gradient_error", trained=True),
            Column("gradients: allowed", trained_only(lambda row: allowed(row, "gradients"))),
            equal("bit-equal to default", "bit_equal_to_default"),
            equal("without graphs: bit-equal", "bit_equal_to_uncaptured"),
            error("without graphs: distance", "distance_to_uncaptured"),
            error("without graphs: its spread", "uncaptured_spread"),
            Column("modes right", right),
        ],
    )


def trained_only(show: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda row: show(row) if row.about.get("training") else NOTHING


def _said(key: str) -> Column:
    return words(key, lambda row: str(row.about.get(key) or NOTHING))


def about(rows: Rows) -> Table:
    kind = words("iteration", lambda row: "training" if row.about.get("training") else "inference")
    end = map(_said, ("precision", "source", "deviation"))
    return made(rows.values(), [NAME, _said("model"), _said("suite"), kind, BATCH, *end])


def fallbacks(rows: Rows) -> Table | None:
    """Compiled graphs that pygraph runs as they are."""
    found = [
        (name, str(each.get("graph", NOTHING)), blocks.shortened(str(each.get("reason", NOTHING))))
        for name, row in rows.items()
        for each in figure(row, OWN, "fallbacks") or []
    ]
    head = ("workload", "graph", "why it is no CUDA graph")
    return Table(head, found, (0, 1, 2)) if found else None


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
    shared, numbered = common(content), enumerate(content.get("runs", []))

    def of(key: str) -> Callable[[Any], str]:
        return lambda each: str(each[1].get("env", {}).get(key) or NOTHING)

    def minutes(each: Any) -> str:
        took = each[1].get("seconds")
        return NOTHING if not took else f"{took / 60:,.0f}"

    columns = [
        words("run", lambda each: str(each[0] + 1)),
        words("date", lambda each: of("date")(each)[:10]),
        *(words(n, of(key)) for key, n in ENVIRONMENT.items() if n not in shared),
        Column("workloads", lambda each: str(figures.rows_in(each[0], rows))),
        Column("minutes", minutes),
        words("command", lambda each: str(each[1].get("command") or NOTHING)),
    ]
    return made(list(numbered), columns)


def targets(found: Sequence[Mapping[str, Any]]) -> Table:
    return made(
        found,
        [
            words("target", lambda each: str(each["name"])),
            words("requirement", lambda each: str(each["requirement"])),
            Column("value", lambda each: _number(each.get("value"))),
            Column("limit", lambda each: _number(each.get("limit"))),
            words("met", _judged),
            words("detail", lambda each: str(each.get("detail") or "")),
        ],
    )


def _judged(target: Mapping[str, Any]) -> str:
    """Of what is not judged, that it has a value tells open from not measured."""
    met = target.get("met")
    if met is not None:
        return "yes" if met else "NO"
    return "not measured" if target.get("value") is None else "open"


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}".rstrip("0").rstrip(".")
