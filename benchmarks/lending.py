#!/usr/bin/env python3
"""What it costs and saves that scratch stands in outputs: python benchmarks/lending.py OUT.json

A model whose output is larger than its scratch is called with and without. Where the caller drops
an output before the next call, that gets the same memory again and nothing is patched; where the
caller keeps it, every node whose scratch stands in the output is patched at every call.
"""

from __future__ import annotations

import pathlib
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for benchmarks/, from anywhere

import pygraph
from benchmarks.engine import large
from benchmarks.harness import record
from benchmarks.harness.build import make_model
from benchmarks.harness.device import MIB
from benchmarks.harness.environment import environment
from pygraph.capturing.cuda import Cuda

CALLS = 60
WARM = 6
NEVER = 1 << 62


def timed(call: Any, kept: int) -> dict[str, float]:
    """Host time of a call, and time until the device is done; `kept` outputs stay alive."""
    host, whole = [], []
    outputs: list[Any] = []
    for _ in range(CALLS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        found = call()
        host.append(time.perf_counter() - started)
        torch.cuda.synchronize()
        whole.append(time.perf_counter() - started)
        outputs.append(found)
        del found
        del outputs[: len(outputs) - kept]
    return {
        "host_us": 1e6 * statistics.median(host),
        "host_worst_us": 1e6 * max(host),
        "whole_us": 1e6 * statistics.median(whole),
    }


def measure(name: str, smallest_loan: int) -> dict[str, Any]:
    torch._dynamo.reset()
    pygraph.reset()
    Cuda.smallest_loan = smallest_loan
    (workload,) = large.find(name)
    model, inputs = make_model(workload, "cuda"), workload.make_inputs(0, "cuda")
    with torch.no_grad():
        expected = [each.clone() for each in torch.compile(model)(*inputs)]
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="pygraph")
        for _ in range(WARM):
            found = compiled(*inputs)
        assert all(map(torch.equal, found, expected)), "not what torch.compile computes"
        del found, expected
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        compiled(*inputs)
        peak = torch.cuda.max_memory_allocated() - before
        dropped, kept = timed(lambda: compiled(*inputs), 0), timed(lambda: compiled(*inputs), 1)
    (graph,) = pygraph.report().graphs
    assert graph.graphed, graph.reason
    return {
        "scratch_in_outputs": graph.scratch_in_outputs,
        "nodes": graph.nodes,
        "arena_mib": graph.arena_bytes / MIB,
        "output_mib": graph.output_bytes / MIB,
        "peak_of_a_call_mib": peak / MIB,
        "outputs_dropped": dropped,
        "outputs_kept": kept,
    }


def main(out: pathlib.Path, model: str = "gpt2-medium") -> None:
    content = {
        "env": environment(),
        "command": f"python benchmarks/lending.py {out.name} --model {model}",
        "model": model,
        "lending": measure(model, Cuda.smallest_loan),
        "apart": measure(model, NEVER),
    }
    record.write(out, content)
    for name in ("lending", "apart"):
        print(name, content[name])


if __name__ == "__main__":
    typer.run(main)
