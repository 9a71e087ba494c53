"""The C++ microbenchmarks: from Google Benchmark's JSON, what `./run bench-engine` writes, to
records.

Figures that have a target (TARGETS, the only place) get it written beside them, with met true or
false. Times on the CPU twin say nothing about CUDA and are not held against targets that need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

US_PER = {"ns": 1e-3, "us": 1.0, "ms": 1e3}
COUNTERS = ("per_region", "per_node", "per_allocation")
REAL = "real driver"  # how the label of a benchmark on the CUDA driver starts


@dataclass(frozen=True)
class Target:
    """At most `base_us`, and `per_arg_us` for each unit of the benchmark's argument."""

    base_us: float
    per_arg_us: float = 0.0
    needs_driver: bool = True  # False: measures the engine alone

    def limit_us(self, workload: str) -> float:
        argument = int(workload.rpartition("/")[2]) if self.per_arg_us else 0
        return round(self.base_us + self.per_arg_us * argument, 6)


# By benchmark and argument; "/*" stands for every argument.
TARGETS = {
    "bind_unchanged/*": Target(0.3, per_arg_us=0.01),
    "bind_and_update/256": Target(50),
    "moved_minus_unmoved/10": Target(15),
    "lay_out_arena/1000": Target(500, needs_driver=False),
    "lay_out_arena/10000": Target(100_000, needs_driver=False),
}

# Differences of two benchmarks: name -> (minuend, subtrahend), for every argument both have.
DIFFERENCES = {"moved_minus_unmoved": ("call_with_moved_inputs", "call_with_unmoved_inputs")}


def record(benchmark: dict[str, Any]) -> dict[str, Any] | None:
    """One benchmark; of repeated ones only the median."""
    repeated = benchmark.get("repetitions", 1) > 1
    if repeated and benchmark.get("aggregate_name") != "median":
        return None
    name = benchmark["run_name"].split("/iterations")[0]
    found = {
        "workload": name,
        "mode": benchmark.get("label"),
        "host_us": round(benchmark["real_time"] * US_PER[benchmark["time_unit"]], 5),
        "repetitions": benchmark.get("repetitions", 1),
    }
    for counter in COUNTERS:
        if counter in benchmark:
            found[f"{counter}_us"] = round(benchmark[counter] * 1e6, 6)
    return found


def differences(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_workload = {each["workload"]: each for each in records}
    found = []
    for name, (minuend, subtrahend) in DIFFERENCES.items():
        for workload, record in by_workload.items():
            benchmark, _, argument = workload.partition("/")
            other = by_workload.get(f"{subtrahend}/{argument}")
            if benchmark == minuend and other is not None:
                host = round(record["host_us"] - other["host_us"], 5)
                found.append({**record, "workload": f"{name}/{argument}", "host_us": host})
    return found


def judge(record: dict[str, Any]) -> dict[str, Any]:
    """The record with its target, if there is one that applies."""
    workload = record["workload"]
    target = TARGETS.get(workload) or TARGETS.get(workload.partition("/")[0] + "/*")
    on_driver = (record["mode"] or "").startswith(REAL)
    if target is None or (target.needs_driver and not on_driver):
        return record
    limit = target.limit_us(workload)
    return {**record, "target_us": limit, "met": record["host_us"] <= limit}


def records(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of all that Google Benchmark has written, judged."""
    found = [each for benchmark in raw["benchmarks"] if (each := record(benchmark)) is not None]
    return [judge(each) for each in found + differences(found)]
