#!/usr/bin/env python3
"""Two trees of PyGraph, timed in turns: is the one slower than the other?

    python benchmarks/side_by_side.py host BEFORE AFTER --out FILE
    python benchmarks/side_by_side.py demo BEFORE AFTER --out FILE --models mlp-8,alexnet

BEFORE and AFTER are checkouts with a built engine in python/pygraph; this Python must not have a
PyGraph of its own. Each runs in a process of its own: host_path.py, or the demo. A machine that
others use too can be twice as slow in the next minute, and one of its CPUs half as fast as the
next, so two runs one after the other tell nothing. Here both processes are at the same row at the
same time, and take turns of a few dozen calls on one CPU; who is first changes with every turn.
While one is timed the other waits for a byte in a pipe, and neither goes on to the next row before
both are done. What is compared is a turn with its neighbour, and the figure is the median of their
ratios.

Memory is laid out anew in each process, which alone can make a row a few percent faster or slower.
Therefore there are several pairs of processes, each pair on another CPU, and the record has the
ratio of each.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

CHUNK = 48
"""Calls of a turn, three times the calls between two waits of host_path.py."""
SETTLE = 8
"""The first calls of a turn, which find the caches as the other process left them."""
FEWER = {256: 4}
"""Arguments, and the part of the calls that is made with so many: they take that much longer."""
PIECES = 5
"""Turns of the demo's loop over single calls, in each of its rounds: as many as there are calls at
least (demo.Request.effort), so that both trees have as many turns however fast they are."""
CLOCKS = ("latency_us", "host_us", "pipelined_us")
TREES = ("before", "after")
CPUS = sorted(os.sched_getaffinity(0), reverse=True)

app = typer.Typer(add_completion=False, help=__doc__)


# The side of a child: it says that it is ready, waits, is timed, says so, and waits for the other.


@contextmanager
def turn() -> Iterator[None]:
    sent, received, cpu = (int(each) for each in os.environ["SIDE_BY_SIDE"].split())
    os.write(sent, b".")
    os.read(received, 1)
    elsewhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:  # the other one goes on also where a mode raises
        os.sched_setaffinity(0, elsewhere)
        os.write(sent, b".")
        os.read(received, 1)


def child_host(tree: Path, out: Path, calls: int, kind: str, sizes: Sequence[int]) -> None:
    """host_path.py with its calls cut into turns."""
    import torch

    spec = importlib.util.spec_from_file_location("host_path", tree / "benchmarks/host_path.py")
    assert spec is not None and spec.loader is not None
    host_path = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(host_path)
    turns: list[list[float]] = []
    """By row, and within it the median microseconds of each turn but the first."""
    spend = host_path.Clock.spend

    def in_turns(clock: Any, call: Any, count: int, to_mark: bool = False) -> list[float]:
        spent: list[float] = []
        medians = []
        while len(spent) < count:
            with turn():
                chunk = spend(clock, call, min(CHUNK, count - len(spent)), to_mark)
            spent += chunk
            if len(chunk) > SETTLE:
                medians.append(statistics.median(chunk[SETTLE:]))
        turns.append(medians[1:])
        return spent

    host_path.Clock.spend = in_turns
    measured = []
    with torch.no_grad():
        for size in sizes:
            turns.clear()
            found = host_path.measure(size, calls // FEWER.get(size, 1), kind)
            rows = dict(zip(found["rows"], turns, strict=True))
            measured.append({"arguments": size, "rows": rows})
    out.write_text(json.dumps({"env": host_path.environment(), "sizes": measured}))


def child_demo(folder: Path, models: Sequence[str], arguments: Sequence[str]) -> None:
    """The demo of one model after the other, whose timed loops are cut into turns."""
    measure: Any = importlib.import_module("benchmarks.harness.measure")
    time_calls, time_pipeline = measure.time_calls, measure.time_pipeline
    turns: dict[str, dict[str, list[float]]] = {}

    def in_pieces(
        runner: Any, inputs: Any, count: int, device: Any, samples: Any, first: int = 0
    ) -> None:
        pieces = PIECES if count >= PIECES else 1  # the calls that settle are in one
        each = max(1, count // pieces)
        for n in range(pieces):
            piece = measure.Samples()
            with turn():
                time_calls(runner, inputs, each, device, piece, first + n * each)
            samples.latency += piece.latency
            samples.host += piece.host
            samples.calls += piece.calls
            if pieces > 1:
                own = turns.setdefault(runner.mode, {clock: [] for clock in CLOCKS})
                own["latency_us"].append(statistics.median(piece.latency))
                own["host_us"].append(statistics.median(piece.host))

    def in_a_row(
        runner: Any, inputs: Any, count: int, device: Any, samples: Any, first: int = 0
    ) -> None:
        with turn():
            time_pipeline(runner, inputs, count, device, samples, first)
        turns[runner.mode]["pipelined_us"].append(samples.pipelined[-1])

    measure.time_calls, measure.time_pipeline = in_pieces, in_a_row
    for model in models:
        turns.clear()
        out = folder / model
        sys.argv = ["benchmarks", "demo", "--models", model, "--out", str(out), *arguments]
        with suppress(SystemExit):
            runpy.run_module("benchmarks", run_name="__main__")
        content = json.loads((out / "first-light.json").read_text())
        (out / "turns.json").write_text(
            json.dumps(
                {
                    "env": content["env"],
                    "correct": {each["mode"]: each["correct"] for each in content["records"]},
                    "turns": turns,
                }
            )
        )


# The side of the parent.


class Child:
    def __init__(self, tree: Path, cpu: int, arguments: Sequence[str]) -> None:
        self._received, sent = os.pipe()
        received, self._sent = os.pipe()
        path = [str(tree / "python"), str(tree), os.environ.get("PYTHONPATH", "")]
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "SIDE_BY_SIDE": f"{sent} {received} {cpu}",
        }
        self.process = subprocess.Popen(
            [sys.executable, __file__, "child", str(tree), *arguments],
            env=variables,
            pass_fds=(sent, received),
            stdout=sys.stderr,
        )
        os.close(sent)
        os.close(received)

    def wait(self) -> bool:
        """For the child's next word; false if it ended instead."""
        return bool(os.read(self._received, 1))

    def go(self) -> None:
        os.write(self._sent, b".")


