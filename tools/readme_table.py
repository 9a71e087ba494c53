"""Writes the README's tables of measured numbers from the stored measurements.

    python tools/readme_table.py              rewrite the tables
    python tools/readme_table.py --check      fail when a table is not what its measurement gives

A table stands between `<!-- table: NAME -->` and `<!-- /table -->`. Both commands fail, and say
why, when the measurement or the markers of first-light are missing: that is what
`./run demo --out benchmarks/results` writes (python/pygraph/bench/record.py). paper25, of
`pygraph bench`, is left out where its markers or its measurement are missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "first-light.json"
PAPER = ROOT / "benchmarks" / "results" / "paper25.json"
README = ROOT / "README.md"

FIRST, SECOND = "first-light", "paper25"
END = "<!-- /table -->"
MODES = ("eager", "default", "reduce-overhead", "pygraph", "floor")
HEAD = (
    "model",
    "batch",
    *MODES,
    "pygraph / floor",
    "speed-up over reduce-overhead",
    "host: pygraph",
    "host: reduce-overhead",
)
NOTHING = "-"

Modes = dict[str, dict[str, Any]]


def fail(message: str) -> NoReturn:
    sys.exit(f"readme_table: {message}")


def value(modes: Modes, mode: str, field: str) -> float | None:
    """A figure of one mode; None where that mode is missing, wrong, or was not timed."""
    record = modes.get(mode)
    return record[field] if record and record["correct"] else None


def microseconds(number: float | None) -> str:
    if number is None:
        return NOTHING
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


def ratio(over: float | None, under: float | None) -> str:
    return f"{over / under:.2f}" if over and under else NOTHING


def row(modes: Modes) -> list[str]:
    latency = {mode: value(modes, mode, "latency_us") for mode in MODES}
    first = next(iter(modes.values()))
    return [
        first["workload"],
        str(first["batch"]),
        *(microseconds(latency[mode]) for mode in MODES),
        ratio(latency["pygraph"], latency["floor"]),
        ratio(latency["reduce-overhead"], latency["pygraph"]),
        microseconds(value(modes, "pygraph", "host_us")),
        microseconds(value(modes, "reduce-overhead", "host_us")),
    ]


def mean_row(summary: dict[str, Any]) -> list[str] | None:
    """The geometric means of the summary, which leaves the MLPs out; None where there are none."""

    def mean(field: str, label: str) -> dict[str, Any]:
        found: dict[str, Any] = summary[field].get(label, {"geomean": None, "models": 0})
        return found

    floor, torch = mean("latency", "pygraph/floor"), mean("latency", "reduce-overhead/pygraph")
    host = mean("host", "reduce-overhead/pygraph")
    if not torch["models"]:
        return None
    shown = [f"{each['geomean']:.2f}" if each["geomean"] else NOTHING for each in (floor, torch)]
    host_text = f"x {host['geomean']:.2f}" if host["geomean"] else NOTHING
    name = f"geometric mean of {torch['models']} models, MLPs left out"
    return [name, "", *("" for _ in MODES), *shown, "", host_text]


def table(document: dict[str, Any]) -> str:
    """Everything between the markers."""
    models: dict[tuple[str, int], Modes] = {}
    for record in document["records"]:
        models.setdefault((record["workload"], record["batch"]), {})[record["mode"]] = record
    rows = [row(modes) for modes in models.values()]
    mean = mean_row(document["summary"])
    rows += [mean] if mean else []
    marks = ["---", *("---:" for _ in HEAD[1:])]
    lines = ["| " + " | ".join(cells) + " |" for cells in (HEAD, marks, *rows)]
    return "\n".join([*lines, "", provenance(document)])


def provenance(document: dict[str, Any]) -> str:
    env, counts = document["env"], document["summary"]["counts"]
    text = (
        f"{env['gpu']}, driver {env['driver']}, torch {env['torch']}, {env['date'][:10]}. "
        "Microseconds, medians. A dash: that mode failed or was not run. "
        f"PyGraph's results are bit-equal to torch.compile's default in "
        f"{counts['pygraph_bit_equal']} of {counts['pygraph_compared']} models. "
        f"Measured with `{document['command']}`."
    )
    return text


def paper_table(document: dict[str, Any]) -> str:
    """Of the paper's benchmark; needs the package, and so torch."""
    sys.path.insert(0, str(ROOT / "python"))
    from pygraph.bench.paper.report.markdown import readme_table

    return readme_table(document)


def begin(name: str) -> str:
    return f"<!-- table: {name} -->"


def replaced(readme: str, name: str, made: str) -> str:
    """The README with this between the markers of that table."""
    before, found, rest = readme.partition(begin(name))
    _, end, behind = rest.partition(END)
    if not found or not end:
        fail(f"the README needs a line '{begin(name)}' and, behind it, a line '{END}'")
    return f"{before}{found}\n{made}\n{end}{behind}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail on a difference")
    parser.add_argument("--results", type=Path, default=RESULTS, help="another measurement")
    parser.add_argument("--paper", type=Path, default=PAPER, help="another one of pygraph bench")
    parser.add_argument("--readme", type=Path, default=README, help="another README")
    given = parser.parse_args(arguments)
    if not given.results.exists():
        fail(f"{given.results} is missing; on a GPU: ./run demo --out benchmarks/results")
    readme = given.readme.read_text()
    wanted = [(FIRST, given.results, table)]
    if begin(SECOND) in readme and given.paper.exists():
        wanted.append((SECOND, given.paper, paper_table))
    new = readme
    for name, results, make in wanted:
        before, new = new, replaced(new, name, make(json.loads(results.read_text())))
        if given.check and new != before:
            fail(
                f"the table {name} in {given.readme.name} is not what {results.name} gives; run me"
            )
    if new != readme:
        given.readme.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
