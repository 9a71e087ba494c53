"""Writes the tables of measured numbers, in the README and in docs, from the stored measurements.

    python tools/readme_table.py              rewrite the tables and the README's picture
    python tools/readme_table.py --check      fail when a table is not what its measurement gives

A table stands between `<!-- table: NAME -->` and `<!-- /table -->`, and the README's example
between `<!-- file: PATH -->` and `<!-- /file -->`. Both commands fail, and say why, when a page
lacks these markers, or when a measurement is missing. The picture is drawn with matplotlib; --check
compares its texts. A record that nobody has made yet is no error where its table may wait for it.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # for benchmarks/
PICTURE = "docs/images/speed-ups.svg"
PAPER = "benchmarks/results/paper25.json"
FIRST_LIGHT = "benchmarks/results/first-light.json"
LAYERS_RECORD = "benchmarks/results/layers.json"
PATTERNS = "benchmarks/results/patterns.json"
SELECTION = "benchmarks/results/selection.json"

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
LAYERS = {
    "what": "compiled",
    "mode": "mode",
    "compile_s": "compile, s",
    "graph_memory_mib": "memory of graphs, MiB",
    "latency_us": "latency, us",
    "host_us": "host, us",
}
WHAT = {"whole": "the whole model", "layer": "one layer, called for all"}
NOTHING = "-"

Modes = dict[str, dict[str, Any]]
Document = dict[str, Any]


class Block(NamedTuple):
    """A table of one page."""

    page: str
    name: str
    record: str
    make: Callable[[Document], str]
    waits: bool = False
    """Until there is a record, the page keeps what it has."""


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


def lines_of(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table; its first columns are words."""
    marks = [*["---"] * words, *["---:"] * (len(head) - words)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, marks, *rows))


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


def mean_row(summary: Document) -> list[str] | None:
    """The geometric means of the summary, which leaves the MLPs out; None where there are none."""

    def mean(field: str, label: str) -> Document:
        found: Document = summary[field].get(label, {"geomean": None, "models": 0})
        return found

    floor, torch = mean("latency", "pygraph/floor"), mean("latency", "reduce-overhead/pygraph")
    host = mean("host", "reduce-overhead/pygraph")
    if not torch["models"]:
        return None
    shown = [f"{each['geomean']:.2f}" if each["geomean"] else NOTHING for each in (floor, torch)]
    host_text = f"x {host['geomean']:.2f}" if host["geomean"] else NOTHING
    name = f"geometric mean of {torch['models']} models, MLPs left out"
    return [name, "", *("" for _ in MODES), *shown, "", host_text]


def first_light(document: Document) -> str:
    """Of `./run demo`."""
    models: dict[tuple[str, int], Modes] = {}
    for record in document["records"]:
        models.setdefault((record["workload"], record["batch"]), {})[record["mode"]] = record
    rows = [row(modes) for modes in models.values()]
    mean = mean_row(document["summary"])
    rows += [mean] if mean else []
    return f"{lines_of(HEAD, rows)}\n\n{provenance(document)}"


def machine(env: Document) -> str:
    return f"{env['gpu']}, driver {env['driver']}, torch {env['torch']}, {env['date'][:10]}"


def figure(number: float | None) -> str:
    return NOTHING if number is None else f"{number:,.1f}"


def provenance(document: Document) -> str:
    counts = document["summary"]["counts"]
    return (
        f"{machine(document['env'])}. "
        "Microseconds, medians. A dash: that mode failed or was not run. "
        f"PyGraph's results are bit-equal to torch.compile's default in "
        f"{counts['pygraph_bit_equal']} of {counts['pygraph_compared']} models. "
        f"Measured with `{document['command']}`."
    )


def layers(document: Document) -> str:
    """Of `benchmarks/layers.py`: a block compiled once, beside the whole model compiled."""
    figures = tuple(LAYERS)[2:]
    rows = [
        [WHAT[each["what"]], each["mode"], *(figure(each.get(name)) for name in figures)]
        for each in document["rows"]
    ]
    made = lines_of(list(LAYERS.values()), rows, words=2)
    return f"{made}\n\n{machine(document['env'])}. Measured with `{document['command']}`."


def of_paper(name: str) -> Callable[[Document], str]:
    """Of `./run bench`; needs the package, and so torch."""

    def make(document: Document) -> str:
        from benchmarks.paper.report import markdown

        made: str = getattr(markdown, name)(document)
        return made

    return make


def patterns(document: Document) -> str:
    """Of `./run bench-patterns`; needs the package, and so torch."""
    from benchmarks.patterns.table import page

    head, rows = page(document)
    counts = document["summary"]["counts"]
    left_out = counts.get("not_run", 0)
    ends = f" {left_out} would end their process, and were not run." if left_out else ""
    return (
        f"{lines_of(head, rows)}\n\n{machine(document['env'])}. Microseconds, medians. "
        f"PyGraph's results are bit-equal to torch.compile's default in "
        f"{counts['pygraph_bit_equal']} of {counts['pygraph_compared']} patterns; of "
        f"{counts['records']} results {counts['wrong']} are wrong.{ends} "
        f"Measured with `{document['command']}`."
    )


