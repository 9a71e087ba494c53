"""One capture into phantom memory: what went in, what came out, what was allocated.

A capture executes nothing, reads and writes nothing, and takes no GPU memory. It is transactional
(design, rule 2): whatever goes wrong, the stream, the allocator and the generators are left as they
were, and CaptureFailed says why. It uses the driver's own stream capture and torch's public pool
routing rather than torch.cuda.CUDAGraph, whose failed captures leave generators in capture mode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.capture import reasons, space, tensors
from pygraph.capture.hold import hold_buffers


class CaptureFailed(RuntimeError):
    """A capture that gave no usable graph. `operator` and `source` name the guilty ones when they
    are known."""

    def __init__(self, reason: str, operator: str | None = None, source: str | None = None) -> None:
        super().__init__(reason)
        self.operator = operator
        self.source = source


@dataclasses.dataclass
class Segment:
    """One piece of memory that torch's allocator took while capturing."""

    address: int
    bytes: int  #: of the segment, rounded up by the allocator
    used: int  #: bytes of it that were ever handed out
    buffers: int  #: allocations that lived in it, one after the other; 0 when unknown


@dataclasses.dataclass
class Capture:
    """A captured graph. `keep` holds what must live until the graph has been linked, or, when
    scratch is in a private pool, as long as the graph."""

    graph: _engine.CapturedGraph
    places: list[int]  #: phantom address per argument; 0 for what has none
    segments: list[Segment]  #: phantom memory that the capture allocated
    outputs: list[Any]
    inputs: list[Any]
    keep: list[Any]
    pool: torch.cuda.MemPool


def record(
    function: Callable[[list[Any]], Any],
    arguments: Sequence[Any],
    in_place: Mapping[int, torch.Tensor],
    private_pool: bool,
    placement: _engine.Placement,
    device: int,
) -> Capture:
    """Captures `function(arguments)` with the tensors of `in_place` standing in for their
    arguments, and every other CUDA tensor replaced by a phantom one. What is allocated is phantom
    too, unless it comes from a private pool. Raises CaptureFailed."""
    phantom = space.space_of(device)
    phantom.begin(placement)
    places, inputs = _place(arguments, in_place, phantom)
    first_segment = len(phantom.allocations)
    kept: list[Any] = []
    stream = space.stream_of(device)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_no_garbage_collection())
        stack.enter_context(torch.cuda.device(device))
        events = stack.enter_context(_allocation_trace())
        stack.enter_context(_own_cublas_workspace())
        pool = stack.enter_context(
            space.private_pool(device) if private_pool else space.phantom_pool(phantom, device)
        )
        stack.enter_context(torch.cuda.stream(stream))
        # Whatever happens, phantom tensors die before their pool does.
        stack.push(functools.partial(_forget_on_error, kept, inputs))
        mode = stack.enter_context(hold_buffers(function, kept))
        graph, outputs = _capture(function, list(inputs), stream.cuda_stream, mode)
        uses = events()
    segments = [
        _segment(address, size, uses) for address, size in phantom.allocations[first_segment:]
    ]
    return Capture(graph, places, segments, outputs, inputs, kept, pool)


def _forget_on_error(
    kept: list[Any], inputs: list[Any], kind: type[BaseException] | None, *_: Any
) -> None:
    if kind is not None:
        kept.clear()
        inputs.clear()


def _capture(
    function: Callable[[list[Any]], Any], inputs: list[Any], stream: int, mode: Any
) -> tuple[_engine.CapturedGraph, list[Any]]:
    _engine.begin_capture(stream)
    try:
        outputs = function(inputs)
    except BaseException as error:
        with contextlib.suppress(_engine.DriverError):
            _engine.end_capture(stream)
        if not isinstance(error, Exception):
            raise
        explained = reasons.explain(error, mode.last_operator)
        traceback.clear_frames(error.__traceback__)  # they hold phantom tensors
        raise CaptureFailed(*explained) from None
    try:
        graph = _engine.end_capture(stream)
    except _engine.DriverError as error:
        raise CaptureFailed(*reasons.explain(error, mode.last_operator)) from error
    if not isinstance(outputs, (list, tuple)):
        raise CaptureFailed(f"the compiled callable returned a {type(outputs).__name__}")
    return graph, list(outputs)


def _place(
    arguments: Sequence[Any],
    in_place: Mapping[int, torch.Tensor],
    phantom: _engine.PhantomSpace,
) -> tuple[list[int], list[Any]]:
    places = [0] * len(arguments)
    inputs = list(arguments)
    for index, argument in enumerate(arguments):
        if not isinstance(argument, torch.Tensor):
            continue
        if not argument.is_cuda or argument.layout != torch.strided:
            raise CaptureFailed(
                f"argument {index} is a {argument.device.type} tensor of layout {argument.layout};"
                " only strided CUDA tensors can be arguments of a graph"
            )
        nbytes = tensors.extent_bytes(argument)
        if index in in_place:
            inputs[index] = in_place[index]
        elif nbytes:
            places[index] = phantom.allocate(nbytes, tensors.residue_of(argument.data_ptr()))
            inputs[index] = tensors.at_address(argument, places[index], nbytes)
    return places, inputs


def _segment(address: int, size: int, uses: dict[int, list[int]]) -> Segment:
    sizes = uses.get(address)
    if not sizes:
        return Segment(address, size, size, 0)
    return Segment(address, size, min(size, max(sizes)), len(sizes))


@contextlib.contextmanager
def _allocation_trace() -> Iterator[Callable[[], dict[int, list[int]]]]:
    """Sizes of the allocations at each address while on. Without a trace (the user is recording
    one of their own) nothing is known, and whole segments count as used."""
    if torch._C._cuda_isHistoryEnabled():
        yield dict
        return
    torch.cuda.memory._record_memory_history("all", context=None)

    def events() -> dict[int, list[int]]:
        uses: dict[int, list[int]] = {}
        for trace in torch.cuda.memory._snapshot()["device_traces"]:
            for event in trace:
                if event["action"] == "alloc":
                    uses.setdefault(event["addr"], []).append(event["size"])
        return uses

    try:
        yield events
    finally:
        torch.cuda.memory._record_memory_history(None)


@contextlib.contextmanager
def _own_cublas_workspace() -> Iterator[None]:
    """Makes cuBLAS take its workspace from the capture's pool, and lets go of it afterwards: a
    workspace that outlives the capture would be phantom memory in eager code's hands."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A collection during a capture could free something whose destructor the capture forbids."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
