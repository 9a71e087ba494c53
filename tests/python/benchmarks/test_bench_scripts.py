"""The benchmarks that are scripts of their own, tried without a GPU: they run to their end, judge
results and write what they promise."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks import jitter, threads
from benchmarks.harness.device import Device
from benchmarks.harness.modes import Bench, Runner

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "benchmarks"
NAMED = set(re.findall(r"(?<=python )[\w/]+\.py", (SCRIPTS / "results/README.md").read_text()))
"""What records are made with."""
RUN = {
    f"benchmarks/{name}.py"
    for name in ("first_calls", "host_path", "jitter", "layers", "lengths", "side_by_side")
}
"""Run to their end below."""
ROWS = {
    "callable",
    "dispatcher",
    "entry point",
    "before wrappers",
    "half",
    "captured",
    "compiled",
    "compiled, idle",
    "where it pays",
    "where it pays, idle",
    "lookup",
    "lookup, idle",
    "guess",
    "guess, idle",
    "lookup guess",
    "lookup guess, idle",
    "lookup where it pays",
    "lookup where it pays, idle",
    "drawing",
    "drawing, idle",
    "drawing guess",
    "drawing guess, idle",
    "bypassed",
    "new size",
}
"""Of the host path."""


def run(script: str, out: Path, *options: str, before: Sequence[str] = ()) -> Any:
    command = [sys.executable, str(SCRIPTS / script), *before, "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert out.exists(), done.stderr
    return json.loads(out.read_text())


@pytest.mark.parametrize("script", sorted(NAMED - RUN))
def test_what_makes_a_record_starts(script: str) -> None:
    command = [sys.executable, str(ROOT / script), "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0 and "usage" in shown.stdout.lower(), shown.stderr


def test_the_host_path(tmp_path: Path) -> None:
    options = "--device", "twin", "--calls", "10", "--arguments", "2,3"
    found = run("host_path.py", tmp_path / "out.json", *options)
    assert [size["arguments"] for size in found["sizes"]] == [2, 3]
    for size in found["sizes"]:
        assert size["rows"].keys() == ROWS
        for row in size["rows"].values():
            assert 0 < row["p10_us"] <= row["median_us"] <= row["p99_us"] <= row["worst_us"]
    assert [each["numbers"] for each in found["numbers"]] == [1, 8]
    for each in found["numbers"]:
        assert list(each["rows"]) == ["constant", "brought", "computed"]
        assert all(row["median_us"] > 0 for row in each["rows"].values())
    assert [each["layers"] for each in found["layers"]] == [1, 16, 32, 64]
    for each in found["layers"]:
        captured = ["module", "captured", "captured, idle"]
        frozen = ["compiled", "frozen", "frozen, idle", "state"]
        past = ["past guards", "past guards, idle"]
        assert list(each["rows"]) == [*captured, *frozen, *past]
    measured = [(each["layers"], each["training"]) for each in found["calls"]]
    assert measured == [(1, False), (8, False), (32, False), (8, True)]
    for each in found["calls"]:
        for mode in each["modes"].values():
            assert mode["call"]["median_us"] > 0 and sum(mode["layers_us"].values()) > 0


EAGER_DEMO = """
import sys
from pathlib import Path
import torch
from benchmarks.first_light.record import document
from benchmarks.first_light.run import Options, run_workload
from benchmarks.harness import record
from benchmarks.harness.device import Device
from benchmarks.harness.measure import Effort
from pygraph.demo.models import WORKLOADS

given = dict(zip(sys.argv[2::2], sys.argv[3::2]))
options = Options(Effort(0.5, least=5), [given["--modes"]])
torch.set_num_threads(1)
with torch.no_grad():
    records = run_workload(WORKLOADS[given["--models"]], Device("cpu"), options, lambda step: None)
