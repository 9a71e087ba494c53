"""The report as sections, whatever it is written as."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.shown import error_size, shortened
from benchmarks.harness.table import Table
from benchmarks.paper.report import figures, published, tables
from benchmarks.paper.report.figures import DEFAULT, EAGER, FLOOR, OWN, TORCH, Rows, mean, over

TITLE = "PyGraph on the paper's 25 workloads"
MODES_ARE = [
    "eager: PyTorch as it is",
    "default: torch.compile",
    'reduce-overhead: torch.compile(mode="reduce-overhead"), that is with PyTorch\'s CUDA graphs',
    'pygraph: torch.compile(backend="pygraph"); it keeps backwards on the calling thread, which is '
    "a setting of torch's that no other mode has here",
    "floor: the limit while the kernels stay the same: default's code, a whole iteration in one "
    "CUDA graph on inputs that never move",
]
SWITCHED_OFF = {
    "pygraph-untransformed": "programs are compiled as they are, no obstacle is taken out of them",
    "pygraph-copies": "arguments are copied into place instead of patched",
    "pygraph-always": "every graph that is proven is used, whether it pays or not",
}

BOUND_IS = (
    f"{tables.BOUND} The iteration cannot be captured as one graph: its floor is the summed time "
    "of its kernels, copies and fills, a bound that nothing can reach."
)


@dataclass(frozen=True)
class Chart:
    """One of charts.CHARTS."""

    name: str


Block = str | list[str] | Table | Chart
"""A paragraph, the lines of a list, a table, or a chart."""


def sections(content: Mapping[str, Any]) -> dict[str, list[Block]]:
    """Everything that the file says, by title, in the order it is read."""
    rows = figures.rows_of(content)
    bounds: list[Block] = [BOUND_IS] if any(map(figures.is_bound, rows.values())) else []
    judged = content.get("targets")
    failed = [f"{row.name}: {shortened(row.error)}" for row in rows.values() if row.error]
    return {
        "Measured on": _measured(content, rows),
        "In short": [summary(rows)],
        "Requirements": [
            "Open: what was measured allows no verdict, or none is asked for.",
            tables.targets(judged),
        ]
        if judged
        else ["Not judged yet."],
        "Latency": [
            "Microseconds until the GPU is idle, medians; a synchronisation after each iteration. "
            "Speed-ups are of pygraph. Behind a mean stands the number of rows it is over. "
            f"Published: the paper's, over PyTorch 2 with CUDA graphs ({published.CONDITIONS}).",
            Chart("speed-up"),
            tables.latency(rows, len(content.get("runs", []))),
            *bounds,
        ],
        "Host time and pipelined time": [
            "Microseconds. Host: until the call returns, the GPU idle before. Pipelined: time per "
            "iteration of many in a row, with one synchronisation at the end.",
            tables.host(rows),
        ],
        "Coverage": [
            "Kernels of one iteration, launched by graphs (inside) or one by one (outside), as in "
            "the paper's table 2. Of pygraph's graphs: launches per iteration, and compiled "
            "callables that might become graphs, were captured, are used. The paper deployed "
            f"{published.DEPLOYED} of {published.FOUND}.",
            Chart("busy"),
            tables.coverage(rows),
        ],
        "Bytes copied": [
            "Per iteration, to bring arguments in place or results out, as in the paper's table "
            f"3. The paper's compiler copies at most {published.MOST_BYTES} B of parameters per "
            "replay. Beside them: indices that the host reads in front of a launch before the "
            "guards, to see that they are within bounds. The graph reads the caller's.",
            tables.copied(rows),
        ],
        "Ablation": _ablation(rows),
        "Cost of compiling": [
            "Seconds up to the steady state, as in the paper's figure 13: tracing, Inductor with "
            "warm caches on disk, captures and, for pygraph, proofs. No caches: up to the end of "
            "the first call, other modes and workloads being compiled at the same time. No ratio: "
            "a cache did not have the code of one of the two.",
            Chart("compile"),
            tables.compile_cost(rows),
        ],
        "Memory": [
            "MiB. Peak: what iterations in the steady state need at most, weights and inputs "
            "counted. Reserved: the same of what torch's allocator holds. Held: what a mode keeps "
            "between calls from everybody else, results dropped.",
            tables.memory(rows),
        ],
        "Distance from the floor": [
            "The farthest first. Kernel time: kernels, copies and fills of one iteration of "
            "pygraph, summed, in microseconds. Idle: the share of the latency in which none of "
            "them runs.",
            Chart("floor"),
            tables.distance(rows),
            *bounds,
            *_listed("Why there is no graph of an iteration:", _no_graph(rows)),
        ],
        "Correctness": _correctness(rows),
        "Workloads that could not run": [failed or ["none"]],
        "The workloads": [
            "Inference is a forward without gradients, training a forward and a backward, without "
            "an optimizer. Weights are random.",
            tables.about(rows),
            *_listed(
                f"The paper on them ({published.CONDITIONS}):",
                (f"{name}: {note}" for name in rows if (note := published.of(name).note)),
            ),
        ],
        "Settings": [[f"{name}: {value}" for name, value in content.get("settings", {}).items()]],
    }


def _listed(said: str, lines: Iterable[str]) -> list[Block]:
    """Nothing where there are no lines."""
    found = list(lines)
    return [said, found] if found else []


def _measured(content: Mapping[str, Any], rows: Rows) -> list[Block]:
    runs = content.get("runs", [])
    several = len(runs) > 1
    said = "All modes of a workload were measured in one process."
    if several:
        said += " The latency table says which run a workload comes from."
    if shared := tables.common(content):
        values = ", ".join(f"{name} {value}" for name, value in shared.items())
        said += f" {'All runs' if several else 'The run'}: {values}."
    notes = [f"Run {n}: {run['note']}." for n, run in enumerate(runs, 1) if run.get("note")]
    return [said, tables.runs(content, rows), *([notes] if notes else []), "Modes:", MODES_ARE]


def summary(rows: Rows) -> list[str]:
    """The figures that a reader wants first."""
    lines = []
    for reference in (TORCH, DEFAULT, EAGER):
        found = figures.entries(rows.values(), figures.speed_up(reference))
        value = mean(rows.values(), figures.speed_up(reference)).value
        if value is not None:
            lines.append(
                f"{value:.2f} times as fast as {reference}: geometric mean of {len(found)} rows, "
                f"from {found[-1].value:.2f} ({found[-1].name}) to {found[0].value:.2f} "
                f"({found[0].name})"
            )
    captured = [row for row in rows.values() if not figures.is_bound(row)]
    for mode in (OWN, TORCH):
        value, count = mean(rows.values(), over(mode, FLOOR))
        exact, exact_count = mean(captured, over(mode, FLOOR))
        if value is not None:
            line = f"{mode} takes {value:.2f} times its floor, {count} rows"
            if exact is not None and exact_count < count:
                line += f"; {exact:.2f} on the {exact_count} whose floor is a graph"
            lines.append(line)
    lines.append(
        f"The paper: {published.GEOMEAN} times as fast as PyTorch 2 with CUDA graphs "
        f"(figure 7; {published.CONDITIONS}; {published.PAPER})"
    )
    return lines


def _ablation(rows: Rows) -> list[Block]:
    modes = figures.ablations(rows.values())
    said: list[Block] = []
    for mode in modes:
        what = SWITCHED_OFF.get(mode, f"pygraph with {mode.removeprefix('pygraph-')}")
        said.append(f"{mode}: {what}. A ratio above 1 is what the part switched off gains.")
    said.append(tables.ablation(rows) or "No mode with a part switched off was measured.")
    said += [
        f"{mode} was not measured: {SWITCHED_OFF[mode]}."
        for mode in SWITCHED_OFF
        if mode not in modes
    ]
    return [*said, Chart("ablation")] if set(figures.PARTS) <= set(modes) else said


def _no_graph(rows: Rows) -> list[str]:
    floors = [(row.name, row.mode(FLOOR)) for row in rows.values()]
    return [
        f"{name}: {shortened(floor.error)}"
        for name, floor in floors
        if floor is not None and floor.is_bound and floor.error
    ]


def _correctness(rows: Rows) -> list[Block]:
    wrong = [
        f"{name}, {mode}: {shortened(why)}" for name, mode, why in figures.wrong(rows.values())
    ]
    made: list[Block] = [
        "Results and gradients: pygraph's relative error against eager, and the most that is "
        "allowed. That rests on how far eager is from itself without autocast. Without graphs: the "
        "same compiled code, called without graphs from the same seed; its spread is how far "
        "several such calls are apart, and a distance of up to four times that is allowed. Modes "
        "right: of those that were run; a wrong mode has no times.",
        tables.correctness(rows),
        *_random(rows),
        *(_listed("Wrong or failed:", wrong) or ["No mode was wrong or failed."]),
    ]
    if table := tables.fallbacks(rows):
        made += ["Compiled graphs that pygraph runs without CUDA graphs:", table]
    return made


def _random(rows: Rows) -> list[Block]:
    """Why an error against eager of 1 can be right."""
    drawing = [row for row in rows.values() if row.about.get("random")]
    if not drawing:
        return []
    known = [row.about.get("check", {}).get("seeds") or {} for row in drawing]
    outputs, gradients = (
        error_size(max(each.get(what, 0.0) for each in known)) for what in ("outputs", "gradients")
    )
    return [
        f"{tables.RANDOM} The program draws random numbers, such as dropout's, and compiled code "
        "draws other ones than eager from the same seed. Eager with another seed is as far from "
        f"eager: up to {outputs} in results and {gradients} in gradients, of which three times are "
        "allowed. An error near 1 is therefore no sign of a wrong result in these rows, nor a "
        "small one of a right result. What judges them is the comparison with the same compiled "
        "code without graphs, which draws the same numbers."
    ]
