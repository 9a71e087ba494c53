"""The report as sections, whatever it is written as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.paper.report import blocks, figures, published, tables
from benchmarks.paper.report.blocks import Block, Chart, Items, Section, shortened
from benchmarks.paper.report.figures import DEFAULT, EAGER, FLOOR, OWN, TORCH, Rows, mean, over

TITLE = "PyGraph on the paper's 25 workloads"
MODES_ARE = (
    "eager: PyTorch as it is",
    "default: torch.compile",
    'reduce-overhead: torch.compile(mode="reduce-overhead"), that is with PyTorch\'s CUDA graphs',
    'pygraph: torch.compile(backend="pygraph"); it keeps backwards on the calling thread, which is '
    "a setting of torch's that no other mode has here",
    "floor: the limit while the kernels stay the same: default's code, a whole iteration in one "
    "CUDA graph on inputs that never move",
)
SWITCHED_OFF = {"pygraph-copies": "arguments are copied into place instead of patched"}
NOT_BUILT = {"transform": "transformations", "select": "selection"}
"""The paper's other parts, by what the name of a mode without them would contain."""

BOUND_IS = (
    f"{blocks.BOUND} The iteration cannot be captured as one graph: its floor is the summed time "
    "of its kernels, copies and fills, a bound that nothing can reach."
)


def sections(content: Mapping[str, Any]) -> list[Section]:
    """Everything that the file says, in the order it is read."""
    rows = figures.rows_of(content)
    bounds: list[Block] = [BOUND_IS] if any(map(figures.is_bound, rows.values())) else []
    requirements: list[Block] = ["Not judged yet."]
    if judged := content.get("targets"):
        said = "Open: what was measured allows no verdict, or none is asked for."
        requirements = [said, tables.targets(judged)]
    failed = [
        f"{row.name}: {shortened(row.error)}" for row in rows.values() if row.error is not None
    ]
    return [
        Section("Measured on", _measured(content, rows)),
        Section("In short", [Items(summary(rows))]),
        Section("Requirements", requirements),
        Section(
            "Latency",
            [
                "Microseconds until the GPU is idle, medians; a synchronisation after each "
                "iteration. Speed-ups are of pygraph. Behind a mean stands the number of rows it "
                "is over. Published: the paper's, over PyTorch 2 with CUDA graphs "
                f"({published.CONDITIONS}).",
                Chart("speed-up"),
                tables.latency(rows, len(content.get("runs", []))),
                *bounds,
            ],
        ),
        Section(
            "Host time and pipelined time",
            [
                "Microseconds. Host: until the call returns, the GPU idle before. Pipelined: time "
                "per iteration of many in a row, with one synchronisation at the end.",
                tables.host(rows),
            ],
        ),
        Section(
            "Coverage",
            [
                "Kernels of one iteration, launched by graphs (inside) or one by one (outside), "
                "as in the paper's table 2. Of pygraph's graphs: launches per iteration, and "
                "compiled callables that might become graphs, were captured, are used. The paper "
                f"deployed {published.DEPLOYED} of {published.FOUND}.",
                Chart("busy"),
                tables.coverage(rows),
            ],
        ),
        Section(
            "Bytes copied",
            [
                "Per iteration, to bring arguments in place or results out, as in the paper's "
                f"table 3. The paper's compiler copies at most {published.MOST_BYTES} B of "
                "parameters per replay. Beside them: indices that the host reads in front of an "
                "early launch, to see that they are within bounds. The graph reads the caller's.",
                tables.copied(rows),
            ],
        ),
        Section("Ablation", _ablation(rows)),
        Section(
            "Cost of compiling",
            [
                "Seconds up to the steady state, as in the paper's figure 13: tracing, Inductor "
                "with warm caches on disk, captures and, for pygraph, proofs. No caches: up to the "
                "end of the first call, the other mode and other workloads being compiled at the "
                "same time. pygraph compiles as reduce-overhead does.",
                Chart("compile"),
                tables.compile_cost(rows),
            ],
        ),
        Section(
            "Memory",
            [
                "MiB. Peak: what iterations in the steady state need at most, weights and inputs "
                "counted. Reserved: the same of what torch's allocator holds. Held: what a mode "
                "keeps between calls from everybody else, results dropped.",
                tables.memory(rows),
            ],
        ),
        Section(
            "Distance from the floor",
            [
                "The farthest first. Kernel time: kernels, copies and fills of one iteration of "
                "pygraph, summed, in microseconds. Idle: the share of the latency in which none of "
                "them runs.",
                Chart("floor"),
                tables.distance(rows),
                *bounds,
                *_no_graph(rows),
            ],
        ),
        Section("Correctness", _correctness(rows)),
        Section("Workloads that could not run", [Items(failed or ["none"])]),
        Section("The workloads", _about(rows)),
        Section("Settings", [Items([f"{n}: {v}" for n, v in content.get("settings", {}).items()])]),
    ]