def take_turns(children: Sequence[Child]) -> None:
    """Until both ended; a child whose partner ended before goes on alone, and the run failed."""
    number = 0
    while [child.wait() for child in children] == [True, True]:
        for child in children if number % 2 == 0 else reversed(children):
            child.go()
            child.wait()
        for child in children:
            child.go()
        number += 1
    for child in children:
        os.close(child._sent)
        if child.process.wait():
            raise SystemExit(f"side_by_side: a child ended with status {child.process.returncode}")


def _write(out: Path, content: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=1) + "\n")


Tree = Annotated[Path, typer.Argument(help="A checkout with a built engine.", exists=True)]
Out = Annotated[Path, typer.Option(help="The record.")]
Pairs = Annotated[int, typer.Option(min=1, help="Pairs of processes.")]


def run_pairs(
    trees: tuple[Path, Path], out: Path, pairs: int, words: Sequence[str]
) -> Iterator[list[Path]]:
    """The files or folders that the two children of a pair have made, before the next pair runs."""
    made = [out.with_suffix(f".{name}") for name in TREES]
    for pair in range(pairs):
        cpu, (kind, *what) = CPUS[pair % len(CPUS)], words
        both = zip(trees, made, strict=True)
        take_turns([Child(tree, cpu, [kind, str(to), *what]) for tree, to in both])
        yield made


