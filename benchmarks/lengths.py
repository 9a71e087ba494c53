#!/usr/bin/env python3
"""A stream of 200 different lengths, over and over: python benchmarks/lengths.py --out FILE

Nothing recurs in the first pass over the stream; from the second on each length comes once in a
pass, in another order each time. torch.compile's default and pygraph compile the same model with
dynamic sizes and take the same inputs in turn. reduce-overhead takes its passes behind all of
theirs, and so does pygraph with all programs linked at their second sight, to show what they make
of such a stream. All must agree on the sum of results.

Each length has been run eagerly before, so that libraries have their plans for it: cuDNN's
attention takes 10 ms to make one, whichever mode meets a length first.

Targets: the first pass takes no longer than default's by more than 3%, and all together no longer
than links may take where they are lent time (decide/budget.py: a quarter of it); what is allocated
behind a pass does not grow from the second on (what torch's allocator keeps in reserve is shown:
links fill it now and then). Links may take a share of all time that goes by, so of the time that
default takes, too: pygraph spends up to twice on them what it would alone.
`--device cpu` is to try the script: the engine runs on the CPU twin, and times mean nothing.
"""

from __future__ import annotations

import copy
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for benchmarks/, from anywhere

import pygraph
from benchmarks.harness import record
from benchmarks.harness.device import Device
from benchmarks.harness.environment import environment
from benchmarks.harness.isolate import isolated
from benchmarks.harness.modes import before, compiling
from benchmarks.harness.table import target_table
from benchmarks.harness.targets import Target
from pygraph.demo.output import terminal

LIMIT = 1.03
LIMIT_OF_ALL = 1.33
GROWTH_MIB = 16.0
"""From the second pass on: a few blocks of torch's allocator."""
TOLERANCE = 1e-2
"""Relative, of the sums: bf16."""
WARM_LENGTHS = (1000, 1007, 1013, 1000, 1007)
"""Compile, for sizes that the stream does not have."""


@dataclass
class Pass:
    """One mode's calls in a pass."""

    seconds: float
    median_us: float
    worst_us: float
    allocated_mib: float
    reserved_mib: float
    checksum: float


@dataclass
class Mode:
    name: str
    call: Callable[[torch.Tensor], torch.Tensor]
    passes: list[Pass] = field(default_factory=list)


