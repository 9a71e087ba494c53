"""The modes of a pattern: torch's and PyGraph's on the model, and PyGraph on the clean one.

Each mode has a model and inputs of its own: patterns write both.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.harness.device import Device
from benchmarks.harness.isolate import isolated
from benchmarks.harness.modes import Bench, Runner, before, compiling, train
from benchmarks.patterns.pattern import Loaded, Pattern, Tensors

MODES = ("eager", "default", "reduce-overhead", "pygraph", "clean")
ON_CPU = ("eager", "default", "pygraph", "clean")


class PatternRunner(Runner):
    """Knows the model that it runs, which keeps state."""

    model: Loaded


def available(device: Device) -> tuple[str, ...]:
    return MODES if device.is_cuda else ON_CPU


def way(mode: str) -> str:
    """The clean model is compiled as the other is."""
    return "pygraph-clean" if mode == "clean" else mode


def bench_of(mode: str, pattern: Pattern, model: Loaded, device: Device) -> Bench:
    """`model`: as the pattern builds it for this mode."""
    inputs = pattern.stream(mode == "clean", device.torch)
    return Bench(copy.deepcopy(model), inputs, device, workload=pattern)


def maker(mode: str, options: Mapping[str, Any]) -> Callable[[Bench], PatternRunner]:
    """`options` are PyGraph's."""

    def make(bench: Bench) -> PatternRunner:
        model = isolated(bench.model, way(mode).replace("-", "_"))
        step = model
        if mode != "eager":
            step = torch.compile(model, **compiling(way(mode), bench.device.is_cuda, **options))
        runner = PatternRunner(way(mode), step, before(mode), inputs=bench.inputs)
        if bench.workload.training:
            train(runner, step, list(step.parameters()))
        elif model.by_hand:
            runner.step = functools.partial(model.called, step)
        runner.model = model
        return runner

    return make


def observed(runner: PatternRunner, inputs: Tensors) -> Any:
    """All that one call computes, from the state before the first call."""
    runner.model.restart()
    outputs = runner.run(inputs)
    gradients = tuple(each for each in runner.gradients() if each is not None)
    return runner.model.observe(inputs, outputs), gradients
