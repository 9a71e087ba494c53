"""What ran on the GPU in an iteration, and how it was launched (pygraph.runtime.kernels).

Idle time is taken against the latency that the clocks found without a profiler.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.harness.modes import Runner, Tensors
from pygraph.runtime.kernels import Launched, recorded, summarize

__all__ = ["Launched", "profile", "summarize"]

ITERATIONS = 4


def profile(runner: Runner, inputs: Sequence[Tensors]) -> Launched:
    """Takes some iterations under the profiler. Raises what torch raises."""
    for n in range(2):
        _turn(runner, inputs[n % len(inputs)])
    torch.cuda.synchronize()
    with recorded() as events:
        for n in range(ITERATIONS):
            _turn(runner, inputs[n % len(inputs)])
    return summarize(events, ITERATIONS)


def _turn(runner: Runner, inputs: Tensors) -> None:
    """As the clocks see it: what brings inputs in place is not part of it."""
    if runner.before is not None:
        runner.before()
    runner.step(*inputs)
