"""Small workloads for tests of the paper's benchmark, and the modes they are run in."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from benchmarks.harness.device import Device
from benchmarks.harness.measure import Effort
from benchmarks.harness.modes import Bench
from benchmarks.paper import modes, run
from benchmarks.paper.prepare import Options
from benchmarks.paper.record import Result, Row
from benchmarks.paper.workloads.workload import FP32, Workload

CPU = Device("cpu")
QUICK = Effort(0.05, rounds=2, least=3, most=5)


def build(tiny: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3))


def call(model: Any, x: Any) -> Any:
    return (model(x),)


def sample(tiny: bool) -> Any:
    return lambda generator, device: (torch.randn(4, 8, generator=generator),)


NET = Workload(
    "NET",
    "a net",
    "torchbench",
    training=False,
    batch=4,
    build=build,
    call=call,
    sample=sample,
    precision=FP32,
)
TRAINED = dataclasses.replace(NET, name="NET-T", training=True)


def options(*names: str) -> Options:
    return Options(QUICK, names)


def by_mode(row: Row) -> dict[str, Result]:
    return {each.mode: each for each in row.records}


def bench_of(workload: Workload, *names: str) -> Bench:
    """Prepared, each mode in its steady state."""
    bench = run.build(workload, CPU, tiny=False)
    for name in names:
        modes.finish(modes.begin(name, bench), bench)
    return bench


def with_other_padding(seen: list[bool]) -> tuple[Workload, bool]:
    """NET under another setting of Inductor, and which; the model notes what holds when called."""
    from torch._inductor import config

    def asking(model: Any, x: Any) -> Any:
        seen.append(config.comprehensive_padding)
        return call(model, x)

    other = not config.comprehensive_padding
    return dataclasses.replace(NET, call=asking, inductor={"comprehensive_padding": other}), other
