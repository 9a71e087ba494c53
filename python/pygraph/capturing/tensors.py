"""Facts about tensors that capture needs: extent, alignment, identity of bits; phantom tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from pygraph.torch_private import tensors as private

Kind = TypeVar("Kind")
Item = TypeVar("Item")

#: Alignment that is kept when memory moves, in bytes: no kernel asks for more (design, rule 3).
MAXIMUM_ALIGNMENT = 256
#: What Inductor's kernels assume of every input, in bytes (torch._inductor.utils.ALIGNMENT).
KERNEL_ALIGNMENT = 16
_RESIDUE_MODULUS = 1024
_ALLOCATED_ALIGNMENT = 512  # of fresh tensors on a GPU; the CPU's are aligned to a divisor of it


def extent_bytes(tensor: torch.Tensor) -> int:
    """Bytes from a strided tensor's first element to behind its last; 0 when it has none."""
    if tensor.numel() == 0:
        return 0
    if tensor.is_contiguous():
        return int(tensor.nbytes)
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return (last + 1) * tensor.element_size()


def residue_of(address: int, guaranteed: int = 512, at_most: int = 512) -> int:
    """What a phantom address must be modulo 1024 to be exactly as aligned as `address`, up to the
    bytes that the allocator guarantees, and to `at_most`, a power of two. An address that is less
    aligned than compiled kernels ask for is captured as if it were aligned to both; a call with
    such an address copies."""
    below = address % guaranteed
    asked_for = below and address % KERNEL_ALIGNMENT == 0
    return below if asked_for and below % at_most else min(guaranteed, at_most)


def alignment_mask(address: int) -> int:
    """The low bits that must be zero in another address for it to be as aligned as `address`."""
    residue = address % _RESIDUE_MODULUS
    lowest = residue & -residue if residue else _RESIDUE_MODULUS
    return min(lowest, MAXIMUM_ALIGNMENT) - 1


def at_address(
    like: torch.Tensor,
    address: int,
    nbytes: int,
    device: torch.device | None = None,
    offset: int = 0,
) -> torch.Tensor:
    """A tensor with the dtype, sizes and strides of `like` on memory at `address`, which the
    caller keeps valid. Its storage begins `offset` elements in front of that and ends `nbytes`
    behind it."""
    device = device or like.device
    before = offset * like.element_size()
    storage = private.storage_at(address - before, device, before + nbytes)
    return torch.empty(0, dtype=like.dtype, device=device).set_(
        storage, offset, like.shape, like.stride()
    )


def without_memory(like: torch.Tensor, offset: int) -> torch.Tensor:
    """An empty tensor like the empty tensor `like`, on a storage of its own that has no memory."""
    storage = torch.UntypedStorage(0, device=like.device)
    return torch.empty(0, dtype=like.dtype, device=like.device).set_(
        storage, offset, like.shape, like.stride()
    )


def address_of(tensor: torch.Tensor) -> int:
    """Where the first element stands, or would stand in the storage of an empty tensor (whose
    data_ptr() is 0 wherever it is)."""
    start: int = tensor.untyped_storage().data_ptr()
    return start + tensor.storage_offset() * tensor.element_size()


def share_storage(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors that live are views of one storage."""
    return bool(
        private.object_of(left.untyped_storage()) == private.object_of(right.untyped_storage())
    )


def share_versions(left: Any, right: Any) -> bool:
    """Whether writes to two tensors are counted together (they are views, or one is detached from
    the other). Leaves both as they were."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return False
    if left.is_inference() or right.is_inference():  # nobody counts
        return False
    if not share_storage(left, right) or private.version(left) != private.version(right):
        return False
    before = private.version(left)
    private.set_versions((left,), (before + 1,))
    shared = private.version(right) == before + 1
    private.set_versions((left,), (before,))
    return bool(shared)


def describe(tensor: torch.Tensor) -> str:
    """What kind of tensor it is, for a reason: 'a cpu tensor', 'a conjugated cuda tensor'."""
    kinds = (
        (tensor.is_conj(), "conjugated "),
        (tensor.is_neg(), "negated "),
        (tensor.is_quantized, "quantized "),
        (tensor.layout != torch.strided, f"{str(tensor.layout).removeprefix('torch.')} "),
    )
    return "a " + "".join(text for applies, text in kinds if applies) + f"{tensor.device} tensor"


def bytes_of(tensor: torch.Tensor, front: int = 0) -> torch.Tensor:
    """The memory of a strided tensor as bytes, from its first element to behind its last, and so
    many in front of it."""
    start = tensor.storage_offset() * tensor.element_size() - front
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        tensor.untyped_storage(), start, (front + extent_bytes(tensor),), (1,)
    )


