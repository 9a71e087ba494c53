"""Captures on a GPU: the driver's stream capture; torch's allocations go to phantom memory.

It uses the driver's own stream capture and torch's public pool routing rather than
torch.cuda.CUDAGraph, whose failed captures leave generators in capture mode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from pygraph import _engine
from pygraph.capturing import random, reasons, space, tensors
from pygraph.capturing.collection import nothing_collected
from pygraph.capturing.device import (
    NEVER,
    CaptureFailed,
    Device,
    Function,
    Recording,
    Segment,
)
from pygraph.capturing.hold import hold_buffers
from pygraph.capturing.holdings import Allocator, Observed
from pygraph.capturing.internal import Internal
from pygraph.capturing.launches import Launches
from pygraph.capturing.segments import SegmentIndex
from pygraph.torch_private import cuda as private
from pygraph.torch_private.dispatch import disable_current_modes

#: About 10 ms of a GPU's clock.
_DELAY_CYCLES = 20_000_000
#: The share of all allocated memory that a backward's peak may be higher by.
_PEAK_SHARE = 0.005


class Cuda(Device):
    """One GPU of this process, and its peers."""

    twin = False
    alignment = 512
    kind = "cuda"
    delays = (1, 2, 3)
    smallest_loan = 1 << 20  #: less would save no segment of torch's allocator

    def __init__(self, index: int, peers: tuple[int, ...] = ()) -> None:
        self.index = index
        self.peers = peers
        self.private_scratch = not peers

    def current(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self.index)

    def owns(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.is_cuda

    def apart(self, value: Any) -> bool:
        return self.owns(value) and value.device.index not in self._all

    def joined_by(self, others: Collection[int]) -> Device:
        peers = tuple(sorted({*others} - {self.index}))
        for one, other in itertools.permutations((self.index, *peers), 2):
            if not torch.cuda.can_device_access_peer(one, other):
                raise CaptureFailed(
                    f"it works on cuda:{one}, which cannot access memory of cuda:{other}, "
                    "and on that"
                )
        return device_of(self.index, peers)

    @property
    def _all(self) -> tuple[int, ...]:
        return self.index, *self.peers

    def space(self) -> _engine.PhantomSpace:
        found = space.space_of(self.index)
        for peer in self.peers:
            found.admit(peer)
        return found

    def busy(self) -> bool:
        for index in self._all:
            with torch.cuda.device(index):
                if private.is_current_stream_capturing():
                    return True
        return False

    def stream(self) -> int:
        return int(torch.cuda.current_stream(self.index).cuda_stream)

    def idle(self) -> bool:
        return all(torch.cuda.current_stream(index).query() for index in self._all)

    def alone(self) -> bool:
        others = [n for n in range(torch.cuda.device_count()) if n != self.index]
        return not any(map(torch.cuda.memory_reserved, others))

    def delay(self) -> None:
        private.sleep(_DELAY_CYCLES)

    def synchronize(self) -> None:
        for index in self._all:
            torch.cuda.synchronize(index)

    def default_generator(self) -> torch.Generator:
        return torch.cuda.default_generators[self.index]

    def generator_state(self, generator: torch.Generator) -> Any:
        return generator.initial_seed(), generator.get_offset()

    def states_elsewhere(self) -> Mapping[int, Any]:
        generators = enumerate(torch.cuda.default_generators)
        return {n: self.generator_state(each) for n, each in generators if n != self.index}

    def restore_generator(self, generator: torch.Generator, state: Any) -> None:
        seed, offset = state
        if generator.initial_seed() != seed:
            generator.manual_seed(seed)
        generator.set_offset(offset)

    def draw(self, argument: int, regions: Sequence[int], before: Any, after: Any) -> _engine.Draw:
        (seed, offset), (seed_after, offset_after) = before, after
        if seed != seed_after or offset_after < offset:
            raise CaptureFailed("it is given another seed, or is set back")
        if len(regions) != random.PLACES:
            raise CaptureFailed("it is drawn from, and no capture was made for that")
        return _engine.Draw(
            argument=argument,
            seed_region=regions[0],
            offset_region=regions[1],
            increment=offset_after - offset,
        )

    def held_by(self, graph: Any) -> list[tuple[int, int]]:
        backend = torch.cuda.get_allocator_backend()
        if backend != "native":
            raise CaptureFailed(
                f"torch's allocator {backend}, which does not tell where a graph's memory is"
            )
        pool = tuple(graph.pool())
        return [
            (segment["address"], segment["total_size"])
            for segment in self._segments()
            if tuple(segment["segment_pool_id"]) == pool
        ]

    def allocations(self, graph: Any) -> list[tuple[int, int]]:
        """All of the GPU, and of each what it was asked for."""
        return [
            (block["address"], block["requested_size"])
            for segment in self._segments()
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        ]

    def _segments(self) -> Iterator[Mapping[str, Any]]:
        """Those of torch's allocator on this GPU."""
        for segment in torch.cuda.memory_snapshot():
            if segment["device"] == self.index:
                yield segment

    def free_bytes(self) -> int:
        reserve = torch.cuda.memory_reserved(self.index) - torch.cuda.memory_allocated(self.index)
        return self.driver_free_bytes() + int(reserve)

    def peak_slack(self) -> int:
        """So little of all that is allocated that it does not matter, and a segment of torch's
        allocator at least."""
        return max(2 << 20, int(_PEAK_SHARE * torch.cuda.memory_allocated(self.index)))

    def driver_free_bytes(self) -> int:
        with torch.cuda.device(self.index):
            _engine.set_capture_space(None)  # spaces that torch has let go of are freed first
            return int(_engine.memory_info()[0])

    def intact(self, poison: int) -> bool:
        """On the GPU: the block need not travel to the host."""
        phantom = self.space()
        words = torch.empty(phantom.physical_bytes // 8, dtype=torch.int64, device="meta")
        block = tensors.at_address(words, phantom.base, phantom.physical_bytes, self.place)
        pattern = int.from_bytes(bytes([poison]) * 8, "little", signed=True)
        return bool((block == pattern).all())

    def record(
        self,
        function: Function,
        inputs: list[Any],
        *,
        allocators: Iterable[Allocator],
        private_pool: bool,
        draws: Mapping[int, torch.Generator],
        observed: Observed | None = None,
    ) -> Recording:
        if draws and private_pool:
            raise CaptureFailed("random numbers are not served with a private pool")
        phantom = self.space()
        kept: list[Any] = []
        stream = space.stream_of(self.index)
        streams = {index: space.stream_of(index) for index in self._all}
        with contextlib.ExitStack() as stack:
            # It could free something whose destructor the capture forbids.
            stack.enter_context(nothing_collected())
            stack.enter_context(torch.cuda.device(self.index))
            events = stack.enter_context(_allocation_trace())
            stack.enter_context(_own_cublas_workspace())
            pool = stack.enter_context(
                space.private_pool(self.index)
                if private_pool
                else space.phantom_pools(phantom, self._all)
            )
            places: random.Places = {}
            if draws:
                places = stack.enter_context(
                    random.generators_in_capture(self.index, phantom, draws)
                )
            first_segment = phantom.allocated
            for index in reversed(self._all):  # the last one's device is the current one then
                stack.enter_context(torch.cuda.stream(streams[index]))
            # Whatever happens, phantom tensors die before their pool does.
            stack.push(functools.partial(_forget_on_error, kept, inputs))
            count = functools.partial(_engine.captured_nodes, stream.cuda_stream)
            handles = {index: each.cuda_stream for index, each in streams.items()}
            inside = Internal(phantom, handles)
            launches = Launches(count) if observed is not None else None
            holding = hold_buffers(allocators, kept, count, inside, launches, self.apart)
            mode = stack.enter_context(holding)
            if launches is not None and observed is not None:
                stack.enter_context(observed(launches.around))
            stack.callback(inside.release)
            peers = [streams[index] for index in self.peers]
            graph, outputs = _capture(function, list(inputs), stream, peers, mode)
            uses = events()
            taken = frozenset(inside.places)
            unwritten = frozenset(mode.unwritten)
        segments = [
            _segment(address, size, uses.get(address, []), address in taken, self.number_of(device))
            for address, size, device in phantom.allocations_from(first_segment)
        ]
        _require_whole_segments(segments, uses)
        return Recording(
            graph=graph,
            outputs=outputs,
            segments=segments,
            keep=kept,
            pool=pool,
            operators=mode.operators,
            launched=mode.launched,
            random=places,
            unwritten=unwritten,
            known=[] if launches is None else launches.known,
        )


@functools.cache
def device_of(index: int, peers: tuple[int, ...] = ()) -> Cuda:
    """The device with torch's index `index`, and with peers."""
    with contextlib.suppress(RuntimeError), disable_current_modes():
        for each in (index, *peers):
            _load_kernels(torch.device("cuda", each))
        for one, other in itertools.permutations((index, *peers), 2):
            # Has torch let `one` access memory of `other` (ATen/cuda/PeerToPeerAccess.cpp).
            torch.zeros(1, device=f"cuda:{one}").to(f"cuda:{other}")
    return Cuda(index, peers)


def _load_kernels(device: torch.device) -> None:
    """Those that results are compared with. CUDA would load them in the first call that is linked,
    which would take 60 ms longer for it; while compiling nobody notices."""
    if private.is_current_stream_capturing():
        return
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64):
        left, right = (torch.zeros(2, dtype=dtype, device=device) for _ in range(2))
        tensors.differing([left, left], [right, right])