def selection(document: Document) -> str:
    """Of `./run bench-selection`; needs the package, and so torch."""
    from benchmarks.selection.table import goals_of, page

    told = " ".join(f"{line}." for line in goals_of(document))
    return (
        f"{page(document)}\n\n{machine(document['env'])}. Microseconds. {told} "
        f"Measured with `{document['command']}`."
    )


BLOCKS = (
    Block("README.md", "gain", PAPER, of_paper("gain")),
    Block("README.md", "speed-ups", PAPER, of_paper("readme_table")),
    Block("docs/benchmarks.md", "paper25", PAPER, of_paper("whole_table")),
    Block("docs/benchmarks.md", "memory", PAPER, of_paper("memory")),
    Block("docs/benchmarks.md", "first-light", FIRST_LIGHT, first_light),
    Block("docs/benchmarks.md", "patterns", PATTERNS, patterns, waits=True),
    Block("docs/benchmarks.md", "selection", SELECTION, selection, waits=True),
    Block("docs/usage.md", "layers", LAYERS_RECORD, layers),
)
EXAMPLE = "examples/quickstart.py"


def replaced(page: Path, text: str, name: str, made: str, kind: str = "table") -> str:
    """The page's text with this between the markers of that table."""
    begin, end = f"<!-- {kind}: {name} -->", f"<!-- /{kind} -->"
    before, found, rest = text.partition(begin)
    _, closed, behind = rest.partition(end)
    if not found or not closed:
        fail(f"{page} needs a line '{begin}' and, behind it, a line '{end}'")
    return f"{before}{found}\n{made}\n{closed}{behind}"


def rewritten(page: str, text: str, root: Path, documents: Mapping[str, Document]) -> str:
    """A page with all its generated parts."""
    for block in BLOCKS:
        if block.page == page and block.record in documents:
            made = block.make(documents[block.record])
            text = replaced(root / page, text, block.name, made)
    if page == "README.md":
        code = (root / EXAMPLE).read_text().rstrip()
        text = replaced(root / page, text, EXAMPLE, f"```python\n{code}\n```", "file")
    return text


def read(block: Block, root: Path) -> Document:
    """The measurement that a table is made from."""
    record = root / block.record
    if not record.exists():
        fail(f"{record} is missing; the table {block.name} in {block.page} is made from it")
    found: Document = json.loads(record.read_text())
    return found


def first(old: str, new: str) -> str:
    """The first line of a page that is to change."""
    lines = zip_longest(old.splitlines(), new.splitlines())
    was, _ = next((was, now) for was, now in lines if was != now)
    return f"run tools/readme_table.py. The first line that changes: {was}"


def drawn(document: Document) -> str:
    """The README's picture."""
    from benchmarks.paper.report import charts, figures

    chart = charts.in_short(figures.rows_of(document))
    if chart is None:
        fail("no workload of the measurement has a speed-up to draw")
    return charts.picture(chart)


def texts(svg: str) -> list[str]:
    """Names and numbers; the shapes depend on matplotlib's version."""
    return [html.unescape(each) for each in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def check_picture(path: Path, document: Document) -> None:
    """Every name and every speed-up of the README's table must stand in it, in order."""
    from benchmarks.paper.report import figures, tables

    table = tables.short(figures.rows_of(document))
    lines = [*table.rows, *table.foot]
    wanted = [line[0] for line in lines]
    wanted += [line[place] for place in (5, 6) for line in lines]
    found = texts(path.read_text()) if path.exists() else []
    if [each for each in found if each in wanted] != wanted:
        fail(f"{path.name} does not show what {Path(PAPER).name} gives; run me")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail on a difference")
    parser.add_argument("--root", type=Path, default=ROOT, help="another tree of pages and records")
    given = parser.parse_args(arguments)
    sys.path.insert(0, str(ROOT / "python"))
    sources = {block.record: block for block in BLOCKS}
    documents = {
        name: read(block, given.root)
        for name, block in sources.items()
        if not block.waits or (given.root / name).exists()
    }
    for page in dict.fromkeys(block.page for block in BLOCKS):
        path = given.root / page
        text = path.read_text() if path.exists() else ""
        new = rewritten(page, text, given.root, documents)
        if given.check and new != text:
            fail(f"{page} is not what its measurements and {EXAMPLE} give: {first(text, new)}")
        if new != text:
            path.write_text(new)
    picture = given.root / PICTURE
    if given.check:
        check_picture(picture, documents[PAPER])
    else:
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_text(drawn(documents[PAPER]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