def static_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the same values, sizes and strides on memory of its own. Works for tensors
    whose elements overlap, too, and for those that show their memory conjugated or negated."""
    memory = bytes_of(tensor).clone()  # clone() itself knows fewer types of elements
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        memory.untyped_storage(), 0, tensor.shape, tensor.stride()
    )
    if tensor.is_conj():
        copy = copy.conj()
    return private.negated(copy) if tensor.is_neg() else copy


#: Tensors by number that share memory with each other, and with no tensor that stays in place.
Group = Mapping[int, torch.Tensor]


#: Bytes in front of a tensor that belong to it, by its number; none for one that is not there.
Fronts = Mapping[int, int]


def groups(
    items: Mapping[int, torch.Tensor],
    others: Iterable[torch.Tensor],
    fronts: Fronts = MappingProxyType({}),
) -> list[Group]:
    """Those of `items` that can be moved: not one that shares memory with one of `others`, which
    stay where they are. Items and others are strided and have elements."""
    spans: list[tuple[int, int, int | None]] = []
    for number, item in items.items():
        front = fronts.get(number, 0)
        spans.append((item.data_ptr() - front, front + extent_bytes(item), number))
    spans += [(other.data_ptr(), extent_bytes(other), None) for other in others]
    found: list[list[int | None]] = []
    end = 0
    for start, nbytes, index in sorted(spans, key=lambda span: span[0]):
        if start >= end:
            found.append([])
        found[-1].append(index)
        end = max(end, start + nbytes)
    return [
        {index: items[index] for index in group if index is not None}
        for group in found
        if None not in group
    ]


def moved(
    groups: Iterable[Group], fronts: Fronts = MappingProxyType({})
) -> dict[int, torch.Tensor]:
    """Copies of the tensors of some groups on fresh memory, which share it with each other as the
    tensors do. A group that no memory of another place can hold alike stays out."""
    copies: dict[int, torch.Tensor] = {}
    for group in groups:
        if len(group) == 1 and not any(fronts.get(index) for index in group):
            copies.update({index: static_copy(item) for index, item in group.items()})
        elif all(item.data_ptr() % item.element_size() == 0 for item in group.values()):
            copies.update(_copied_together(group, fronts))
    return copies


def _copied_together(
    members: Mapping[int, torch.Tensor], fronts: Fronts
) -> dict[int, torch.Tensor]:
    """As far apart as they are, and as aligned."""
    first = min(member.data_ptr() - fronts.get(index, 0) for index, member in members.items())
    start = first // _ALLOCATED_ALIGNMENT * _ALLOCATED_ALIGNMENT
    end = max(member.data_ptr() + extent_bytes(member) for member in members.values())
    device = next(iter(members.values())).device
    memory = torch.empty(end - start, dtype=torch.uint8, device=device)
    copies = {}
    for index, member in members.items():
        offset = member.data_ptr() - start
        copied = bytes_of(member, fronts.get(index, 0))
        behind = offset + extent_bytes(member)
        memory[behind - copied.numel() : behind].copy_(copied)
        copies[index] = torch.empty(0, dtype=member.dtype, device=device).set_(
            memory.untyped_storage(),
            offset // member.element_size(),
            member.shape,
            member.stride(),
        )
    return copies


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _as_integers(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.view(_INTEGERS[tensor.element_size()])


def same_bits(left: Any, right: Any) -> bool:
    """Whether two results are the same: tensors in dtype, shape and every bit, the rest by ==."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return not torch.is_tensor(left) and not torch.is_tensor(right) and bool(left == right)
    if left.dtype != right.dtype or left.shape != right.shape or left.device != right.device:
        return False
    return left.numel() == 0 or torch.equal(_as_integers(left), _as_integers(right))


