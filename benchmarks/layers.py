#!/usr/bin/env python3
"""A transformer of N equal layers, compiled whole or by the layer: benchmarks/layers.py --out FILE

    whole   torch.compile(model)
    layer   torch.compile(one layer), called for each of the N layers with that layer's weights

A layer that is compiled once is one callable with N sets of weights. PyGraph makes one graph of it
and re-points the weights before each launch; a graph that is nailed to its addresses is needed N
times. Each row is measured in a process of its own with an empty cache of Inductor's: what it takes
to compile, what memory of the GPU is gone behind it, and the clocks. The floor replays one graph
of the whole iteration on an input that never moves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for benchmarks/, from anywhere

from benchmarks.engine.memory import digest
from benchmarks.harness import compare, measure, modes, record
from benchmarks.harness.device import Device
from benchmarks.harness.environment import environment
from benchmarks.harness.modes import Bench, Runner, Tensors
from benchmarks.harness.reports import read_report
from benchmarks.harness.timed import Timed

FORMS = ("whole", "layer")
MODES = ("default", "reduce-overhead", "pygraph", "floor")
INPUTS = 8
TIMEOUT_S = 600


class Layer(nn.Module):
    """Self-attention and a feed-forward net, each behind a norm and beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        split = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


def apply_layer(layer: nn.Module, x: Any) -> Any:
    return layer(x)


class Stack(nn.Module):
    """The layers, each called by `apply`, which may be compiled."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.apply_layer: Callable[..., Any] = apply_layer

    def forward(self, x: Any) -> Tensors:
        for layer in self.layers:
            x = self.apply_layer(layer, x)
        return (x,)


def runner(form: str, mode: str, bench: Bench) -> Runner:
    if form == "whole":
        return modes.MODES[mode](bench)
    how = modes.compiling(mode, bench.device.is_cuda)
    bench.model.apply_layer = torch.compile(apply_layer, **how)
    return Runner(mode, bench.model, modes.before(mode))


def measured(form: str, mode: str, device: Device, tiny: bool) -> dict[str, Any]:
    """One row. Everything is new: the process is started for it."""
    layers, width, heads, length = (3, 32, 2, 8) if tiny else (24, 1024, 16, 128)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.is_cuda else torch.float32
    with torch.device(device.torch):
        model = Stack(layers, width, heads).to(dtype).eval()
        inputs = [(torch.randn(1, length, width, dtype=dtype),) for _ in range(INPUTS)]
    bench = Bench(model, inputs, device)
    with torch.no_grad():
        expected = compare.expect(bench, inputs)  # in front of it all: kernels are loaded here
        device.tidy()
        in_use = device.memory().in_use
        found = modes.warm_up(runner(form, mode, bench), bench)
        verdict = compare.check(found, expected)
        row = Timed(f"{layers} layers", 1, mode, correct=verdict.correct)
        content = {
            "what": form,
            "layers": layers,
            "compile_s": None if mode == "floor" else found.compile_s,
            "relative_error": verdict.relative_error,
            "reason": verdict.reason,
            "digest": digest(result for each in inputs for result in found.compute(each)),
        }
        del expected
        device.tidy()
        after = device.memory()
        content["graph_memory_mib"] = None if mode == "floor" else after.in_use - in_use
        content["private_pools_mib"] = after.private
        if verdict.correct:
            device.restart_peaks()
            effort = measure.Effort(seconds=0.5 if tiny else 8.0, most=1000)
            row.take(measure.measure([found], inputs, device, effort)[mode])
            content["peak_allocated_mib"] = device.memory().peak_allocated
    if mode == "pygraph":
        content["report"] = [graph.to_dict() for graph in read_report().graphs]
    return {**asdict(row), **content}


def in_a_process(form: str, mode: str, device: str, tiny: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "row.json")
        options = ["--form", form, "--mode", mode, "--device", device, "--out", str(out)]
        command = [sys.executable, __file__, *options, *(["--tiny"] if tiny else [])]
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton",
        }
        subprocess.run(command, env={**os.environ, **caches}, timeout=TIMEOUT_S, check=True)
        return dict(json.loads(out.read_text()))


def main(
    out: Annotated[Path, typer.Option(help="The record.")],
    device: Annotated[str, typer.Option(help="cpu: to try the command; means nothing.")] = "cuda",
    tiny: Annotated[bool, typer.Option(help="Three small layers.")] = False,
    form: Annotated[str | None, typer.Option(help="One row alone, in this process.")] = None,
    mode: Annotated[str | None, typer.Option(help="The mode of that row.")] = None,
) -> None:
    """Measure."""
    if form is not None and mode is not None:
        record.write(out, measured(form, mode, Device(device), tiny))
        return
    wanted = [mode for mode in MODES if device == "cuda" or mode in ("default", "pygraph")]
    rows = [
        in_a_process(form, mode, device, tiny)
        for form in FORMS
        for mode in wanted
        if (form, mode) != ("layer", "floor")
    ]
    default = {row["what"]: row["digest"] for row in rows if row["mode"] == "default"}
    for row in rows:
        row["bit_equal_to_default"] = row.pop("digest") == default[row["what"]]
        figures = {name: row[name] for name in ("compile_s", "graph_memory_mib", "latency_us")}
        print(row["what"], row["mode"], figures, row["reason"] or "")
    command = f"python benchmarks/layers.py --out {out.name}"
    record.write(out, {"env": environment(), "command": command, "rows": rows})
    raise typer.Exit(0 if all(row["correct"] for row in rows) else 1)


if __name__ == "__main__":
    typer.run(main)