def _forget_on_error(
    kept: list[Any], inputs: list[Any], kind: type[BaseException] | None, *_: Any
) -> None:
    if kind is not None:
        kept.clear()
        inputs.clear()


def _capture(
    function: Function,
    inputs: list[Any],
    origin: torch.cuda.Stream,
    peers: Sequence[torch.cuda.Stream],
    mode: Any,
) -> tuple[_engine.CapturedGraph, list[Any]]:
    """On `origin`, which the streams of peers branch off and join again."""
    stream = origin.cuda_stream
    _engine.begin_capture(stream)
    try:
        for peer in peers:
            peer.wait_stream(origin)
        outputs = function(inputs)
        for peer in peers:
            origin.wait_stream(peer)
    except BaseException as error:
        with contextlib.suppress(_engine.DriverError):
            _engine.end_capture(stream)
        if not isinstance(error, Exception):
            raise
        explained = reasons.explain(error, mode.under_way)
        traceback.clear_frames(error.__traceback__)  # they hold phantom tensors
        raise CaptureFailed(*explained) from None
    try:
        graph = _engine.end_capture(stream)
    except _engine.DriverError as error:
        raise CaptureFailed(*reasons.explain(error, mode.under_way)) from error
    if not isinstance(outputs, (list, tuple)):
        raise CaptureFailed(f"the compiled callable returned a {type(outputs).__name__}")
    return graph, list(outputs)


