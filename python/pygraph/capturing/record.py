"""One capture into phantom memory: what went in, what came out, what was allocated.

A capture executes nothing, reads and writes nothing, and takes no memory. It is transactional
(design, rule 2): whatever goes wrong, the stream, the allocator and the generators are left as they
were, and CaptureFailed says why.

A phantom argument ends where the real one's last element ends: what is behind it in the caller's
storage, another call need not have. Its storage offset is the real one in A and another one in B,
unless the attempt keeps offsets. So a callable that counts from the start of a storage instead of
from its argument (as_strided with an offset) addresses other places in B, which shows
(pipeline.py)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.capturing import asking, generators, numbers, tensors
from pygraph.capturing.attempts import Attempt
from pygraph.capturing.device import DEFAULT, CaptureFailed, Segment, is_strided
from pygraph.capturing.host_numbers import Computed
from pygraph.capturing.request import Request
from pygraph.capturing.segments import SegmentIndex

#: Elements by which storage offsets are further on in B; keeps what view(dtype) asks of them.
_OFFSET_IN_B = 64


@dataclasses.dataclass(frozen=True)
class Capture:
    """A captured graph. `keep` holds what must live until the graph has been linked, or, when
    scratch is in a private pool, as long as the graph."""

    graph: _engine.CapturedGraph
    places: list[int]  #: phantom address per argument; 0 for what has none
    segments: list[Segment]  #: phantom memory that the capture allocated
    outputs: list[Any]
    inputs: list[Any]
    keep: list[Any]
    pool: Any
    operators: list[tuple[int, int]]  #: nodes that one operator launched together
    launched: list[tuple[int, int, str]]  #: the nodes of each operator, by name
    #: where the states of generators stand, by source: for each a list of (address, bytes)
    random: dict[int, list[tuple[int, int]]]
    drew_on_host: bool  #: random numbers, from torch's CPU generator
    unwritten: frozenset[int]  #: addresses of results that nobody writes (attention.py)
    #: what nodes read and write whose operators are known; if that was to be noted
    known: Sequence[_engine.KnownNodes] = ()
    computed: Sequence[Computed] = ()  #: host numbers
    asked: bool = False  #: whether it is captured (asking.py)

    def operator_of(self, node: int) -> str | None:
        """The operator that launched a node; None: none did, or it is not known."""
        return next((name for low, high, name in self.launched if low <= node < high), None)

    @functools.cached_property
    def first_input(self) -> dict[int, int]:
        """Where each object stands first among the inputs, by its id()."""
        return _first_places(self.inputs)

    @functools.cached_property
    def first_output(self) -> dict[int, int]:
        """The same of the outputs."""
        return _first_places(self.outputs)

    @functools.cached_property
    def placed(self) -> SegmentIndex:
        """The phantom memory of the arguments, in their order."""
        pairs = zip(self.places, self.inputs, strict=True)
        return SegmentIndex(
            (place, tensors.extent_bytes(value) if place else 0) for place, value in pairs
        )


def _first_places(values: Sequence[Any]) -> dict[int, int]:
    return {id(value): index for index, value in reversed(list(enumerate(values)))}


def record(
    request: Request,
    attempt: Attempt,
    stand_ins: Mapping[int, torch.Tensor],
    placement: _engine.Placement,
) -> Capture:
    """Captures the callable with the tensors of `stand_ins` in place of their arguments, copies for
    numbers on the host and random generators, and a phantom one for every other tensor. What is
    allocated is phantom too, unless it comes from a private pool. Raises CaptureFailed."""
    arguments, device = request.arguments, request.device
    phantom = device.space()
    phantom.begin(placement)
    in_probe = placement == _engine.Placement.B
    shifted = in_probe and not attempt.keep_offsets
    copies = numbers.stand_ins(arguments, device)
    places, inputs = _place(
        request,
        stand_ins,
        copies,
        phantom,
        shift=_OFFSET_IN_B if shifted else 0,
        alignments=request.alignments if attempt.least_aligned else {},
    )
    for index, generator in generators.stand_ins(arguments, device).items():
        inputs[index] = generator
    if in_probe:
        for index, number in request.numbers.in_probe(arguments).items():
            inputs[index] = number
    drawn = {
        source: device.default_generator() if source == DEFAULT else inputs[source]
        for source in request.reference.draws
    }
    host = torch.get_rng_state()
    with asking.answered(attempt.told) as question:
        made = device.record(
            request.function,
            inputs,
            allocators=request.holdings.allocators(),
            private_pool=attempt.policy.private_scratch,
            draws=drawn,
            observed=None
            if in_probe or not request.spreads(attempt)
            else request.holdings.observed,
        )
    numbers.require_unwritten(arguments, copies)
    return Capture(
        graph=made.graph,
        places=places,
        segments=made.segments,
        outputs=made.outputs,
        inputs=inputs,
        keep=made.keep,
        pool=made.pool,
        operators=made.operators,
        launched=made.launched,
        random=made.random,
        drew_on_host=not torch.equal(host, torch.get_rng_state()),
        unwritten=made.unwritten,
        known=made.known,
        computed=request.numbers.computed(),
        asked=question.asked,
    )


def _place(
    request: Request,
    stand_ins: Mapping[int, torch.Tensor],
    on_host: Mapping[int, torch.Tensor],
    phantom: _engine.PhantomSpace,
    *,
    shift: int,
    alignments: Mapping[int, int],
) -> tuple[list[int], list[Any]]:
    device = request.device
    places = [0] * len(request.arguments)
    inputs = list(request.arguments)
    for index, argument in enumerate(request.arguments):
        if not isinstance(argument, torch.Tensor):
            continue
        if index in on_host:
            inputs[index] = on_host[index]
            continue
        if not device.owns(argument) or not is_strided(argument):
            raise CaptureFailed(
                f"argument {index} is {tensors.describe(argument)};"
                " only plain strided tensors of the graph's device can be its arguments"
            )
        nbytes = tensors.extent_bytes(argument)
        offset = argument.storage_offset() + shift
        if index in stand_ins:
            inputs[index] = stand_ins[index]
        elif nbytes:
            at_most = alignments.get(index, device.alignment)
            residue = tensors.residue_of(argument.data_ptr(), device.alignment, at_most)
            places[index] = phantom.allocate(nbytes, residue)
            inputs[index] = tensors.at_address(argument, places[index], nbytes, offset=offset)
        else:
            inputs[index] = tensors.without_memory(argument, offset)
    return places, inputs


def require_alike(a: Capture, b: Capture) -> None:
    """Raises CaptureFailed unless two captures of a call have allocated and returned alike."""
    left = [segment.bytes for segment in a.segments]
    right = [segment.bytes for segment in b.segments]
    if left != right:
        raise CaptureFailed(
            f"two captures of the same call allocate differently: {len(left)} segments of "
            f"{sum(left)} bytes, then {len(right)} of {sum(right)}"
        )
    if len(a.outputs) != len(b.outputs):
        raise CaptureFailed("two captures of the same call return different numbers of outputs")


@contextlib.contextmanager
def generator_kept_on_failure(draws: bool) -> Iterator[None]:
    """Captures that fail leave torch's CPU generator where they found it, if the callable `draws`
    from it: it does so while it is captured, too."""
    state = torch.get_rng_state()
    try:
        yield
    except CaptureFailed:
        if draws:
            torch.set_rng_state(state)
        raise
