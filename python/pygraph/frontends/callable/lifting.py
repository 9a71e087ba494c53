"""From the tensors of a call to the arguments of a graph, and back while it is captured.

Tensors that share memory are one argument: the range of memory that they cover together. Of what
the callable was not given only what its operators have touched is lifted.

While the callable is captured, arguments stand elsewhere. The callable still has its own tensors;
each operator gets, in place of a tensor on an argument's memory, the same view of the memory that
stands for it. Nothing of the caller's changes, so other threads may use it meanwhile. Kernels that
are launched past torch's operators see the caller's addresses, which relocation then finds the same
in both captures: foreign words (capturing/foreign.py).

A tensor that the callable was given on the host is staged: each call brings it to the device. While
the callable is captured it is given a copy there, so what it reads on the host fails then.
"""

from __future__ import annotations

import bisect
import dataclasses
import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from pygraph.capturing import tensors
from pygraph.capturing.device import CaptureFailed, Device
from pygraph.frontends.callable.structure import PLAIN_TENSORS, Tree, has_memory
from pygraph.operators.known import known
from pygraph.operators.table import Property
from pygraph.torch_private.dispatch import DisableDispatch, UnseenByDynamo, tree_map
from pygraph.torch_private.tensors import object_of


@dataclasses.dataclass(frozen=True)
class Lifted:
    """One argument of the graph."""

    value: Any  #: a tensor over all of its memory, a generator, or a number
    leaf: int  #: the leaf that it begins with
    inside: list[tuple[int, int]]  #: leaves and their offsets in bytes
    given: bool  #: a leaf among the callable's arguments is in it

    @property
    def is_number(self) -> bool:
        return isinstance(self.value, (float, int))

    def is_staged(self, device: Device) -> bool:
        """Whether calls have it on the host. A tensor without dimensions is a number there
        (capturing/numbers.py)."""
        return self.given and _is_staged(self.value, device)

    @property
    def leaves(self) -> list[int]:
        """All leaves in it."""
        return [self.leaf, *(leaf for leaf, _ in self.inside)]


def _is_staged(value: Any, device: Device) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and not device.owns(value)


def against_staging(tree: Tree, used_on_host: Mapping[int, str], device: Device) -> str | None:
    """Why what a call is given on the host cannot be staged, if so. `used_on_host`: storages, as
    object_of(), and the operators that did more with them than to bring them."""
    for number in tree.given:
        leaf = tree.leaves[number]
        if not _is_staged(leaf, device):
            continue
        path = tree.path(tree.leaf_places[number])
        if leaf.requires_grad:
            return f"{path} requires grad, and is on the host"
        operator = used_on_host.get(object_of(leaf.untyped_storage()))
        if operator is not None:
            return f"{operator} computes with {path} on the host; let the device, or the caller"
    return None


def touched(leaves: Sequence[Any], objects: Collection[int]) -> list[int]:
    """The leaves on some storages, and the generators among some objects (object_of())."""
    found = []
    for number, leaf in enumerate(leaves):
        owner = leaf.untyped_storage() if isinstance(leaf, torch.Tensor) else leaf
        if isinstance(leaf, (torch.Tensor, torch.Generator)) and object_of(owner) in objects:
            found.append(number)
    return found


def tensors_at(words: Sequence[int], device: Device) -> Iterator[tuple[torch.Tensor, set[int]]]:
    """The tensors of the program, whoever has them, whose storages hold some of these addresses,
    and which."""
    for each in gc.get_objects():
        if type(each) in PLAIN_TENSORS and each.layout == torch.strided and device.owns(each):
            storage = each.untyped_storage()
            start = storage.data_ptr()
            inside = {word for word in words if start <= word < start + storage.nbytes()}
            if inside:
                yield each, inside


def visible(device: Device, words: Sequence[int]) -> set[int]:
    """Those of some addresses that lie in tensors of the program."""
    return {word for _, inside in tensors_at(words, device) for word in inside}


def arguments_of(
    leaves: Sequence[Any], given: Collection[int], chosen: Collection[int]
) -> list[Lifted]:
    """The arguments of a graph that the leaves `chosen` become. `given`: leaves among the
    callable's arguments."""
    by_storage: dict[int, list[int]] = {}
    found: list[Lifted] = []
    for number in sorted(chosen):
        leaf = leaves[number]
        if not isinstance(leaf, torch.Tensor):
            found.append(Lifted(leaf, number, [], number in given))
        elif leaf.numel() and has_memory(leaf):
            by_storage.setdefault(object_of(leaf.untyped_storage()), []).append(number)
    for numbers in by_storage.values():
        found += (_lifted(leaves, group, given) for group in _overlapping(leaves, numbers))
    return sorted(found, key=lambda each: each.leaf)


def _overlapping(leaves: Sequence[Any], numbers: Sequence[int]) -> list[list[int]]:
    groups: list[list[int]] = []
    end = 0
    for number in sorted(numbers, key=lambda each: (leaves[each].data_ptr(), each)):
        start = leaves[number].data_ptr()
        if not groups or start >= end:
            groups.append([])
        groups[-1].append(number)
        end = max(end, start + tensors.extent_bytes(leaves[number]))
    return groups