def _measured(content: Mapping[str, Any], rows: Rows) -> list[Block]:
    runs = content.get("runs", [])
    several = len(runs) > 1
    said = "All modes of a workload were measured in one process."
    if several:
        said += " The latency table says which run a workload comes from."
    shared = tables.common(content)
    if shared:
        said += f" {'All runs' if several else 'The run'}: "
        said += ", ".join(f"{name} {value}" for name, value in shared.items()) + "."
    notes = [f"Run {n}: {run['note']}." for n, run in enumerate(runs, 1) if run.get("note")]
    made: list[Block] = [said, tables.runs(content, rows), *([Items(notes)] if notes else [])]
    return [*made, "Modes:", Items(MODES_ARE)]


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
    for mode in (OWN, TORCH):
        to_floor = mean(rows.values(), over(mode, FLOOR))
        captured = [row for row in rows.values() if not figures.is_bound(row)]
        exact = mean(captured, over(mode, FLOOR))
        if to_floor.value is not None:
            line = f"{mode} takes {to_floor.value:.2f} times its floor, {to_floor.count} rows"
            if exact.value is not None and exact.count < to_floor.count:
                line += f"; {exact.value:.2f} on the {exact.count} whose floor is a graph"
            lines.append(line)
    lines.append(
        f"The paper: {published.GEOMEAN} times as fast as PyTorch 2 with CUDA graphs "
        f"(figure 7; {published.CONDITIONS}; {published.PAPER})"
    )
    return lines


def _ablation(rows: Rows) -> list[Block]:
    modes = figures.ablations(rows)
    said: list[Block] = []
    for mode in modes:
        what = SWITCHED_OFF.get(mode, f"pygraph with {mode.removeprefix('pygraph-')}")
        said.append(f"{mode}: {what}. A ratio above 1 is what the part switched off gains.")
    table = tables.ablation(rows)
    said += [table] if table else ["No mode with a part switched off was measured."]
    if missing := [name for stem, name in NOT_BUILT.items() if not any(stem in m for m in modes)]:
        said.append(
            f"The paper's other parts ({', '.join(missing)}) are not built yet in PyGraph, so "
            "there is nothing to switch off."
        )
    return said


def _no_graph(rows: Rows) -> list[Block]:
    why = [
        f"{row.name}: {shortened(found.error)}"
        for row in rows.values()
        if (found := row.mode(FLOOR)) is not None and found.is_bound and found.error
    ]
    return ["Why there is no graph of an iteration:", Items(why)] if why else []


def _correctness(rows: Rows) -> list[Block]:
    said = (
        "Results and gradients: pygraph's relative error against eager, and the most that is "
        "allowed. That rests on how far eager is from itself without autocast. Without graphs: the "
        "same compiled code, called without graphs from the same seed; its spread is how far "
        "several such calls are apart, and a distance of up to four times that is allowed. Modes "
        "right: of those that were run; a wrong mode has no times."
    )
    made: list[Block] = [said, tables.correctness(rows), *_random(rows)]
    if wrong := figures.wrong(rows.values()):
        made += [
            "Wrong or failed:",
            Items([f"{n}, {mode}: {shortened(why)}" for n, mode, why in wrong]),
        ]
    else:
        made.append("No mode was wrong or failed.")
    if table := tables.fallbacks(rows):
        made += ["Compiled graphs that pygraph runs without CUDA graphs:", table]
    return made


def _random(rows: Rows) -> list[Block]:
    """Why an error against eager of 1 can be right."""
    drawing = [row for row in rows.values() if row.about.get("random")]
    if not drawing:
        return []
    known = [row.about.get("check", {}).get("seeds") or {} for row in drawing]
    largest = {
        what: max((each.get(what, 0.0) for each in known), default=0.0)
        for what in ("outputs", "gradients")
    }
    return [
        f"{blocks.RANDOM} The program draws random numbers, such as dropout's, and compiled code "
        "draws other ones than eager from the same seed. Eager with another seed is as far from "
        f"eager: up to {blocks.error_size(largest['outputs'])} in results and "
        f"{blocks.error_size(largest['gradients'])} in gradients, of which three times are "
        "allowed. An error near 1 is therefore no sign of a wrong result in these rows, nor a "
        "small one of a right result. What judges them is the comparison with the same compiled "
        "code without graphs, which draws the same numbers."
    ]


def _about(rows: Rows) -> list[Block]:
    said = (
        "Inference is a forward without gradients, training a forward and a backward, without an "
        "optimizer. Weights are random."
    )
    notes = [f"{name}: {note}" for name in rows if (note := published.of(name).note)]
    paper: list[Block] = [f"The paper on them ({published.CONDITIONS}):", Items(notes)]
    return [said, tables.about(rows), *(paper if notes else [])]
