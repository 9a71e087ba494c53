"""The ways to call a scenario's model: torch's, and PyGraph with each choice that it could make.

default                torch.compile(model)
reduce-overhead        torch.compile(model, mode="reduce-overhead")
pygraph-never          no graph is used
pygraph-always         a proven graph is always used, its arguments patched
pygraph-copied         the same, with arguments copied into place
pygraph-after-guards   the same as always, launched once the guards have passed
pygraph-model          chosen by a model of costs, without clocks
pygraph                chosen by measured cost, as PyGraph does it without any option
pygraph-always-again   pygraph-always once more: how far two measurements of one thing are apart

The best is the fastest of default and PyGraph's static choices: what a selector that is never wrong
could choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.harness.device import Device
from benchmarks.harness.isolate import isolated
from benchmarks.harness.modes import Bench, Runner, Tensors, before, compiling, train
from benchmarks.selection.scenario import Caller, Scenario

OWN = "pygraph"
ONCE, AGAIN = "pygraph-always", "pygraph-always-again"
OPTIONS: dict[str, dict[str, Any]] = {
    "pygraph-never": {"select": "never"},
    ONCE: {"select": "always"},
    "pygraph-copied": {"select": "always", "arguments": "copied"},
    "pygraph-after-guards": {"select": "always", "launch": "after_guards"},
    "pygraph-model": {"select": "model"},
    OWN: {},
    AGAIN: {"select": "always"},
}
"""PyGraph's, by mode."""
MODES = ("default", "reduce-overhead", *OPTIONS)
STATIC = ("default", *(mode for mode in OPTIONS if mode not in (OWN, AGAIN)))
"""Of these is the best."""


MANY = 16


class ScenarioRunner(Runner):
    def compute(self, inputs: Tensors) -> Tensors:
        """Results and gradients; many are one tensor, since each comparison waits for the GPU."""
        results = self.run(inputs)
        them = results if isinstance(results, tuple | list) else (results,)
        found = [each.detach() for each in (*them, *self.gradients()) if each is not None]
        if len(found) > MANY:
            return (torch.cat([each.reshape(-1) for each in found]),)
        return tuple(each.clone() for each in found)


def available(device: Device) -> tuple[str, ...]:
    return MODES if device.is_cuda else tuple(mode for mode in MODES if mode != "reduce-overhead")


def maker(mode: str, options: Mapping[str, Any]) -> Callable[[Bench], ScenarioRunner]:
    """`options` are PyGraph's, for all of its modes."""

    def make(bench: Bench) -> ScenarioRunner:
        scenario: Scenario = bench.workload
        compiled = bench.model
        if mode != "eager":
            how = compiling(mode, bench.device.is_cuda, **(OPTIONS.get(mode, {}) | dict(options)))
            model = isolated(bench.model, mode.replace("-", "_"))
            compiled = torch.compile(model, dynamic=scenario.dynamic, **how)
        caller = scenario.caller(bench.device.torch)

        def step(*inputs: Any) -> Any:
            return caller(compiled, *inputs)

        runner = ScenarioRunner(mode, step, before(mode), keep=compiled)
        if scenario.training:
            train(runner, step, list(bench.model.parameters()))
        elif scenario.caller is Caller:
            runner.step = compiled
        return runner

    return make