@app.command()
def host(
    before: Tree,
    after: Tree,
    out: Out,
    calls: Annotated[int, typer.Option(min=4 * CHUNK, help="Of each row and pair.")] = 2000,
    device: Annotated[str, typer.Option(help="cuda, or twin.")] = "cuda",
    pairs: Pairs = 4,
    arguments: Annotated[str, typer.Option(help="How many, with commas.")] = "2,32,256",
) -> None:
    """What a call costs the host, row by row of host_path.py."""
    found: list[list[dict[str, Any]]] = []
    words = "host", str(calls), device, arguments
    for files in run_pairs((before, after), out, pairs, words):
        found.append([json.loads(file.read_text()) for file in files])
        for file in files:
            file.unlink()
    sizes = []
    for place, size in enumerate(found[0][1]["sizes"]):
        rows = {}
        measured = [[tree["sizes"][place]["rows"] for tree in pair] for pair in found]
        for name in filter(measured[0][1].__contains__, measured[0][0]):  # a tree may have others
            turns = [[tree[name] for tree in pair] for pair in measured]
            rows[name] = _ratio([(old, new) for old, new in turns])
            _show(f"{size['arguments']} arguments, {name}", [("us", rows[name])])
        sizes.append({"arguments": size["arguments"], "rows": rows})
    command = f"benchmarks/side_by_side.py host BEFORE AFTER --calls {calls} --device {device}"
    command += f" --pairs {pairs} --arguments {arguments}"
    _write(out, {"env": found[0][1]["env"], "command": command, "sizes": sizes})


def _ratio(turns: Sequence[tuple[list[float], list[float]]]) -> dict[str, Any]:
    """Of the turns of each pair of processes: microseconds, and ratios after/before."""
    ratios = [statistics.median(b / a for a, b in zip(*pair, strict=True)) for pair in turns]
    return {
        "before_us": statistics.median(us for old, _ in turns for us in old),
        "after_us": statistics.median(us for _, new in turns for us in new),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


def _show(row: str, figures: Sequence[tuple[str, dict[str, Any]]]) -> None:
    found = (
        f"{name} {each['before_us']:.1f} -> {each['after_us']:.1f} ({each['ratio']:.3f})"
        for name, each in figures
    )
    print(f"{row:<48} {', '.join(found)}")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def demo(
    context: typer.Context,
    before: Tree,
    after: Tree,
    out: Out,
    models: Annotated[str, typer.Option(help="As the demo takes them, with commas.")],
    pairs: Pairs = 1,
) -> None:
    """First light; whatever else is given goes to the demo."""
    measured: dict[str, list[list[dict[str, Any]]]] = {model: [] for model in models.split(",")}
    for folders in run_pairs((before, after), out, pairs, ("demo", models, *context.args)):
        for model, its in measured.items():
            its.append([json.loads((each / model / "turns.json").read_text()) for each in folders])
    found: dict[str, Any] = {}
    for model, its in measured.items():
        modes = [tuple(each["turns"]) for pair in its for each in pair]
        if len(set(modes)) > 1:
            raise SystemExit(f"side_by_side: of {model}, not the same modes were timed: {modes}")
        found[model] = {}
        for mode in modes[0]:
            row: dict[str, Any] = {
                clock: _ratio(
                    [(old["turns"][mode][clock], new["turns"][mode][clock]) for old, new in its]
                )
                for clock in CLOCKS
            }
            correct = [all(pair[tree]["correct"][mode] for pair in its) for tree in (0, 1)]
            found[model][mode] = {"correct": correct, **row}
            _show(f"{model}, {mode}", [(clock, row[clock]) for clock in CLOCKS])
        env = its[0][1]["env"]
    command = f"benchmarks/side_by_side.py demo BEFORE AFTER --models {models} --pairs {pairs}"
    command = " ".join([command, *context.args])
    _write(out, {"env": env, "command": command, "models": found})


def child(arguments: Sequence[str]) -> None:
    import pygraph

    tree, kind, *rest = arguments
    found = Path(str(pygraph.__file__)).resolve()
    if Path(tree, "python").resolve() not in found.parents:
        raise SystemExit(
            f"side_by_side: {tree} is to be timed, and PyGraph was found in {found.parent}: needed "
            "is a Python in which PyGraph is not installed"
        )
    if kind == "host":
        out, calls, device, sizes = rest
        child_host(Path(tree), Path(out), int(calls), device, [int(n) for n in sizes.split(",")])
    else:
        folder, models, *others = rest
        child_demo(Path(folder), models.split(","), others)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2:])
    else:
        app()