def count_differing(left: torch.Tensor, right: torch.Tensor) -> int:
    """How many elements of two tensors, alike but for the values, have not the same bits."""
    unlike = _as_integers(left) != _as_integers(right)
    return int((unlike.any(-1) if left.is_complex() else unlike).sum())


#: Bytes of tensors that are put together to be compared at once, at most; on the host, where
#: nobody waits for a comparison, it only pays for tiny ones.
_AT_ONCE = 4 << 20
_AT_ONCE_ON_HOST = 16 << 10


def differing(lefts: Sequence[Any], rights: Sequence[Any]) -> list[int]:
    """Which pairs are not the same (same_bits), by their number. Small tensors are compared many at
    a time: on a GPU the host waits for every comparison."""
    found: list[int] = []
    doubtful: list[int] = []
    small: list[tuple[tuple[torch.device, torch.dtype | None], int, int]] = []
    for number, (left, right) in enumerate(zip(lefts, rights, strict=True)):
        nbytes = _bytes_alike(left, right)
        if 0 < nbytes <= _most_at_once(left.device):
            # In a row as they are, if they can be: a view costs less than their bytes.
            kind = left.device, left.dtype if left.is_contiguous() else None
            small.append((kind, nbytes, number))
        else:
            doubtful.append(number)
    for numbers in batches(small, lambda kind: _most_at_once(kind[0])):
        one, other = (_in_a_row([values[n] for n in numbers]) for values in (lefts, rights))
        if torch.equal(one, other):
            continue
        if lefts[numbers[0]].is_contiguous():
            sizes = [lefts[number].nbytes // one.element_size() for number in numbers]
            unlike = torch.stack([each.any() for each in (one != other).split(sizes)]).tolist()
            found += itertools.compress(numbers, unlike)
        else:  # maybe by what stands between elements
            doubtful += numbers
    found += (number for number in doubtful if not same_bits(lefts[number], rights[number]))
    return sorted(found)


def _most_at_once(device: torch.device) -> int:
    return _AT_ONCE_ON_HOST if device.type == "cpu" else _AT_ONCE


def batches(
    items: Iterable[tuple[Kind, int, Item]], room: Callable[[Kind], int]
) -> Iterator[list[Item]]:
    """Items of one kind together, as many as there is room for. Each comes with its kind, and with
    what it takes of the room."""
    filled: dict[Kind, list[Item]] = {}
    left: dict[Kind, int] = {}
    for kind, size, item in items:
        if left.get(kind, 0) < size:
            if kind in filled:
                yield filled.pop(kind)
            left[kind] = room(kind)
        filled.setdefault(kind, []).append(item)
        left[kind] -= size
    yield from filled.values()


def _in_a_row(tensors: list[torch.Tensor]) -> torch.Tensor:
    """What stands in the memory of some tensors, as integers, one behind the other. Either all are
    contiguous and of one dtype, or none is."""
    if tensors[0].is_contiguous():
        return torch.cat([_as_integers(tensor).reshape(-1) for tensor in tensors])
    return torch.cat([bytes_of(tensor) for tensor in tensors])


def _bytes_alike(left: Any, right: Any) -> int:
    """How many bytes two strided tensors have each, if they are alike but for the values; else
    0."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return 0
    alike = (
        left.layout == right.layout == torch.strided
        and left.dtype == right.dtype
        and left.device == right.device
        and left.shape == right.shape
        and left.stride() == right.stride()
        and left.is_conj() == right.is_conj()
        and left.is_neg() == right.is_neg()
    )
    return extent_bytes(left) if alike else 0