@dataclasses.dataclass
class _Use:
    """One allocation: its bytes, and when it was made and freed."""

    bytes: int
    allocated: int
    freed: int = NEVER


def _segment(address: int, size: int, uses: list[_Use], taken: bool, device: int) -> Segment:
    """A segment whose allocations all begin at its start (the pool does not split). `taken`: the
    last of them is internal.py's."""
    uses = uses[:-1] if taken else uses
    if not uses:
        return Segment(address, size, size, 0, device=device)
    used = min(size, max(use.bytes for use in uses))
    if device:  # the trace of a peer counts by itself
        return Segment(address, size, used, len(uses), device=device)
    return Segment(
        address, size, used, len(uses), allocated=uses[0].allocated, freed=uses[-1].freed
    )


def _require_whole_segments(segments: list[Segment], uses: Mapping[int, list[_Use]]) -> None:
    """Raises CaptureFailed if an allocation begins inside of a segment: how much of it is used, and
    when, would not be known."""
    index = SegmentIndex((each.address, each.bytes) for each in segments)
    for address, made in uses.items():
        segment = index.find(address)
        if made and segment is not None and segments[segment].address != address:
            raise CaptureFailed("torch's allocator has split a segment of the capture's pool")


@contextlib.contextmanager
def _allocation_trace() -> Iterator[Callable[[], dict[int, list[_Use]]]]:
    """The allocations at each address while on. Without a trace (the user is recording one of their
    own) nothing is known, and whole segments count as used."""
    if private.is_history_enabled():
        yield dict
        return
    private.record_memory_history("all", context=None)

    def events() -> dict[int, list[_Use]]:
        uses: dict[int, list[_Use]] = {}
        for trace in private.memory_snapshot()["device_traces"]:
            for time, event in enumerate(trace, start=1):
                at_address = uses.setdefault(event["addr"], [])
                if event["action"] == "alloc":
                    at_address.append(_Use(event["size"], time))
                elif event["action"] == "free_requested" and at_address:
                    at_address[-1].freed = time
        return uses

    try:
        yield events
    finally:
        private.record_memory_history(None)


@contextlib.contextmanager
def _own_cublas_workspace() -> Iterator[None]:
    """Makes cuBLAS take its workspace from the capture's pool, and lets go of it afterwards: a
    workspace that outlives the capture would be phantom memory in eager code's hands."""
    private.clear_cublas_workspaces()
    try:
        yield
    finally:
        private.clear_cublas_workspaces()
