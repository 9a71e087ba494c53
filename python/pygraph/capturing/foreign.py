"""Foreign words: addresses of device memory in a graph that are nobody's region.

A constant that the callable holds, a table that a library made once. They are the same in every
capture and are left as they are. Two things follow. What they point to must live as long as the
graph: tensors of the callable are found and kept. And memory that nobody can explain may hold
pointers of its own, say to weights: while such words are there, constants must stay where they were
linked, since nothing would tell that memory of a move.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pygraph.capturing import tensors
from pygraph.capturing.device import CaptureFailed, Device, is_strided
from pygraph.capturing.holdings import Holdings
from pygraph.capturing.record import Capture
from pygraph.capturing.request import Request
from pygraph.operators import collectives

#: How the names of torch's own operators begin. Others may read what they were not given.
_OF_TORCH = ("aten.", "prims.")


def explain(holdings: Holdings, words: Sequence[int]) -> tuple[list[torch.Tensor], list[int]]:
    """The constants that some of `words` point into, and the words that point into none."""
    if not words:
        return [], []
    owned: list[torch.Tensor] = []
    unknown = set(words)
    for tensor in holdings.constants():
        storage = tensor.untyped_storage()
        start, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        inside = {word for word in unknown if start <= word <= end and start}
        if inside:
            owned.append(tensor)
            unknown -= inside
    return owned, sorted(unknown)


def unexplained(
    capture: Capture, words: Sequence[tuple[int, int]], unknown: Sequence[int]
) -> list[int]:
    """Those `unknown` addresses that kernels have which are no collectives'. These have a
    communicator's, whose memory is its library's own. What such memory was told while capturing
    stands at phantom addresses, with which no proof passes."""
    places: dict[bool, set[int]] = {False: set(), True: set()}
    for address, node in words if unknown else ():
        operator = capture.operator_of(node) if node >= 0 else None
        places[collectives.names_one(operator or "")].add(address)
    communicators = places[True] - places[False]
    return [address for address in unknown if address not in communicators]


def that_lead(request: Request, unknown: Sequence[int]) -> list[int]:
    """`unknown` addresses, if memory there may hold addresses of what another call has elsewhere:
    of arguments, or of phantom memory. A library's workspace holds none."""
    if not unknown:
        return []
    device, space = request.device, request.device.space()
    held = [each for each in request.arguments if device.owns(each) and is_strided(each)]
    storages = [tensor.untyped_storage() for tensor in held]
    places = [(storage.data_ptr(), storage.nbytes()) for storage in storages if storage.nbytes()]
    places.append((space.base, space.reserved_bytes))
    return list(unknown) if device.may_lead_to(unknown, places) else []


def without_leftovers(
    request: Request, capture: Capture, words: Sequence[tuple[int, int]]
) -> list[int]:
    """The addresses among `words`, which are (address, number of the node in the capture, or -1),
    that may be read. One of a tensor of the program in a node that an operator of torch's own has
    launched is not, where operators were given what stands for such tensors: earlier launches have
    left it in padding."""
    look = request.holdings.visible
    if look is None or not words:
        return [address for address, _ in words]
    seen = look([address for address, _ in words])
    return [
        address
        for address, node in words
        if address not in seen or not _by_torch(capture, node, request.device)
    ]


def _by_torch(capture: Capture, node: int, device: Device) -> bool:
    name = capture.operator_of(node) if node >= 0 else None
    return device.twin or (name is not None and name.startswith(_OF_TORCH))


def require_allowed(request: Request, words: Sequence[int]) -> bool:
    """Whether some of `words` point into constant arguments, which must stay where they are then.
    Kernels get such words where they are launched past torch's operators. Raises CaptureFailed for
    an address in an argument that changes, and for what the holdings are against."""
    device, found = request.device, False
    for index, argument in enumerate(request.arguments if words else ()):
        if not device.owns(argument) or not is_strided(argument) or not argument.numel():
            continue
        start = argument.data_ptr()
        end = start + tensors.extent_bytes(argument)
        if any(start <= word < end for word in words):
            found = True
            if index in request.changing:
                raise CaptureFailed(
                    f"a kernel that no operator of torch's launches takes the address of argument "
                    f"{index}, which changes from call to call"
                )
    reason = request.holdings.against(words) if words else None
    if reason is not None:
        raise CaptureFailed(reason)
    return found
