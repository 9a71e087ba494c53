"""Watches the calls of a program's compiled functions and captured callables, and keeps one.

A call is steady if graphs have served it, and none of its calls of graphs was served otherwise.
Of each function that gets graphs the first steady call is traced, and then a later one, for the
first one still meets cold caches; what is traced last is kept. Which call will be steady is known
behind it alone, so each call is watched.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from pygraph import _engine
from pygraph.frontends.callable.captured import Captured
from pygraph.frontends.compile.explain import name_of
from pygraph.frontends.trace.timeline import DeviceWork, HostSpan, TracedCall, spans_of
from pygraph.runtime import kernels, registry
from pygraph.torch_private import dynamo
from pygraph.twin.operations import Operation

FIRST, WARM = 1, 8
"""Steady calls that are traced."""
NO_HOOKS = "this torch tells nobody of calls of compiled functions: only captured ones are traced"


@dataclass
class Seen:
    """One function of the program."""

    name: str
    guarded: bool
    calls: int = 0
    steady: int = 0

    def __str__(self) -> str:
        return f"{self.name}: {self.steady} of {self.calls} calls were steady"


class CallWatch:
    """Of the calls made while `watching()`; `kept` is the traced one."""

    def __init__(self, wanted: tuple[int, ...] = (FIRST, WARM)) -> None:
        self.functions: list[Seen] = []
        self.kept: TracedCall | None = None
        self._wanted = wanted
        self._notes: set[str] = set()
        self._within = threading.local()
        self._tracing: _Tracing | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        compile_, run = torch.compile, Operation.run
        captured: dict[int, Seen] = {}

        def compiled(*args: Any, **kwargs: Any) -> Any:
            made = compile_(*args, **kwargs)
            if dynamo.is_compiled(made):
                self._watch_compiled(made)
            return made

        def called(function: Captured[..., Any], *args: Any, **kwargs: Any) -> Any:
            seen = captured.get(id(function))
            if seen is None:
                seen = captured[id(function)] = self._new(name_of(function.function), False)
            with self._call(seen):
                return _engine.EngineCalled.__call__(function, *args, **kwargs)

        def ran(operation: Operation, values: list[Any]) -> None:
            start = time.perf_counter_ns()
            run(operation, values)
            if self._tracing is not None:
                self._tracing.ran(str(operation), start)

        with (
            mock.patch.object(torch, "compile", compiled),
            mock.patch.object(Captured, "__call__", called, create=True),
            mock.patch.object(Operation, "run", ran),
        ):
            yield

    def _new(self, name: str, guarded: bool) -> Seen:
        self.functions.append(Seen(name, guarded))
        return self.functions[-1]

    def _watch_compiled(self, made: Any) -> None:
        try:
            hooks = dynamo.hooks_of(made)
        except (AttributeError, TypeError, ValueError):
            self._notes.add(NO_HOOKS)
            return
        seen = self._new(name_of(made), True)

        def before() -> Callable[[], object]:
            around = contextlib.ExitStack()
            around.enter_context(self._call(seen))
            return around.close

        hooks.append(before)

    @contextlib.contextmanager
    def _call(self, seen: Seen) -> Iterator[None]:
        """Around a call of a function. One within another is part of that."""
        if getattr(self._within, "call", False):
            yield
            return
        self._within.call = True
        replays, others = registry.served()
        tracing = None
        if seen.steady + 1 in self._wanted and self._tracing is None:
            tracing = self._tracing = _Tracing()
        try:
            with tracing or contextlib.nullcontext():
                yield
        finally:
            self._within.call = False
            now = registry.served()
            seen.calls += 1
            seen.steady += now[0] > replays and now[1] == others
            if tracing is not None:
                self._tracing = None
                if now[0] > replays and now[1] == others:
                    self.kept = tracing.traced(seen)

    def problem(self) -> str:
        """Why nothing is kept."""
        found = [str(each) for each in self.functions] or [
            "found no function that PyGraph compiles or captures"
        ]
        reasons = [graph.reason for graph in registry.report().graphs if graph.reason]
        return "; ".join(dict.fromkeys([*found, *reasons, *sorted(self._notes)]))


class _Tracing:
    """A call that is traced."""

    def __init__(self) -> None:
        self._timeline = _engine.Timeline()
        self._events = kernels.Events()
        self._on_twin: list[DeviceWork] = []
        self._around = contextlib.ExitStack()

    def __enter__(self) -> _Tracing:
        if torch.cuda.is_available():
            self._events = self._around.enter_context(kernels.recorded())
        self._timeline.listen()
        self._apart = time.time_ns() - time.perf_counter_ns()
        self._start = time.perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        self._end = time.perf_counter_ns()
        self._timeline.stop()
        self._around.close()

    def ran(self, name: str, start: int) -> None:
        """On the twin, until now."""
        self._on_twin.append(DeviceWork(name, start, time.perf_counter_ns()))

    def traced(self, seen: Seen) -> TracedCall:
        environment = registry.info()
        call = HostSpan(seen.name, threading.get_ident(), self._start, self._end)
        work = [*self._on_twin, *self._on_gpu()]
        return TracedCall(
            function=seen.name,
            number=seen.steady,
            device="the CPU twin" if self._on_twin else str(environment["device"]),
            spans=spans_of(call, self._timeline.marks, seen.guarded),
            work=sorted(work, key=lambda each: each.start),
            environment={name: str(value) for name, value in environment.items()},
        )

    def _on_gpu(self) -> Iterator[DeviceWork]:
        for event in self._events:
            if event.get("cat") in kernels.ON_GPU:
                start = self._events.base_ns + round(event["ts"] * 1e3) - self._apart
                end = start + round(event["dur"] * 1e3)
                details = event.get("args", {})
                yield DeviceWork(event["name"], start, end, details.get("stream", 0), details)
