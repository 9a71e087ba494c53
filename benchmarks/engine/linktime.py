"""What it takes to link and prove a graph, beside what it takes to capture it once.

The first link of a process also makes a stream and reserves addresses. So the same model is
compiled several times, from Inductor's caches, and the first is reported on its own. Steps are read
from the report of each graph (`timings_ms`):

link         two captures, comparison, layout; of it
capture      both captures together
compare      reading both graphs, comparing them and laying the arena out
proof        running and comparing; of it
proof_runs   the runs alone, until the GPU is done

A step that the report does not name is taken from a measurement that stands in for it, and the
result says so: one capture by `torch.cuda.graph`, two replays (a proof runs at least as often).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from benchmarks.harness import modes
from benchmarks.harness.build import make_model
from benchmarks.harness.device import Device, drop_workspaces
from benchmarks.harness.isolate import isolated
from benchmarks.harness.reports import read_report
from pygraph.demo.models import Workload

LINKS = 4
CAPTURES = 3
TIMED_CALLS = 7
CALLS_TO_LINK = 6
LIMIT = 3.0
"""Captures of the same callable that linking and proving may take, besides the proof's runs."""


def figures(
    links: Sequence[Mapping[str, float]], torch_capture_ms: float, replay_ms: float
) -> dict[str, Any]:
    """The requirement's arithmetic on the steps of some links, the first of which is left out if
    there are others. Raises ValueError where nothing was linked."""
    settled = [link for link in links[1:] or links if "link" in link and "proof" in link]
    if not settled:
        raise ValueError("no graph was linked and proven")

    def median(name: str) -> float | None:
        values = [link[name] for link in settled if name in link]
        return statistics.median(values) if values else None

    capture, runs = median("capture"), median("proof_runs")
    one_capture = torch_capture_ms if capture is None else capture / 2
    proof_runs = 2 * replay_ms if runs is None else runs
    total = statistics.median(link["link"] + link["proof"] for link in settled)
    first = links[0].get("link", 0.0) + links[0].get("proof", 0.0)
    return {
        "one_capture_ms": one_capture,
        "one_capture_is": "torch.cuda.graph" if capture is None else "half of 'capture'",
        "proof_runs_ms": proof_runs,
        "proof_runs_are": "two replays" if runs is None else "'proof_runs'",
        "link_ms": median("link"),
        "compare_ms": median("compare"),
        "proof_ms": median("proof"),
        "link_and_proof_ms": total,
        "first_link_and_proof_ms": first,
        "captures": (total - proof_runs) / one_capture,
        "limit": LIMIT,
    }


def measure_link(workload: Workload, device: Device) -> dict[str, Any]:
    """All of it for one model. Raises what the model or a mode raises."""
    model = make_model(workload, device.torch)
    inputs = [workload.make_inputs(1000 + n, device.torch) for n in range(4)]
    with torch.no_grad():
        plain = torch.compile(isolated(model, "plain"))
        plain_ms = _median_ms(plain, inputs, device)
        captures = [_capture_ms(plain, inputs[0]) for _ in range(CAPTURES)]
        del plain
        links: list[dict[str, float]] = []
        states: list[str] = []
        replay_ms = 0.0
        for n in range(LINKS):
            device.tidy()
            linked, steps, state = _link(model, f"link{n}", inputs, device)
            links.append(steps)
            states.append(state)
            if n == LINKS - 1:
                replay_ms = _median_ms(linked, inputs, device)
            del linked
    torch_capture_ms = statistics.median(captures)
    return {
        "workload": workload.name,
        "batch": workload.batch,
        "plain_ms": plain_ms,
        "replay_ms": replay_ms,
        "torch_capture_ms": torch_capture_ms,
        "torch_captures_ms": captures,
        "links_ms": links,
        "states": states,
        **figures(links, torch_capture_ms, replay_ms),
    }


def _median_ms(step: modes.Step, inputs: Sequence[modes.Tensors], device: Device) -> float:
    for _ in range(3):
        step(*inputs[0])
    device.synchronize()
    times = []
    for n in range(TIMED_CALLS):
        started = time.perf_counter()
        step(*inputs[n % len(inputs)])
        device.synchronize()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def _capture_ms(step: modes.Step, inputs: modes.Tensors) -> float:
    """One capture as torch makes it, instantiation left out, into a pool of its own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    drop_workspaces()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        started = time.perf_counter()
        step(*inputs)
        elapsed = 1e3 * (time.perf_counter() - started)
    graph.reset()
    return elapsed


def _link(
    model: Any, label: str, inputs: Sequence[modes.Tensors], device: Device
) -> tuple[Callable[..., Any], dict[str, float], str]:
    """A fresh compilation, called until it is linked or given up; its steps, summed over graphs."""
    from pygraph.frontends.compile.backend import backend
    from pygraph.reporting import WARMING

    known = {graph.name for graph in read_report().graphs}
    compiled = torch.compile(isolated(model, label), backend=backend)
    new: list[Any] = []
    for call in range(CALLS_TO_LINK):
        compiled(*inputs[call % len(inputs)])
        device.synchronize()
        new = [graph for graph in read_report().graphs if graph.name not in known]
        if new and all(graph.state != WARMING for graph in new):
            break
    steps: dict[str, float] = {}
    for graph in new:
        for name, value in graph.timings_ms.items():
            steps[name] = steps.get(name, 0.0) + value
    states = [f"{graph.state}: {graph.blame}" if graph.blame else graph.state for graph in new]
    return compiled, steps, "; ".join(states)
