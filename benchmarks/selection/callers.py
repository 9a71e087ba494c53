"""What programs do around a call."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from benchmarks.selection.scenario import Caller

PYTHON_S = 200e-6
"""What a program does in Python between two calls."""


class Fresh(Caller):
    """Makes its inputs anew for each call, and has the last ones still: memory moves."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.kept: deque[Any] = deque(maxlen=3)

    def __call__(self, compiled: Callable[..., Any], *inputs: Any) -> Any:
        self.kept.append([each.clone() for each in inputs])
        return compiled(*self.kept[-1])


class Now(Caller):
    """Waits after every 50th call."""

    every = 50

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.calls = 0

    def __call__(self, compiled: Callable[..., Any], *inputs: Any) -> Any:
        results = compiled(*inputs)
        self.calls += 1
        if self.calls % self.every == 0:
            self.wait()
        return results


class Repeated(Caller):
    """Twenty calls, each with the result of the one before."""

    def __call__(self, compiled: Callable[..., Any], *inputs: Any) -> Any:
        (x,) = inputs
        for _ in range(20):
            x = compiled(x)
        return x


class Thoughtful(Caller):
    """Works in Python first."""

    def __call__(self, compiled: Callable[..., Any], *inputs: Any) -> Any:
        until = time.perf_counter() + PYTHON_S
        while time.perf_counter() < until:
            pass
        return compiled(*inputs)


class Between(Caller):
    """Does more with the results, which nobody compiles."""

    def __call__(self, compiled: Callable[..., Any], *inputs: Any) -> Any:
        y = compiled(*inputs)
        return (y * 2.0 + 1.0).relu().sum(-1)


class Streams(Caller):
    """Two calls on two streams, which may overlap."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        cuda = device.type == "cuda"
        self.streams = [torch.cuda.Stream(device) if cuda else None for _ in range(2)]

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext() if stream is None else torch.cuda.stream(stream)

    def __call__(self, compiled: Callable[..., Any], *inputs: Any) -> Any:
        results = []
        here = None if self.streams[0] is None else torch.cuda.current_stream(self.device)
        for stream, x in zip(self.streams, inputs, strict=True):
            if stream is not None and here is not None:
                stream.wait_stream(here)
            with self.on(stream):
                results.append(compiled(x))
        for stream, result in zip(self.streams, results, strict=True):
            if stream is not None and here is not None:
                here.wait_stream(stream)
                result.record_stream(here)
        return tuple(results)


class WithoutGradients(Caller):
    """Enters torch.no_grad() for each call."""

    def __call__(self, compiled: Callable[..., Any], *inputs: Any) -> Any:
        with torch.no_grad():
            return compiled(*inputs)


class Steps(Caller):
    """Calls a cell for each step of a sequence, with the state that the step before has left."""

    def __call__(self, compiled: Callable[..., Any], *inputs: Any) -> Any:
        sequence, *state = inputs
        for x in sequence:
            state = compiled(x, *state)
        return tuple(state)