record.write(Path(given["--out"], "first-light.json"), document(records, {"gpu": None}, ""))
"""
"""Stands for the demo, which is measured on a GPU."""


def two_trees(folder: Path) -> tuple[str, str]:
    for name in ("before", "after"):
        tree = folder / name
        shutil.copytree(SCRIPTS, tree / "benchmarks", ignore=shutil.ignore_patterns("results"))
        (tree / "python").symlink_to(SCRIPTS.parent / "python")
    return str(folder / "before"), str(folder / "after")


def test_the_demo_of_two_trees_side_by_side(tmp_path: Path) -> None:
    """A tree beside one whose single calls sleep on the clock, and whose calls in a row do not."""
    trees = two_trees(tmp_path)
    for tree in trees:
        Path(tree, "benchmarks/__main__.py").write_text(EAGER_DEMO)
    script = tmp_path / "after/benchmarks/harness/measure.py"
    quick = "        returned = clock()"
    assert script.read_text().count(quick) == 1
    script.write_text(script.read_text().replace(quick, f"        time.sleep(3e-2)\n{quick}"))
    few = "--models", "mlp-1,mlp-8", "--pairs", "2", "--modes", "eager"
    found = run("side_by_side.py", tmp_path / "out.json", *few, before=("demo", *trees))
    assert found["models"].keys() == {"mlp-1", "mlp-8"}
    for modes in found["models"].values():
        (row,) = modes.values()
        assert row["correct"] == [True, True]
        for clock in ("latency_us", "host_us"):
            assert len(row[clock]["ratios"]) == 2
            assert row[clock]["after_us"] - row[clock]["before_us"] > 15e3
        assert abs(row["pipelined_us"]["after_us"] - row["pipelined_us"]["before_us"]) < 15e3


def test_two_trees_side_by_side(tmp_path: Path) -> None:
    """A tree beside one whose callable sleeps: the rows that it is called in are slower, and no
    graph's."""
    trees = two_trees(tmp_path)
    script = tmp_path / "after/benchmarks/host_path.py"
    quick = "return list(torch._foreach_add(given, 1.0))"
    assert script.read_text().count(quick) == 2
    script.write_text(script.read_text().replace(quick, f"time.sleep(1e-3); {quick}", 1))
    few = "--calls", "192", "--pairs", "1", "--arguments", "2", "--device", "twin"
    found = run("side_by_side.py", tmp_path / "out.json", *few, before=("host", *trees))
    (size,) = found["sizes"]
    assert size["rows"].keys() == ROWS
    for name, row in size["rows"].items():
        assert row["ratios"] == [row["ratio"]]
        calls_it = name in ("callable", "bypassed", "new size")
        assert (row["after_us"] - row["before_us"] > 900) == calls_it, name


def test_the_first_calls(tmp_path: Path) -> None:
    found = run("first_calls.py", tmp_path / "out.json", "DGPT2", "--device", "cpu", "--tiny")
    assert len(found["calls"]) == 4 and len(found["graphs"]) == 2
    compiling = found["calls"][0]
    assert 0 < compiling["ours"]["pygraph/frontends/compile/aot.py:compile_graph"] <= compiling["s"]
    assert 0 < sum(compiling["innermost"].values()) <= compiling["s"] + 0.1
    assert all({"link", "proof"} <= set(graph["timings_ms"]) for graph in found["graphs"])


def test_jitter(tmp_path: Path) -> None:
    found = run("jitter.py", tmp_path / "out.json", "--device", "cpu", "--calls", "400")
    rows = {row["mode"]: row for row in found["rows"]}
    assert list(rows) == ["default", "pygraph", "control"]
    for row in rows.values():
        assert row["calls"] == 400
        for clock in ("latency_us", "host_us"):
            figures = row[clock]
            assert 0 < figures["median"] <= figures["p99"] <= figures["p99.9"] <= figures["worst"]
            assert figures["slowest"][0][1] == figures["worst"] and len(figures["slowest"]) == 50
        assert row["latency_us"]["median"] >= row["host_us"]["median"]
    assert rows["control"]["latency_us"]["median"] * 10 < rows["pygraph"]["latency_us"]["median"]
    assert rows["pygraph"]["settled"] and rows["control"]["settled"] is None


def test_slow_calls_are_counted_and_named() -> None:
    even = [10.0] * 1000
    assert jitter.distribution(even)["slow"] == 0
    even[70], even[900] = 31.0, 29.0
    found = jitter.distribution(even)
    assert (found["median"], found["worst"], found["slow"]) == (10.0, 31.0, 1)
    assert found["slowest"][:2] == [[70, 31.0], [900, 29.0]] and found["p99"] == 10.0
    assert 29.0 < found["p99.9"] <= 31.0


