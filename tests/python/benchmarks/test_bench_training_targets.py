"""The training benchmark's targets, judged on figures, and its tables."""

import io
import math
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from rich.console import Console

from benchmarks.harness.table import target_table
from benchmarks.training.modes import MODES
from benchmarks.training.record import Result, Weight
from benchmarks.training.table import detail_table, latency_table
from benchmarks.training.targets import evaluate


def by_mode(results: list[Result]) -> dict[str, Result]:
    return {each.mode: each for each in results}


TIMES = dict(zip(MODES, (400.0, 200.0, 120.0, 105.0, 100.0), strict=True))


def figures(name: str, **times: float) -> list[Result]:
    made = []
    for mode, latency in {**TIMES, **{k.replace("_", "-"): v for k, v in times.items()}}.items():
        result = Result(name, 4, mode, correct=True, latency_us=latency, host_us=1.0)
        result.bytes_copied, result.pipelined_us = 0.0, 1.0
        if mode == "pygraph":
            result.graphs, result.coverage = 2, 1.0
            result.verdict = {"bit_equal_to_default": True}
        made.append(result)
    return made


def weights(name: str, own: float = 101.0, **changed: Any) -> list[Weight]:
    default = Weight(name, "default", peak_mib=100.0)
    return [default, replace(Weight(name, "pygraph", peak_mib=own, graphs=2), **changed)]


def judged(names: list[str], results: list[Result], weighed: list[Weight]) -> dict[str, Any]:
    return {each.name: each for each in evaluate(names, results, weighed)}


def test_targets_met():
    results = [*figures("a"), *figures("b", pygraph=115.0)]
    found = judged(["a", "b"], results, [*weights("a"), *weights("b", own=102.0)])
    assert len(found) == 9 and all(each.met is True for each in found.values()), found
    assert found["floor"].value == pytest.approx(math.sqrt(1.05 * 1.15))
    assert found["latency, a"].value == pytest.approx(105 / 120)
    assert found["memory, b"].value == pytest.approx(1.02)


def test_targets_missed():
    results = [*figures("a", pygraph=121.0), *figures("b", pygraph=210.0, reduce_overhead=300.0)]
    by_mode(results[:5])["pygraph"].bytes_copied = 4.0
    by_mode(results[5:])["pygraph"].fallbacks = [{"graph": "graph 1", "reason": "no luck"}]
    found = judged(["a", "b"], results, [*weights("a", own=103.0), *weights("b", graphs=0)])
    missed = {name for name, each in found.items() if each.met is False}
    per_model = {f"{what}, {name}" for what in ("latency", "copies", "memory") for name in "ab"}
    assert missed == {"floor", *per_model}
    assert "reduce-overhead is the faster" in found["latency, a"].detail
    assert "default is the faster" in found["latency, b"].detail


def test_what_was_not_measured_meets_nothing():
    found = judged(["a", "b"], figures("a"), [])
    assert found["floor"].met is None and found["floor"].value == pytest.approx(1.05)
    assert "without b" in found["floor"].detail
    assert {found[f"{what}, b"].met for what in ("right", "latency", "copies", "memory")} == {None}
    results = figures("a")
    by_mode(results)["reduce-overhead"].correct = False
    assert judged(["a"], results, weights("a"))["latency, a"].met is None
    by_mode(results)["pygraph"].correct = False
    found = judged(["a"], results, weights("a"))
    met = {found[name].met for name in ("floor", "right, a", "latency, a", "copies, a")}
    assert met == {False}
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(latency_table(results, weights("a")))
    console.print(detail_table(results))
    console.print(target_table(list(found.values())))
    text = console.export_text()
    assert "failed" in text and "1.010" in text and "not measured" not in text