def _lifted(leaves: Sequence[Any], group: Sequence[int], given: Collection[int]) -> Lifted:
    first = leaves[group[0]]
    start = first.data_ptr()
    end = max(leaves[each].data_ptr() + tensors.extent_bytes(leaves[each]) for each in group)
    value = first
    if end - start != tensors.extent_bytes(first):
        value = _range(first, end - start, {leaves[each].dtype for each in group})
    inside = [(each, leaves[each].data_ptr() - start) for each in group[1:]]
    return Lifted(value, group[0], inside, any(each in given for each in group))


def _range(first: torch.Tensor, nbytes: int, dtypes: set[torch.dtype]) -> torch.Tensor:
    """So many bytes from a tensor's first element on."""
    alone = len(dtypes) == 1 and nbytes % first.element_size() == 0
    dtype = first.dtype if alone else torch.uint8
    start = first.storage_offset() * first.element_size()
    size = nbytes // dtype.itemsize
    with torch.no_grad():
        return torch.empty(0, dtype=dtype, device=first.device).set_(
            first.untyped_storage(), start // dtype.itemsize, (size,), (1,)
        )


class Substitution(UnseenByDynamo):
    """While on, operators of this thread get what stands for an argument in place of it."""

    def __init__(self, originals: Sequence[Any], stand_ins: Sequence[Any], device: Device) -> None:
        super().__init__()
        self._device = device
        given = list(zip(originals, stand_ins, strict=True))
        self._generators = {
            object_of(each): other for each, other in given if isinstance(each, torch.Generator)
        }
        pairs = [
            (each, other)
            for each, other in given
            if isinstance(each, torch.Tensor) and each.numel()
        ]
        pairs.sort(key=lambda pair: pair[0].data_ptr())
        self._starts = [each.data_ptr() for each, _ in pairs]
        self._pairs = pairs

    def of(self, tensor: torch.Tensor, operator: Any = None) -> torch.Tensor:
        """What stands for a tensor: itself, if it is none of the caller's. Raises CaptureFailed for
        memory that nothing is known of."""
        if not tensor.numel():
            return tensor
        address = tensor.data_ptr()
        if self._device.in_capture(tensor):
            return tensor
        number = bisect.bisect_right(self._starts, address) - 1
        if number >= 0:
            original, stand_in = self._pairs[number]
            offset = address - self._starts[number]
            end = offset + tensors.extent_bytes(tensor)
            if end <= tensors.extent_bytes(original):
                if self._device.owns(tensor):
                    return _view(tensor, stand_in, offset)
                if self._device.owns(stand_in):
                    return self._staged(tensor, stand_in, offset, operator)
        if not self._device.owns(tensor):
            return tensor
        if operator is not None and known(operator, Property.LIFTS):
            return tensor  # a constant, which no operator has made
        raise CaptureFailed(
            f"{operator or 'the callable'} takes a tensor of sizes {list(tensor.shape)} that is "
            "neither an argument nor found in what the callable reads",
            None if operator is None else str(operator),
        )

    def _staged(
        self, tensor: torch.Tensor, stand_in: torch.Tensor, offset: int, operator: Any
    ) -> torch.Tensor:
        """A copy, as what brings a tensor to the device makes: a result may be it, and an operator
        may write it."""
        if operator is not None:
            raise CaptureFailed(
                f"{operator} takes an argument on the host that stands in an object of the "
                "program's; move it to the device before the call",
                str(operator),
            )
        return _view(tensor, stand_in, offset).clone()

    def see(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        given: dict[int, tuple[Any, Any]] = {}

        def replaced(value: Any) -> Any:
            if isinstance(value, torch.Generator):
                return self._generators.get(object_of(value), value)
            if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
                return value
            other = self.of(value, func)
            if other is not value:
                given[id(other)] = other, value
            return other

        result = func(*tree_map(replaced, args), **tree_map(replaced, kwargs))
        if not given:
            return result

        def original(value: Any) -> Any:  # of an operator that returns what it has written
            return given[id(value)][1] if id(value) in given else value

        return tree_map(original, result)


def _view(like: torch.Tensor, stand_in: torch.Tensor, offset: int) -> torch.Tensor:
    """The tensor that lies in `stand_in`, so many bytes from its start, as `like` lies. It is an
    inference tensor only if `like` is one: torch makes a view of it as if it were `like`."""
    with torch.inference_mode(like.is_inference()):
        return view_in(stand_in, offset, like.dtype, like.shape, like.stride())


def view_in(
    memory: torch.Tensor,
    offset: int,
    dtype: torch.dtype,
    sizes: Sequence[int],
    strides: Sequence[int],
) -> torch.Tensor:
    """The tensor that lies in `memory`, `offset` bytes from its start. No mode sees it made."""
    start = memory.storage_offset() * memory.element_size() + offset
    with DisableDispatch():
        return torch.empty(0, dtype=dtype, device=memory.device).set_(
            memory.untyped_storage(), start // dtype.itemsize, sizes, strides
        )
