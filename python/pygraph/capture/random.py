"""Random numbers in a capture on a GPU: the generator's state becomes two regions.

While a stream is captured, torch's kernels take the seed and the offset of their generator through
pointers, and how far they are from the start of the graph as a number (torch,
aten/src/ATen/cuda/CUDAGeneratorImpl.h, "Note [CUDA Graph-safe RNG states]"). The memory behind the
pointers belongs to the generator's state, which gets it when a torch.cuda.CUDAGraph begins a
capture. So one begins here, on a stream of its own and with nothing in it, for as long as the real
capture lasts. It begins with a copy of the state, in phantom memory: the program's own state is
never in capture mode, whatever goes wrong, and the two pointers are relocated like any others. A
call binds them to memory that it fills (src/torch/random_state.h).

While this is on, another thread that draws random numbers on the GPU gets an error from torch, as
it does during torch's own captures.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch

from pygraph import _engine
from pygraph.capture import space
from pygraph.capture.device import CaptureFailed

SEED = "seed"
OFFSET = "offset"
_BYTES = 8  #: of each


@contextlib.contextmanager
def generator_in_capture(
    device: int, phantom: _engine.PhantomSpace
) -> Iterator[dict[str, tuple[int, int]]]:
    """Makes the default generator of a CUDA device usable in a capture, and yields where its seed
    and offset are: {name: (address, bytes)}. Torch's allocations must go to `phantom` by now."""
    generator = torch.cuda.default_generators[device]
    state = generator.graphsafe_get_state()
    first = phantom.allocated
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    generator.graphsafe_set_state(generator.clone_state())
    try:
        with torch.cuda.stream(space.stream_of(device, "random")), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that its graph is empty
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                made = [address for address, _ in phantom.allocations_from(first)]
                if len(made) != 2:
                    raise CaptureFailed(
                        f"this torch keeps the state of a generator in {len(made)} places; "
                        "2 were expected, a seed and an offset"
                    )
                yield {SEED: (made[0], _BYTES), OFFSET: (made[1], _BYTES)}
            finally:
                graph.capture_end()
    finally:
        generator.graphsafe_set_state(state)
