"""How each argument of a call reaches the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pygraph import _engine
from pygraph.capturing import generators, numbers, tensors
from pygraph.capturing.attempts import Attempt, Policy
from pygraph.capturing.device import CaptureFailed
from pygraph.capturing.record import Capture
from pygraph.capturing.regions import Regions
from pygraph.capturing.request import Request
from pygraph.torch_private.distributed import is_handle


def require_served(request: Request) -> None:
    """Raises CaptureFailed for a call that a graph cannot serve, by its arguments or by what the
    real run did with numbers on the host."""
    device = request.device
    for index, argument in enumerate(request.arguments):
        known = argument is None or isinstance(argument, (int, torch.Tensor))
        known = known or generators.is_generator(argument, device)
        known = known or index in request.numbers.arguments or is_handle(argument)
        if not known or isinstance(argument, bool):
            raise CaptureFailed(
                f"argument {index} is a {type(argument).__name__}; "
                "a graph takes tensors and random generators of its device, and integers"
            )
        if device.apart(argument):
            raise CaptureFailed(
                f"argument {index} is on {argument.device}; its first call had nothing there"
            )
        if device.peers and index in request.staged:
            raise CaptureFailed(
                f"argument {index} is brought from the host, and its graph works on several GPUs"
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
        if index in request.staged:
            continue  # a call has it in memory of its own anyway
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
    kinds = _engine.ArgumentKind
    specs = []
    for index, argument in enumerate(request.arguments):
        if numbers.is_number(argument, request.device):
            specs.append(numbers.argument_spec(capture.inputs[index]))
            continue
        if index in request.numbers.arguments:
            floating = isinstance(argument, float)
            specs.append(_engine.ArgumentSpec(kind=kinds.HOST_NUMBER, floating=floating))
            continue
        if isinstance(argument, torch.Generator):
            specs.append(generators.argument_spec(request.arguments, index, request.device))
            continue
        if is_handle(argument):
            specs.append(_engine.ArgumentSpec(kind=kinds.OBJECT, value=id(argument)))
            continue
        fields: dict[str, Any] = {}
        if isinstance(argument, torch.Tensor):
            fields |= {
                "bytes": tensors.extent_bytes(argument),
                "mutated": index in request.mutated,
                "spent": index in regions.spent,
                "device": request.device.peer_of(argument),
            }
            keep_offset = attempt.keep_offsets and index not in request.staged
            if keep_offset:
                fields |= {"storage_offset": argument.storage_offset()}
        if index in regions.of_argument:
            fields |= {
                "kind": kinds.PATCHED,
                "region": regions.of_argument[index],
                "alignment_mask": tensors.alignment_mask(capture.places[index]),
                "elsewhere": index in request.elsewhere,
                "staged": index in request.staged,
                "computed": request.computed.get(index, ()),
            }
            if keep_offset:
                fields |= {"front": argument.storage_offset() * argument.element_size()}
            if guarded and index not in request.changing:
                fields |= {"guarded": True, "address": argument.data_ptr()}
        elif index in stand_ins:
            fields |= {
                "kind": kinds.COPIED if index in request.changing else kinds.FIXED,
                "address": stand_ins[index].data_ptr(),
                # The stand-in is the same at any offset, so nothing would show that the callable
                # counts from the start of the storage.
                "storage_offset": argument.storage_offset(),
            }
        elif isinstance(argument, int):
            fields |= {"kind": kinds.INTEGER, "value": argument}
        else:
            fields |= {"kind": kinds.IGNORED}  # an empty tensor has no memory to address
        specs.append(_engine.ArgumentSpec(**fields))
    return specs
