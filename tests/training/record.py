"""The record: python tests/training/record.py --out FILE [--steps 50] [--workloads a,b]

Trains every workload with the reference and with PyGraph, and writes as JSON how far apart they
are. FILE is written after each workload. One that raises is recorded, and the others go on: in a
new process if the device is of no use any more. Ends with status 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

if __package__ is None or __package__ == "":
    tests, root = Path(__file__).resolve().parents[1:3]
    sys.path[:0] = [str(tests), str(root)]

import torch

import pygraph
from benchmarks.harness.environment import environment
from training import harness
from training.models import WORKLOADS
from training.workload import Workload

ERROR = "error"
_GRAPH_FIELDS = ("name", "state", "reason", "operator", "source", "nodes", "kernels", "proof",
                 "calls", "replays", "copies")  # fmt: skip


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the record")
    parser.add_argument("--device", choices=sorted(harness.TARGETS), default="cuda")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workloads", help=f"default: all of {','.join(WORKLOADS)}")
    parser.add_argument("--budget", type=float, help="seconds after which no workload is started")
    parser.add_argument(
        "--runs", type=int, default=3, help="of a reference that varies; at least 2"
    )
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="with torch.use_deterministic_algorithms, to compare bits where the default varies",
    )
    parser.add_argument("--resume", action="store_true", help="leave out what is in FILE already")
    options = parser.parse_args()
    options.names = options.workloads.split(",") if options.workloads else list(WORKLOADS)
    unknown = [name for name in options.names if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {', '.join(unknown)}: there are {', '.join(WORKLOADS)}")
    if options.runs < 2:
        parser.error("--runs must be 2 or more")
    return options


def _new_record(options: argparse.Namespace) -> dict[str, Any]:
    target = harness.TARGETS[options.device]
    # Paths are reduced to their last part: a record says what was run, not where.
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    return {
        "env": environment(),
        "pygraph": pygraph.__version__,
        "command": " ".join(["python tests/training/record.py", *words]),
        "device": options.device,
        "candidate": target.candidate.name,
        "reference": target.reference.name,
        "steps": options.steps,
        "seed": options.seed,
        "deterministic_algorithms": options.deterministic,
        "spread_factor": harness.SPREAD_FACTOR,
        "differences": "largest, as a part of the largest value of the tensor",
        "seconds": 0.0,
        "summary": {},
        "workloads": [],
    }


def _resumed(path: Path, new: dict[str, Any]) -> dict[str, Any]:
    earlier: dict[str, Any] = json.loads(path.read_text())
    for name in ("pygraph", "device", "steps", "seed", "deterministic_algorithms"):
        if earlier[name] != new[name]:
            sys.exit(f"{path} is of another run: {name} is {earlier[name]}")
    return earlier


def _figures(values: dict[str, float]) -> dict[str, float | str]:
    return {kind: v if math.isfinite(v) else "infinite" for kind, v in values.items()}


def _describe(workload: Workload, outcome: harness.Outcome, steps: int) -> dict[str, Any]:
    comparison, candidate = outcome.comparison, outcome.candidate
    return {
        "verdict": comparison.verdict,
        "problems": outcome.problems,
        "differences": _figures(comparison.found),
        "first_different_step": comparison.first_step,
        "reference_deterministic": comparison.deterministic,
        "reference_spread": _figures(comparison.spread),
        "reference_runs": len(outcome.references),
        "first_loss": float(candidate.losses["0.0"].mean()),
        "last_loss": float(candidate.losses[f"{steps - 1}.0"].mean()),
        "graphs_expected": workload.graphs,
        "graphs_deployed": len(candidate.deployed),
        "fallbacks": candidate.fallbacks,
        "seconds": {
            "reference": [run.seconds for run in outcome.references],
            "candidate": candidate.seconds,
        },
        "graphs": [
            {field: getattr(graph, field) for field in _GRAPH_FIELDS} for graph in candidate.graphs
        ],
    }


def _run(workload: Workload, options: argparse.Namespace) -> dict[str, Any]:
    made: dict[str, Any] = {"workload": workload.name, "what": workload.what}

    def note(what: str) -> None:
        made["during"] = what
        print(f"{workload.name}: {what}", file=sys.stderr, flush=True)

    try:
        outcome = harness.check(
            workload,
            harness.TARGETS[options.device],
            options.steps,
            options.seed,
            repeats=(2, options.runs),
            note=note,
        )
        made.pop("during")
        made.update(_describe(workload, outcome, options.steps))
    except Exception as error:
        traceback.print_exc()
        made["verdict"] = ERROR
        made["error"] = f"{type(error).__name__}: {error}".strip().splitlines()[0][:500]
        made["graphs_expected"], made["graphs_deployed"] = workload.graphs, 0
    return made


def _device_is_broken(device: str) -> bool:
    """An illegal access makes every later call of the process fail."""
    if device != "cuda":
        return False
    try:
        torch.cuda.synchronize()
        torch.ones(1, device=device).item()
    except Exception:
        return True
    return False


def _wrong(done: dict[str, Any]) -> bool:
    return done["verdict"] in (ERROR, harness.DIFFERENT) or bool(done.get("problems"))


def _summary(workloads: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    recorded = [done["workload"] for done in workloads]
    return {
        "verdicts": dict(Counter(done["verdict"] for done in workloads)),
        "wrong": [done["workload"] for done in workloads if _wrong(done)],
        "fewer_graphs_than_expected": [
            done["workload"]
            for done in workloads
            if done["graphs_deployed"] < done["graphs_expected"]
        ],
        "not_run": [name for name in names if name not in recorded],
    }


def _start_again() -> None:
    """This process is replaced by one that goes on with the next workload."""
    sys.stdout.flush()
    sys.stderr.flush()
    words = [word for word in sys.argv if word != "--resume"]
    os.execv(sys.executable, [sys.executable, *words, "--resume"])


def main() -> int:
    options = _parse()
    if options.device == "twin":
        torch.set_num_threads(1)
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    record = _new_record(options)
    if options.resume and options.out.exists():
        record = _resumed(options.out, record)
    before, started = record["seconds"], time.monotonic()
    for name in options.names:
        if any(done["workload"] == name for done in record["workloads"]):
            continue
        if options.budget is not None and record["seconds"] >= options.budget:
            print("the budget is spent", file=sys.stderr)
            break
        done = _run(WORKLOADS[name], options)
        record["workloads"].append(done)
        record["seconds"] = round(before + time.monotonic() - started, 1)
        record["summary"] = _summary(record["workloads"], options.names)
        options.out.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
        print(
            f"{record['seconds']:.0f} s: {name}: {done['verdict']}, "
            f"{done['graphs_deployed']} of {done['graphs_expected']} graphs",
            file=sys.stderr,
            flush=True,
        )
        if _device_is_broken(options.device):
            _start_again()
    print(json.dumps(record["summary"], indent=1))
    return 1 if record["summary"].get("wrong") else 0


if __name__ == "__main__":
    sys.exit(main())