def test_every_mode_and_the_control_take_turns() -> None:
    seen: list[str] = []

    def runner(mode: str) -> Runner:
        return Runner(mode, lambda *inputs: seen.append(mode))

    bench = Bench(None, [()], Device("cpu"))
    found = jitter.timed([runner("a"), runner("b")], bench, calls=6, blocks=2)
    order = [mode for n, mode in enumerate(seen) if n == 0 or seen[n - 1] != mode]
    assert order == ["a", "b", "a"] and all(len(each.latency) == 6 for each in found.values())


def test_a_stream_of_lengths(tmp_path: Path) -> None:
    small = "--device", "cpu", "--count", "3", "--passes", "3", "--width", "8", "--layers", "1"
    found = run("lengths.py", tmp_path / "out.json", *small)
    for kind, graphs in (("inference", 1), ("training", 2)):
        record = found["kinds"][kind]
        assert {name: len(passes) for name, passes in record["modes"].items()} == {
            "default": 3,
            "pygraph": 3,
            "at-once": 3,
        }
        assert len(record["states"]) == 2 * graphs
        assert set(record["states"].values()) == {"graphed"}
        assert record["replays"] > 0
    right = [target for target in found["targets"] if target["name"].endswith("right")]
    assert [target["met"] for target in right] == [True, True]


def test_threads_share_one_model(tmp_path: Path) -> None:
    rows = run(
        "threads.py", tmp_path / "out.json", "--device", "cpu", "--tiny",
        "--threads", "3,1", "--mode", "pygraph", "--seconds", "0.3",
    )  # fmt: skip
    assert [row["threads"] for row in rows] == [3, 1]
    for row in rows:
        assert (row["correct"], row["reason"]) == (True, None)
        assert row["calls_per_s"] > 0 and 0 < row["latency_us"] <= row["latency_p99_us"]
        assert row["replayed"] > 0.95


def test_a_row_of_threads_that_fails_has_its_reason_and_the_next_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measure(row: threads.Row, *_: Any) -> None:
        if row.threads == 2:
            raise ArithmeticError("a result is wrong")
        row.correct = True

    processes: list[str] = []

    def process(command: list[str], **_: Any) -> None:
        options = dict(zip(command[2::2], command[3::2], strict=False))
        processes.append(options["--threads"])
        numbers = [int(each) for each in options["--threads"].split(",")]
        rows = [threads.Row(number, "own", "default") for number in numbers if number != 8]
        threads.rows_here(rows, given, Path(options["--out"]))
        if 1 not in numbers:
            raise subprocess.CalledProcessError(-11, "threads.py")

    given = threads.Clocking("cpu", True, 0.1)
    monkeypatch.setattr(threads, "measure", measure)
    monkeypatch.setattr(threads, "prepare", lambda *_: None)
    monkeypatch.setattr(threads.subprocess, "run", process)
    rows = threads.rows_elsewhere(
        [threads.Row(number, "own", "default") for number in (1, 2, 4, 8)], given
    )
    assert processes == ["1,2,4,8", "4,8"]
    assert [row["threads"] for row in rows] == [1, 2, 4, 8]
    assert [row["correct"] for row in rows] == [True, False, True, False]
    assert rows[1]["reason"].endswith("a result is wrong") and "SIGSEGV" in rows[3]["reason"]


def test_layers_share_one_graph(tmp_path: Path) -> None:
    """The row of one layer, compiled once: three sets of weights, one graph, on the twin."""
    row = run(
        "layers.py", tmp_path / "out.json", "--device", "cpu", "--tiny",
        "--form", "layer", "--mode", "pygraph",
    )  # fmt: skip
    assert row["correct"] and row["latency_us"] > 0
    (graph,) = row["report"]
    assert (graph["state"], graph["relinks"], graph["programs"]) == ("graphed", 0, 1)
    assert graph["replays"] == graph["calls"] - 2 > 3 * 50
