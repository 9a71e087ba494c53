"""Random numbers in a capture on a GPU: the state of each generator becomes two regions.

While a stream is captured, torch's kernels take the seed and the offset of their generator through
pointers, and how far they are from the start of the graph as a number (torch,
aten/src/ATen/cuda/CUDAGeneratorImpl.h, "Note [CUDA Graph-safe RNG states]"). The memory behind the
pointers belongs to the generator's state, which gets it when it is registered with a
torch.cuda.CUDAGraph that then begins a capture; the default generator's is registered by that
(CUDAGraph.cpp, capture_begin). So one begins here, on a stream of its own and with nothing in it,
for as long as the real capture lasts. It has copies of the states, in phantom memory: the program's
own states are never in capture mode, whatever goes wrong, and the pointers are relocated like any
others. A call binds them to memory that it fills (src/torch/random_state.h).

An operator that draws from a generator that was passed may do so by lending its state to the
default one (torch/_prims/rng_prims.py, graphsafe_run_with_rng_state): the copy's then.

From torch 2.12 on a state has pointers of its own for each capture, and gets them from captures of
a torch.cuda.CUDAGraph alone: the real capture is none, so random numbers are refused there.

While this is on, another thread that draws random numbers on the GPU gets an error from torch, as
it does during torch's own captures.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping

import torch

from pygraph import _engine
from pygraph.capturing import space
from pygraph.capturing.device import DEFAULT, CaptureFailed
from pygraph.torch_private import versions

#: Of a state: its seed, then its offset.
PLACES = 2
_BYTES = 8  #: of each

#: (address, bytes) of seed and offset, by source of the generator (generators.py).
Places = dict[int, list[tuple[int, int]]]


@contextlib.contextmanager
def generators_in_capture(
    device: int, phantom: _engine.PhantomSpace, draws: Mapping[int, torch.Generator]
) -> Iterator[Places]:
    """Makes generators of a CUDA device usable in a capture, and yields where their seeds and
    offsets are: of those in `draws`, by source. Of these all but the default one must be copies
    that nobody else draws from. Torch's allocations must go to `phantom` by now."""
    if versions.states_per_capture():
        raise CaptureFailed(
            f"it draws random numbers: torch {torch.__version__} found, needed torch 2.11 (later "
            "ones keep the states of generators for captures of their own)"
        )
    generator = torch.cuda.default_generators[device]
    state = generator.graphsafe_get_state()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    generator.graphsafe_set_state(generator.clone_state())
    places: Places = {}
    try:
        with torch.cuda.stream(space.stream_of(device, "random")), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that its graph is empty
            for source, copy in draws.items():
                if source != DEFAULT:
                    first = phantom.allocated
                    graph.register_generator_state(copy)
                    places[source] = _allocated(phantom, first)
            first = phantom.allocated
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                default = _allocated(phantom, first)
                if DEFAULT in draws:
                    places[DEFAULT] = default
                yield places
            finally:
                graph.capture_end()
    finally:
        generator.graphsafe_set_state(state)
        del graph  # phantom memory dies before its pool does


def _allocated(phantom: _engine.PhantomSpace, first: int) -> list[tuple[int, int]]:
    """The places of one state, allocated since there were `first`."""
    made = [(address, _BYTES) for address, *_ in phantom.allocations_from(first)]
    if len(made) != PLACES:
        raise CaptureFailed(
            f"this torch keeps the state of a generator in {len(made)} places; "
            f"{PLACES} were expected, a seed and an offset"
        )
    return made