class Encoder(torch.nn.Module):
    """Layers of attention and a head, as small as leaves the host the slower part."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        make = torch.nn.TransformerEncoderLayer
        layer = make(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = torch.nn.ModuleList(copy.deepcopy(layer) for _ in range(layers))
        self.head = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x).float().square().mean()


def modes(model: torch.nn.Module, device: Device, training: bool) -> list[Mode]:
    names = ("default", "pygraph", *(["reduce-overhead"] if device.is_cuda else []))
    ways = {name: compiling(name, device.is_cuda) for name in names}
    ours = ways["pygraph"]
    ways["at-once"] = {**ours, "options": {**ours["options"], "programs_at_once": 1 << 10}}
    found = []
    for name, options in ways.items():
        own, marked = copy.deepcopy(model), before(name)
        compiled = torch.compile(isolated(own, name.replace("-", "_")), dynamic=True, **options)

        def call(
            x: torch.Tensor, own: Any = own, compiled: Any = compiled, mark: Any = marked
        ) -> torch.Tensor:
            if mark is not None:
                mark()
            with torch.set_grad_enabled(training):
                loss: torch.Tensor = compiled(x)
            if training:
                own.zero_grad()
                loss.backward()
            return loss.detach().clone()

        found.append(Mode(name, call))
    return found


def take(found: list[Mode], inputs: list[torch.Tensor], device: Device) -> None:
    """One pass over the stream: each input goes to each mode, which take turns in being first."""
    device.synchronize()
    spent: dict[str, list[float]] = {mode.name: [] for mode in found}
    totals = {mode.name: torch.zeros((), device=device.torch) for mode in found}
    for number, x in enumerate(inputs):
        for mode in found if number % 2 else found[::-1]:
            before = time.perf_counter()
            result = mode.call(x)
            device.synchronize()
            spent[mode.name].append(time.perf_counter() - before)
            totals[mode.name] += result
    gc.collect()
    memory = device.memory()
    for mode in found:
        own = spent[mode.name]
        mode.passes.append(
            Pass(
                sum(own),
                1e6 * statistics.median(own),
                1e6 * max(own),
                memory.allocated,
                memory.reserved,
                float(totals[mode.name]),
            )
        )


def targets(kind: str, found: dict[str, Mode]) -> list[Target]:
    default, ours = found["default"].passes, found["pygraph"].passes
    ratios = [one.seconds / other.seconds for one, other in zip(ours, default, strict=True)]
    whole = sum(each.seconds for each in ours) / sum(each.seconds for each in default)
    apart = max(
        abs(one.checksum - other.checksum) / abs(other.checksum)
        for mode in found.values()
        for one, other in zip(mode.passes, default, strict=True)
    )
    grown = max(each.allocated_mib for each in ours) - ours[1].allocated_mib
    passes = "passes: " + ", ".join(f"{ratio:.3f}" for ratio in ratios)
    reserved = f"reserved: {ours[0].reserved_mib:.0f}, later {ours[-1].reserved_mib:.0f}"
    new, more = "the first pass over default's", "MiB allocated more behind a later pass"
    return [
        Target(f"{kind}, {name}", requirement, value <= limit, value, limit, detail)
        for name, requirement, value, limit, detail in (
            ("right", "sums as default's", apart, TOLERANCE, ""),
            ("lengths that are new", new, ratios[0], LIMIT, ""),
            ("the whole stream", "all passes over default's", whole, LIMIT_OF_ALL, passes),
            ("memory", f"{more} than behind the second", grown, GROWTH_MIB, reserved),
        )
    ]


def run(
    kind: str, device: Device, count: int, passes: int, width: int, layers: int
) -> tuple[dict[str, Any], list[Target]]:
    torch._dynamo.reset()
    pygraph.reset()
    torch.manual_seed(0)
    model = Encoder(width, layers).to(device.torch)
    if device.is_cuda:
        model = model.to(torch.bfloat16)
    dtype = next(model.parameters()).dtype
    lengths = list(range(9, 9 + count))
    found = modes(model, device, kind == "training")

    def batch(length: int) -> torch.Tensor:
        return torch.randn(4, length, width, device=device.torch, dtype=dtype)

    for length in WARM_LENGTHS if device.is_cuda else (500, 501, 500):
        x = batch(length)
        for mode in found:
            mode.call(x)
    for length in lengths:
        with torch.set_grad_enabled(kind == "training"):
            loss = model(batch(length))
        if kind == "training":
            loss.backward()
    for behind in (found[:2], found[2:]):
        order = random.Random(0)
        torch.manual_seed(1)
        for _ in range(passes):
            order.shuffle(lengths)
            take(behind, [batch(length) for length in lengths], device)
    by_name = {mode.name: mode for mode in found}
    report = pygraph.report()
    return {
        "modes": {mode.name: [asdict(each) for each in mode.passes] for mode in found},
        "programs": {graph.name: graph.programs for graph in report.graphs},
        "evictions": {graph.name: graph.evictions for graph in report.graphs},
        "replays": report.replays,
        "calls": report.calls,
        "states": {graph.name: graph.blame or graph.state for graph in report.graphs},
    }, targets(kind, by_name)


def main(
    out: Annotated[Path, typer.Option(help="The record.")],
    count: Annotated[int, typer.Option(min=2, help="Different lengths.")] = 200,
    passes: Annotated[int, typer.Option(min=2, help="Over the stream.")] = 20,
    width: Annotated[int, typer.Option(min=8, help="Of the model.")] = 256,
    layers: Annotated[int, typer.Option(min=1, help="Of the model.")] = 4,
    device: Annotated[str, typer.Option(help="cpu: to try the script.")] = "cuda",
) -> None:
    """Measure; 0 if all targets are met."""
    where = Device(device)
    kinds, judged = {}, []
    options = f"--count {count} --passes {passes} --width {width} --layers {layers}"
    for kind in ("inference", "training"):
        kinds[kind], found = run(kind, where, count, passes, width, layers)
        judged += found
        record.write(
            out,
            {
                "env": environment(),
                "command": f"benchmarks/lengths.py {options}",
                "reserved_of": "all modes so far, in MiB" if where.is_cuda else "",
                "kinds": kinds,
                "targets": [target.to_dict() for target in judged],
            },
        )
    terminal().print(target_table(judged))
    raise typer.Exit(0 if all(target.met for target in judged) else 1)


if __name__ == "__main__":
    typer.run(main)
