"""How each argument of a call reaches the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pygraph import _engine
from pygraph.capture import generators, numbers, tensors
from pygraph.capture.attempts import Attempt, Policy
from pygraph.capture.device import CaptureFailed
from pygraph.capture.record import Capture
from pygraph.capture.regions import Regions
from pygraph.capture.request import Request


def require_served(request: Request) -> None:
    """Raises CaptureFailed for a call that a graph cannot serve, by its arguments or by what the
    real run did with numbers on the host."""
    device = request.device
    for index, argument in enumerate(request.arguments):
        known = argument is None or isinstance(argument, (int, torch.Tensor))
        known = known or generators.is_generator(argument, device)
        if not known or isinstance(argument, bool):
            raise CaptureFailed(
                f"argument {index} is a {type(argument).__name__}; "
                "a graph takes tensors and random generators of its device, and integers"
            )
    run = request.reference
    numbers.require_served(run.arguments, run.mutated, run.outputs, run.drew_on_host, device)


def stand_ins(request: Request, policy: Policy) -> dict[int, torch.Tensor]:
    """What stands in for the arguments that `policy` does not relocate: a static buffer for one
    that is copied, the argument itself for one that is fixed."""
    found: dict[int, torch.Tensor] = {}
    for index, argument in enumerate(request.arguments):
        if not isinstance(argument, torch.Tensor) or not argument.numel():
            continue
        if index in request.changing:
            if policy.copy_inputs:
                found[index] = tensors.static_copy(argument)
        elif policy.fix_constants:
            found[index] = argument
    return found


def specifications(
    request: Request,
    attempt: Attempt,
    capture: Capture,
    regions: Regions,
    stand_ins: Mapping[int, torch.Tensor],
    guarded: bool,
) -> list[_engine.ArgumentSpec]:
    """Of each argument. `guarded`: constants must stay where they are, since memory that the graph
    reads and nobody can explain may hold pointers to them."""
    specs = []
    for index, argument in enumerate(request.arguments):
        spec = _engine.ArgumentSpec()
        specs.append(spec)
        if numbers.is_number(argument, request.device):
            numbers.argument_spec(spec, capture.inputs[index])
            continue
        if isinstance(argument, torch.Generator):
            generators.argument_spec(spec, request.arguments, index, request.device)
            continue
        if isinstance(argument, torch.Tensor):
            _specify_tensor(spec, request, index, argument, attempt)
        if index in regions.of_argument:
            spec.kind = _engine.ArgumentKind.PATCHED
            spec.region = regions.of_argument[index]
            spec.alignment_mask = tensors.alignment_mask(capture.places[index])
            spec.elsewhere = index in request.elsewhere
            if attempt.keep_offsets:
                spec.front = argument.storage_offset() * argument.element_size()
            if guarded and index not in request.changing:
                spec.guarded = True
                spec.address = argument.data_ptr()
        elif index in stand_ins:
            copied = index in request.changing
            spec.kind = _engine.ArgumentKind.COPIED if copied else _engine.ArgumentKind.FIXED
            spec.address = stand_ins[index].data_ptr()
            # The stand-in is the same at any offset, so nothing would show that the callable counts
            # from the start of the storage.
            spec.storage_offset = argument.storage_offset()
        elif isinstance(argument, int):
            spec.kind = _engine.ArgumentKind.INTEGER
            spec.value = argument
        else:
            spec.kind = _engine.ArgumentKind.IGNORED  # an empty tensor has no memory to address
        if index in regions.spent:
            spec.spent = 0
    return specs


def _specify_tensor(
    spec: _engine.ArgumentSpec, request: Request, index: int, argument: Any, attempt: Attempt
) -> None:
    spec.bytes = tensors.extent_bytes(argument)
    spec.mutated = index in request.mutated
    if attempt.keep_offsets:
        spec.storage_offset = argument.storage_offset()
