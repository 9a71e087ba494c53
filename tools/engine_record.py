"""Turns Google Benchmark's JSON into this project's record form.

    ./run bench-engine raw.json
    ./run python tools/engine_record.py raw.json benchmarks/results/engine-microbench.json

Leaves out the host's name. The GPU's figures are taken from first-light.json's environment only if
`--env FILE` names it (the benchmarks themselves know the driver, not the device).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

US_PER = {"ns": 1e-3, "us": 1.0, "ms": 1e3}
COUNTERS = ("per_region", "per_node", "per_allocation")
ENV = ("gpu", "driver", "cuda", "cpu", "capability")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("raw", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--env", type=Path, help="a record whose machine is the same")
    given = parser.parse_args()
    raw = json.loads(given.raw.read_text())
    env = {}
    if given.env is not None:
        known = json.loads(given.env.read_text())["env"]
        env = {key: known[key] for key in ENV if key in known}
    env["date"] = raw["context"]["date"]
    records = [found for each in raw["benchmarks"] if (found := record(each)) is not None]
    document = {"env": env, "command": "./run bench-engine raw.json", "records": records}
    given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
