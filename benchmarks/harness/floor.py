"""The limit: a whole iteration in one CUDA graph on inputs that never move, replayed.

Where an iteration cannot be captured, or the graph does not compute what the iteration does, the
time of its kernels is the bound instead (profile.py): no way to launch the same kernels one after
the other is faster.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.harness.device import drop_workspaces

WARM_UP_STEPS = 3


@dataclass
class Captured:
    """A captured step, and all that its graph refers to."""

    graph: Any
    outputs: Any
    inputs: tuple[Any, ...]
    gradients: list[Any]
    """The graph's own, by parameter."""
    source: Callable[..., Any]

    def step(self, *_: Any) -> Any:
        self.graph.replay()
        return self.outputs

    def load(self, inputs: tuple[Any, ...]) -> None:
        for place, tensor in zip(self.inputs, inputs, strict=True):
            place.copy_(tensor)


def capture(
    step: Callable[..., Any],
    inputs: tuple[Any, ...],
    parameters: Sequence[Any] = (),
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    error_mode: str = "global",
) -> Captured:
    """As torch's notes on CUDA graphs do for a whole network: warmed up on the stream of the
    capture, so that no gradient is accumulated on another one, and with no gradients there, so that
    the graph's own memory holds them and a replay overwrites instead of adding.

    `around` is entered for the capture; `error_mode` says what other threads may do meanwhile."""
    static = tuple(tensor.clone() for tensor in inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_STEPS):
            step(*static)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    forget(parameters)
    drop_workspaces()
    graph = torch.cuda.CUDAGraph()
    gc.collect()
    gc.disable()  # what garbage gives back to the driver would end the capture
    try:
        with around(), torch.cuda.graph(graph, stream=stream, capture_error_mode=error_mode):
            outputs = step(*static)
    finally:
        gc.enable()
    gradients = [parameter.grad for parameter in parameters]
    # The parameters forget them: default has the same ones, and must not add to the graph's.
    forget(parameters)
    torch.cuda.synchronize()
    return Captured(graph, outputs, static, gradients, step)


def on_several(step: Callable[..., Any], others: Sequence[torch.device]) -> Callable[..., Any]:
    """The step, with streams of other GPUs that branch off the current one and join it again: such
    work of theirs is captured."""

    def stepped(*inputs: Any) -> Any:
        origin = torch.cuda.current_stream()
        streams = [torch.cuda.Stream(other) for other in others]
        with ExitStack() as entered:
            for stream in (*streams, origin):  # the last one's device is the current one then
                entered.enter_context(torch.cuda.stream(stream))
            for stream in streams:
                stream.wait_stream(origin)
            # Memory is the pools' where this thread allocates it.
            entered.enter_context(torch.autograd.set_multithreading_enabled(False))
            result = step(*inputs)
            for stream in streams:
                origin.wait_stream(stream)
        kept.append(streams)  # workspaces go with them
        return result

    kept: list[Any] = []
    return stepped if others else step


@contextmanager
def pools(others: Sequence[torch.device]) -> Iterator[None]:
    """While on, what is allocated on other GPUs is a graph's own. It stays so."""
    with ExitStack() as entered:
        for other in others:
            with torch.cuda.device(other):
                _pools.append(torch.cuda.MemPool())
            entered.enter_context(torch.cuda.use_mem_pool(_pools[-1], other))
        yield


_pools: list[Any] = []


def forget(parameters: Sequence[Any]) -> None:
    for parameter in parameters:
        parameter.grad = None


def heal_random_numbers() -> bool:
    """After a capture that failed, torch may take its generator to be in a capture still, and
    refuse to draw. Gives it a state of its own then; graphs that were captured before keep the old
    one. True if there was something to heal."""
    try:
        torch.rand(1, device="cuda")
        return False
    except RuntimeError:
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        fresh = torch.Generator(device="cuda")
        generator.graphsafe_set_state(fresh.graphsafe_get_state())
        return True
