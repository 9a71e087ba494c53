"""The report's tables, one per question, from stored rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.paper.record import Row
from benchmarks.paper.report import blocks, figures, published
from benchmarks.paper.report.blocks import NOTHING, Cells, Table
from benchmarks.paper.report.figures import (
    COMPILED,
    DEFAULT,
    EAGER,
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
ABOUT_RATIOS: tuple[Ratio, ...] = (over(OWN, FLOOR), speed_up(DEFAULT), speed_up(TORCH))


def _batch(row: Row) -> str:
    return blocks.count(row.about.get("batch"))


def _floor_mark(row: Row) -> str:
    return blocks.BOUND if figures.is_bound(row) else ""


def _times(row: Row, field: str, modes: Sequence[str]) -> list[str]:
    """A floor that is a bound is marked, where the field is the latency."""
    shown = [blocks.microseconds(figure(row, mode, field)) for mode in modes]
    if FLOOR in modes and field == "latency_us" and shown[modes.index(FLOOR)] != NOTHING:
        shown[modes.index(FLOOR)] += _floor_mark(row)
    return shown


def _ratios(row: Row) -> list[str]:
    to_floor, *rest = (value(row) for value in ABOUT_RATIOS)
    return [blocks.ratio(to_floor, _floor_mark(row)), *map(blocks.ratio, rest)]


def _mean(rows: Rows, value: Ratio) -> str:
    found = mean(rows.values(), value)
    return NOTHING if found.value is None else f"{found.value:.2f} ({found.count})"


def latency(rows: Rows, runs: int = 1) -> Table:
    """With the run that a row comes from where there are several."""
    several = runs > 1
    head = (
        *("workload", "batch", *MODES, "pygraph / floor", "over default", "over reduce-overhead"),
        *("published", *(["run"] if several else [])),
    )
    lines: list[Cells] = []
    for name, row in rows.items():
        known = published.of(name).speed_up
        end = [known.text if known else NOTHING, *([str(row.run + 1)] if several else [])]
        times = _times(row, "latency_us", MODES)
        lines.append((name, _batch(row), *times, *_ratios(row), *end))
    means = [_mean(rows, value) for value in ABOUT_RATIOS]
    tail = [f"{published.GEOMEAN.text} (25)", *([""] if several else [])]
    foot = (MEAN, "", *("" for _ in MODES), *means, *tail)
    return Table(head, lines, foot=[foot])


def short(rows: Rows) -> Table:
    """Of a few rows, with the means of all."""
    ratios: tuple[Ratio, ...] = (
        *(speed_up(DEFAULT), speed_up(TORCH)),
        over(OWN, DEFAULT, "peak_mib"),
    )
    head = (
        *("model", "batch", *COMPILED),
        *("over default", "over reduce-overhead", "peak memory / default"),
    )
    lines = [
        (
            *(figures.model(row), _batch(row), *_times(row, "latency_us", COMPILED)),
            *(blocks.ratio(value(row)) for value in ratios),
        )
        for row in figures.sample(rows)
    ]
    means = [blocks.ratio(mean(rows.values(), value).value) for value in ratios]
    foot = (f"{MEAN} of all {len(rows)}", "", *("" for _ in COMPILED), *means)
    return Table(head, lines, foot=[foot])


def host(rows: Rows) -> Table:
    modes = (EAGER, *COMPILED, FLOOR)
    head = (
        "workload",
        *(f"host: {mode}" for mode in modes),
        *(f"pipelined: {mode}" for mode in modes),
    )
    lines = [
        (name, *_times(row, "host_us", modes), *_times(row, "pipelined_us", modes))
        for name, row in rows.items()
    ]
    feet = []
    for reference in (DEFAULT, TORCH):
        shown = {
            field: _mean(rows, over(reference, OWN, field)) for field in ("host_us", "pipelined_us")
        }
        place = modes.index(OWN)
        cells = [["" for _ in modes] for _ in shown]
        for part, text in zip(cells, shown.values(), strict=True):
            part[place] = text
        feet.append((f"speed-up over {reference}", *cells[0], *cells[1]))
    return Table(head, lines, foot=feet)


def coverage(rows: Rows) -> Table:
    """Table 2 of the paper."""
    kernels = ("inside", "outside", "coverage")
    head = (
        "workload",
        *(f"{TORCH}: {what}" for what in (*kernels, "graphs")),
        *(f"{OWN}: {what}" for what in kernels),
        *("published: PyTorch", "published: PyGraph"),
        *(f"{OWN}'s graphs: {what}" for what in ("launches", "found", "captured", "deployed")),
    )
    lines: list[Cells] = []
    for name, row in rows.items():
        known = published.of(name)
        cells = [
            *_kernels(row, TORCH),
            blocks.count(figure(row, TORCH, "graphs_deployed")),
            *_kernels(row, OWN),
            *(each.text if each else NOTHING for each in (known.coverage_torch, known.coverage)),
            *(blocks.count(figure(row, OWN, each)) for each in ("graph_launches", *GRAPHS)),
        ]
        lines.append((name, *cells))
    sums = [blocks.count(figures.total(rows.values(), OWN, field)) for field in GRAPHS]
    theirs = blocks.count(figures.total(rows.values(), TORCH, "graphs_deployed"))
    return Table(head, lines, foot=[("sum", *[""] * 3, theirs, *[""] * 6, *sums)])


def _kernels(row: Row, mode: str) -> tuple[str, str, str]:
    return (
        blocks.count(figure(row, mode, "kernels_in_graphs")),
        blocks.count(figures.outside(row, mode)),
        blocks.percent(figure(row, mode, "coverage")),
    )


GRAPHS = ("graphs_found", "graphs_captured", "graphs_deployed")


def copied(rows: Rows) -> Table:
    """Table 3 of the paper."""
    modes = (DEFAULT, TORCH, OWN, *figures.ablations(rows))
    lines: list[Cells] = []
    for name, row in rows.items():
        known = published.of(name).bytes_torch
        shown = [blocks.amount(figure(row, mode, "bytes_copied")) for mode in modes]
        own = row.mode(OWN)
        read = blocks.amount(own.extra.get("indices_read") if own is not None else None)
        lines.append((name, *shown, read, known.text if known else NOTHING))
    return Table(("workload", *modes, "indices read on the host", "published: PyTorch"), lines)


def ablation(rows: Rows) -> Table | None:
    """None where no part was switched off. A ratio above 1: the part makes it faster."""
    modes = figures.ablations(rows)
    if not modes:
        return None
    head = ["workload", OWN]
    for mode in modes:
        head += [mode, f"{mode} / {OWN}"]
    lines: list[Cells] = []
    for name, row in rows.items():
        if not any(row.mode(mode) for mode in modes):
            continue
        cells = [blocks.microseconds(figure(row, OWN, "latency_us"))]
        for mode in modes:
            cells.append(blocks.microseconds(figure(row, mode, "latency_us")))
            cells.append(blocks.ratio(over(mode, OWN)(row)))
        lines.append((name, *cells))
    means = [each for mode in modes for each in ("", _mean(rows, over(mode, OWN)))]
    return Table(tuple(head), lines, foot=[(MEAN, "", *means)])


def compile_cost(rows: Rows) -> Table:
    """Figure 13 of the paper, and what the first call takes without caches."""
    field, cold = "compile_s", "cold_compile_s"
    references = (DEFAULT, TORCH)
    head = (
        "workload",
        *COMPILED,
        *(f"{OWN} / {mode}" for mode in references),
        *(f"no caches: {mode}" for mode in references),
    )
    lines = [
        (
            name,
            *(blocks.seconds(figure(row, mode, field)) for mode in COMPILED),
            *(blocks.ratio(over(OWN, mode, field)(row)) for mode in references),
            *(blocks.seconds(figure(row, mode, cold)) for mode in references),
        )
        for name, row in rows.items()
    ]
    means = [*(_mean(rows, over(OWN, mode, field)) for mode in references), "", ""]
    paper = ("published", *("" for _ in COMPILED), "", published.COMPILE.text, "", "")
    return Table(head, lines, foot=[(MEAN, *("" for _ in COMPILED), *means), paper])


def memory(rows: Rows) -> Table:
    fields = {"peak": "peak_mib", "reserved": "reserved_mib", "held": "held_mib"}
    ratio = f"peak: {OWN} / {DEFAULT}"
    columns = [(what, mode) for what in fields for mode in COMPILED]
    place = 1 + len(COMPILED)
    head = ["workload", *(f"{what}: {mode}" for what, mode in columns)]
    head.insert(place, ratio)
    peak = over(OWN, DEFAULT, "peak_mib")
    lines: list[Cells] = []
    for name, row in rows.items():
        cells = [
            name,
            *(blocks.mebibytes(figure(row, mode, fields[what])) for what, mode in columns),
        ]
        cells.insert(place, blocks.ratio(peak(row)))
        lines.append(tuple(cells))
    foot = [MEAN, *("" for _ in columns)]
    foot.insert(place, _mean(rows, peak))
    return Table(tuple(head), lines, foot=[tuple(foot)])


def distance(rows: Rows) -> Table:
    """The farthest from the floor first."""
    head = (
        *("workload", "floor", "reduce-overhead / floor", "pygraph / floor"),
        *("kernel time", "idle: reduce-overhead", "idle: pygraph"),
    )
    lines: list[Cells] = []
    for row in figures.by_distance(rows.values()):
        mark = _floor_mark(row)
        lines.append(
            (
                row.name,
                *_times(row, "latency_us", (FLOOR,)),
                blocks.ratio(over(TORCH, FLOOR)(row), mark),
                blocks.ratio(over(OWN, FLOOR)(row), mark),
                blocks.microseconds(figure(row, OWN, "kernel_us")),
                *(blocks.percent(figure(row, mode, "idle_share")) for mode in (TORCH, OWN)),
            )
        )
    means = [_mean(rows, over(mode, FLOOR)) for mode in (TORCH, OWN)]
    return Table(head, lines, foot=[(MEAN, "", *means, "", "", "")])


def correctness(rows: Rows) -> Table:
    head = (
        *("workload", "pygraph right", "results: error", "results: allowed"),
        *("gradients: error", "gradients: allowed", "bit-equal to default"),
        *("without graphs: bit-equal", "without graphs: distance", "without graphs: its spread"),
        "modes right",
    )
    lines: list[Cells] = []
    for name, row in rows.items():
        found, own = figures.verdict(row, OWN), row.mode(OWN)
        allowed = row.about.get("check", {}).get("tolerance", {})
        has_gradients = bool(row.about.get("training"))
        gradients = (found.get("gradient_error"), allowed.get("gradients"))
        lines.append(
            (
                name + (blocks.RANDOM if row.about.get("random") else ""),
                blocks.yes(own.correct if own else None),
                blocks.error_size(found.get("relative_error")),
                blocks.error_size(allowed.get("outputs")),
                *(blocks.error_size(each if has_gradients else None) for each in gradients),
                blocks.yes(found.get("bit_equal_to_default")),
                blocks.yes(found.get("bit_equal_to_uncaptured")),
                blocks.error_size(found.get("distance_to_uncaptured")),
                blocks.error_size(found.get("uncaptured_spread")),
                _right(row),
            )
        )
    return Table(head, lines, text=(0, 1, 6, 7))


def _right(row: Row) -> str:
    right = sum(not figures.why_wrong(each) for each in row.records)
    return f"{right} of {len(row.records)}" if row.records else NOTHING


def about(rows: Rows) -> Table:
    head = ("workload", "model", "suite", "iteration", "batch", "precision", "source", "deviation")
    lines: list[Cells] = []
    for name, row in rows.items():
        said = row.about
        kind = "training" if said.get("training") else "inference"
        rest = [str(said.get(key) or NOTHING) for key in ("precision", "source", "deviation")]
        model, suite = (str(said.get(key) or NOTHING) for key in ("model", "suite"))
        lines.append((name, model, suite, kind, _batch(row), *rest))
    return Table(head, lines, text=(0, 1, 2, 3, 5, 6, 7))


def fallbacks(rows: Rows) -> Table | None:
    """Compiled graphs that pygraph runs as they are."""
    lines = [
        (name, str(each.get("graph", NOTHING)), blocks.shortened(str(each.get("reason", NOTHING))))
        for name, row in rows.items()
        for each in figure(row, OWN, "fallbacks") or []
    ]
    return (
        Table(("workload", "graph", "why it is no CUDA graph"), lines, (0, 1, 2)) if lines else None
    )


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
    shared = common(content)
    differing = {key: name for key, name in ENVIRONMENT.items() if name not in shared}
    lines: list[Cells] = []
    for number, run in enumerate(content.get("runs", [])):
        env, took = run.get("env", {}), run.get("seconds")
        lines.append(
            (
                str(number + 1),
                str(env.get("date") or NOTHING)[:10],
                *(str(env.get(key) or NOTHING) for key in differing),
                str(figures.rows_in(number, rows)),
                NOTHING if not took else f"{took / 60:,.0f}",
                str(run.get("command") or NOTHING),
            )
        )
    words = len(differing) + 2
    head = ("run", "date", *differing.values(), "workloads", "minutes", "command")
    return Table(head, lines, text=(*range(words), words + 2))


def targets(found: Sequence[Mapping[str, Any]]) -> Table:
    lines = [
        (
            str(each["name"]),
            str(each["requirement"]),
            _number(each.get("value")),
            _number(each.get("limit")),
            _judged(each),
            str(each.get("detail") or ""),
        )
        for each in found
    ]
    return Table(("target", "requirement", "value", "limit", "met", "detail"), lines, (0, 1, 4, 5))


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
