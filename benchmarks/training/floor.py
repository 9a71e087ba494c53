"""The limit of a training step: all of it in one CUDA graph on inputs that never move, replayed.

Where a step cannot be captured, or the graph does not compute what the step does, the time of its
kernels is the bound instead: no way to launch the same kernels one after the other is faster.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.harness.device import drop_workspaces

WARM_UP_STEPS = 3
PROFILED_STEPS = 5


@dataclass
class Captured:
    """A captured step, and all that its graph refers to."""

    graph: Any
    loss: Any
    inputs: tuple[Any, ...]
    gradients: list[Any]
    module: Any

    def step(self, *_: Any) -> Any:
        self.graph.replay()
        return self.loss

    def load(self, inputs: tuple[Any, ...]) -> None:
        for place, tensor in zip(self.inputs, inputs, strict=True):
            place.copy_(tensor)


def capture(
    module: Any, parameters: list[Any], optimizer: Any, inputs: tuple[Any, ...]
) -> Captured:
    """As torch's notes on CUDA graphs do for a whole network: warmed up on the stream of the
    capture, so that no gradient is accumulated on another one, and with no gradients there, so that
    the graph's own memory holds them and a replay overwrites instead of adding."""
    static = tuple(tensor.clone() for tensor in inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_STEPS):
            optimizer.zero_grad(set_to_none=True)
            module(*static).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    drop_workspaces()
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    gc.collect()
    gc.disable()  # what garbage gives back to the driver would end the capture
    try:
        with torch.cuda.graph(graph, stream=stream):
            loss = module(*static)
            loss.backward()
            optimizer.step()
    finally:
        gc.enable()
    gradients = [parameter.grad for parameter in parameters]
    # The parameters forget them: default trains the same ones, and must not add to the graph's.
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    return Captured(graph, loss.detach(), static, gradients, module)


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


def kernel_time_us(step: Any, inputs: Any) -> float:
    """What the kernels, copies and fills of one step take together, by torch's profiler."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    for n in range(2):
        step(*inputs[n % len(inputs)])
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for n in range(PROFILED_STEPS):
            step(*inputs[n % len(inputs)])
        torch.cuda.synchronize()
    # Ranges that a program marks (the optimizer's step) are shown on the GPU's track as well.
    on_device = [
        event
        for event in seen.events()
        if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
    ]
    return float(sum(event.time_range.elapsed_us() for event in on_device)) / PROFILED_STEPS
