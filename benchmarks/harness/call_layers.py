"""A call of a compiled function, layer by layer, in PyGraph and others.

module call      what torch.compile makes of a module, up to Dynamo and behind it
guess            in front of the guards, without its launch
guards           Dynamo's: what is saved by torch's stance that skips them
generated code   Dynamo's bytecode, and Dynamo around it; in other modes with all that it calls
wrappers         AOTAutograd's and Inductor's, of a forward
entry            PyGraph's entry point, what leads past the guards, and the dispatcher in a backward
compare          of a call that goes past the guards, with those before
bind             addresses of arguments
allocation       arena and outputs, and their addresses
launch           on the twin with the work
results          Python objects
autograd         the loss and torch's autograd, where there is a backward

Each layer's time is without those within it. They are seen by marks of 30 ns or so, two for a
layer, so their sum is a little above the call's time, which is measured without.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from pygraph import _engine
from pygraph.frontends.trace.timeline import HostSpan, spans_of
from pygraph.torch_private import dynamo

WIDTH, BATCH = 16, 4
BETWEEN_WAITS = 8
"""Pairs of calls: the GPU's queue must not fill."""
NAMES = {"dispatcher": "entry"}
"""Layers that go under the name of another."""
ORDER = (
    "module call",
    "guess",
    "guards",
    "generated code",
    "wrappers",
    "entry",
    "compare",
    "bind",
    "allocation",
    "launch",
    "results",
    "autograd",
)


def doing_nothing(graph: Any, _: Sequence[Any]) -> Callable[..., Any]:
    """A backend whose code returns what the first call has computed."""
    kept: list[Any] = []

    def call(*given: Any) -> Any:
        if not kept:
            kept.append(graph(*given))
        return kept[0]

    return call


def modes(kind: str, training: bool) -> dict[str, dict[str, Any]]:
    """What torch.compile is called with. On the CPU Inductor would compile for minutes."""
    found: dict[str, dict[str, Any]] = {}
    if not training:  # its results have one backward
        found["nothing"] = {"backend": doing_nothing}
    if kind == "twin":
        found["aot_eager"] = {"backend": "aot_eager"}
    else:
        found["default"] = {}
        found["reduce-overhead"] = {"mode": "reduce-overhead"}
    found["pygraph"] = {"backend": "pygraph", "options": {"device": kind}}
    behind = {"device": kind, "launch": "after_guards"}
    found["pygraph behind guards"] = {"backend": "pygraph", "options": behind}
    return found


class LayeredCall:
    """A compiled MLP."""

    def __init__(self, layers: int, training: bool, kind: str, options: Mapping[str, Any]) -> None:
        where = "cpu" if kind == "twin" else "cuda"
        parts = (part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))
        self.module = nn.Sequential(*parts).to(where)
        self.training = training
        self._inputs = torch.randn(BATCH, WIDTH, device=where)
        self._compiled = torch.compile(self.module, **options)
        self._entered = self._left = 0
        dynamo.hooks_of(self._compiled).append(self._enter)

    def _enter(self) -> Callable[[], None]:
        self._entered = time.perf_counter_ns()
        return self._leave

    def _leave(self) -> None:
        self._left = time.perf_counter_ns()

    def __call__(self) -> Any:
        if not self.training:
            with torch.no_grad():
                return self._compiled(self._inputs)
        self._compiled(self._inputs).sum().backward()
        for parameter in self.module.parameters():
            parameter.grad = None
        return None

    def layers_ns(self) -> dict[str, int]:
        """Of one call."""
        timeline = _engine.Timeline()
        timeline.listen()
        self._entered = 0
        start = time.perf_counter_ns()
        results = self()
        end = time.perf_counter_ns()
        timeline.stop()
        del results
        marks = timeline.marks
        thread = marks[0][3] if marks else 0
        whole = HostSpan("module call", thread, start, end)
        own = []
        if self._entered:  # else it went past Dynamo
            own.append(HostSpan("generated code", thread, self._entered, self._left))
        if self.training:
            own.append(HostSpan("autograd", thread, self._left, end))
        return exclusive([*spans_of(whole, marks, False), *own])


def exclusive(spans: Sequence[HostSpan]) -> dict[str, int]:
    """Nanoseconds of each layer without those that are within it."""
    found: dict[str, int] = {}
    around: list[HostSpan] = []
    for span in sorted(spans, key=lambda each: (each.start, -each.end)):
        while around and around[-1].end <= span.start:
            around.pop()
        name = NAMES.get(span.name, span.name)
        found[name] = found.get(name, 0) + span.end - span.start
        if around:
            outer = NAMES.get(around[-1].name, around[-1].name)
            found[outer] -= span.end - span.start
        around.append(span)
    return found


def layers_us(call: LayeredCall, count: int, wait: Callable[[], Any]) -> dict[str, float]:
    """Medians, in the order in which a call goes through them. With guards and without in turns,
    for the machine changes meanwhile."""
    seen: list[dict[str, int]] = []
    without: list[int] = []
    for number in range(count):
        if number % BETWEEN_WAITS == 0:
            wait()
        seen.append(call.layers_ns())
        if "generated code" not in seen[-1]:
            continue
        with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
            without.append(call.layers_ns()["generated code"])
    found = {
        name: statistics.median(each.get(name, 0) for each in seen) / 1e3
        for name in {name for each in seen for name in each}
    }
    if without:
        bare = min(statistics.median(without) / 1e3, found["generated code"])
        found["guards"], found["generated code"] = found["generated code"] - bare, bare
    return {name: found[name] for name in ORDER if name in found}
