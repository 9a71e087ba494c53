"""Facts about tensors and addresses: extents, alignment, copies, which of many are the same."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pygraph.capturing import tensors
from pygraph.capturing.segments import SegmentIndex


def test_extent_and_alignment() -> None:
    base = torch.zeros(8, 16)
    assert tensors.extent_bytes(base) == 8 * 16 * 4
    assert tensors.extent_bytes(base[:, ::2]) == (7 * 16 + 7 * 2 + 1) * 4
    assert tensors.extent_bytes(base[:0]) == 0
    assert tensors.extent_bytes(base[:1].expand(5, 16)) == 16 * 4
    assert tensors.alignment_mask(512) == 255
    assert tensors.alignment_mask(512 + 64) == 63
    assert tensors.residue_of(0x7000_0000_0000) == 512
    assert tensors.residue_of(0x7000_0000_0040) == 64
    assert tensors.residue_of(0x7000_0000_0004) == 512  # captured as if aligned; calls copy
    for address, at_most, residue in (
        (0x7000_0000_0000, 32, 32),
        (0x7000_0000_0040, 32, 32),
        (0x7000_0000_0030, 32, 0x30),
        (0x7000_0000_0020, 32, 32),
        (0x7000_0000_0004, 32, 32),
        (0x7000_0000_0060, 64, 0x60),
    ):
        assert tensors.residue_of(address, at_most=at_most) == residue, hex(address)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool])
def test_same_bits(dtype: torch.dtype) -> None:
    left = torch.randn(16).to(dtype)
    assert tensors.same_bits(left, left.clone())
    other = left.clone()
    other[3] = not other[3] if dtype == torch.bool else other[3] + 1
    assert not tensors.same_bits(left, other)
    assert not tensors.same_bits(left, left[:8])
    assert not tensors.same_bits(left, None)


def test_same_bits_tells_zeros_and_nans_apart() -> None:
    assert not tensors.same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    nan = torch.tensor([float("nan")])
    assert tensors.same_bits(nan, nan.clone())


def test_static_copy_of_overlapping_elements() -> None:
    expanded = torch.arange(4.0)[None].expand(3, 4)
    copy = tensors.static_copy(expanded)
    assert copy.stride() == expanded.stride()
    assert torch.equal(copy, expanded)
    assert copy.data_ptr() != expanded.data_ptr()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3).to(torch.complex64).mul(1 + 2j).conj(),
        torch.arange(6.0).to(torch.complex64).mul(1j).conj().imag,
        torch.arange(6.0).to(torch.complex64).mul(1j).conj().imag[::2],
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(4.0).as_strided((1, 4), (100, 1)),
        torch.empty(0, 3).as_strided((0, 3), (7, 5)),
        torch.tensor(3),
        torch.nn.Parameter(torch.arange(3.0)),
    ],
    ids=["conj", "neg", "neg-strided", "transposed", "one-row", "empty", "number", "parameter"],
)
def test_static_copies_show_the_same(tensor: torch.Tensor) -> None:
    copy = tensors.static_copy(tensor)
    assert torch.equal(copy, tensor)
    assert (copy.shape, copy.stride(), copy.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert (copy.is_conj(), copy.is_neg()) == (tensor.is_conj(), tensor.is_neg())
    assert not tensors.share_storage(copy, tensor) and copy.storage_offset() == 0
    assert type(copy) is torch.Tensor and not copy.requires_grad


@pytest.mark.parametrize("dtype", [torch.uint4, torch.uint16, torch.float8_e4m3fn, torch.bits8])
def test_rare_types_are_copied_and_compared(dtype: torch.dtype) -> None:
    """Of which torch's own operators know few."""
    memory = torch.arange(32, dtype=torch.uint8)
    tensor, other = memory.view(dtype), (memory + 1).view(dtype)
    copy = tensors.static_copy(tensor)
    assert copy.dtype == dtype and torch.equal(copy.view(torch.uint8), memory)
    assert tensors.differing([tensor, tensor, tensor], [copy, other, tensor]) == [1]


def changed(tensor: torch.Tensor) -> torch.Tensor:
    """With another last element."""
    copy = tensors.static_copy(tensor)
    tensors.bytes_of(copy)[-1] ^= 1
    return copy


@pytest.mark.parametrize("count", [1, 2, 7, 100])
@pytest.mark.parametrize("at_once", [8, 100, 1 << 20])
def test_which_of_many_tensors_differ(
    monkeypatch: pytest.MonkeyPatch, count: int, at_once: int
) -> None:
    """However many are put together: none, a few, all."""
    monkeypatch.setattr(tensors, "_AT_ONCE_ON_HOST", at_once)
    dtypes = (torch.float32, torch.int64, torch.bfloat16)
    lefts = [torch.arange(1, 2 + n % 5).to(dtypes[n % 3]) for n in range(count)]
    lefts = [left.repeat(2, 2).t() if n % 4 == 3 else left for n, left in enumerate(lefts)]
    rights = [left.clone() for left in lefts]
    assert tensors.differing(lefts, rights) == []
    for wrong in {0, count // 2, count - 1}:
        found = [changed(r) if n == wrong else r for n, r in enumerate(rights)]
        assert tensors.differing(lefts, found) == [wrong]
    assert tensors.differing(lefts, [changed(right) for right in rights]) == list(range(count))


def test_what_is_unlike_differs_whatever_its_bytes_are() -> None:
    left = torch.zeros(4)
    others: list[Any] = [
        torch.zeros(4, dtype=torch.int32),
        torch.zeros(2, 2),
        torch.zeros(2, dtype=torch.float64),
        torch.zeros(3),
        0.0,
        None,
    ]
    count = len(others)
    assert tensors.differing([left] * count, others) == list(range(count))
    assert tensors.differing(others, [left] * count) == list(range(count))
    assert tensors.differing(others, others) == []


def test_zeros_and_nans_among_many() -> None:
    nan = torch.tensor([math.nan])
    lefts = [torch.tensor([0.0]), nan, torch.tensor([-0.0])]
    rights = [torch.tensor([-0.0]), nan.clone(), torch.tensor([-0.0])]
    assert tensors.differing(lefts, rights) == [0]
    assert tensors.differing(lefts[::2], rights[::2]) == [0]  # a NaN is unequal to itself anyway


def test_large_integers_beside_floats() -> None:
    """Which of them would be rounded to."""
    lefts = [torch.tensor([1.0]), torch.tensor([2**40]), torch.tensor([2**40]).expand(2, 1).t()]
    rights = [torch.tensor([1.0]), torch.tensor([2**40 + 1]), lefts[2] + 1]
    assert tensors.differing(lefts, rights) == [1, 2]


def test_what_stands_between_elements_is_no_difference() -> None:
    left, right = torch.zeros(4, 4), torch.zeros(4, 4)
    right[:, 2:] = 7
    assert tensors.differing([left[:, :2], left[0]], [right[:, :2], right[0]]) == [1]
    assert tensors.differing([left[:, :2]], [right[:, :2]]) == []


def test_the_same_values_in_another_layout_are_the_same() -> None:
    left = torch.arange(6.0).reshape(2, 3)
    right = left.t().contiguous().t()
    assert left.stride() != right.stride()
    assert tensors.differing([left], [right]) == []
    bytes_alike = torch.arange(6.0).as_strided((2, 3), (1, 2))
    assert tensors.differing([left], [bytes_alike]) == [0]


def test_pairs_that_are_unlike_do_not_make_up_for_each_other() -> None:
    three, four = torch.zeros(3), torch.zeros(4)
    assert tensors.differing([three, four], [four, three]) == [0, 1]


def test_conjugated_tensors_are_compared_by_what_they_show() -> None:
    left = torch.tensor([1 + 2j, 3 - 1j])
    assert tensors.differing([left, left], [left.conj(), left.conj().conj()]) == [0]
    assert tensors.differing([left.conj()], [left.conj().resolve_conj()]) == []


def test_an_address_is_found_in_its_segment() -> None:
    index = SegmentIndex([(300, 50), (0, 0), (100, 100), (400, 0)])
    expected = {99: None, 100: 2, 199: 2, 200: None, 300: 0, 349: 0, 350: None, 0: None, 400: None}
    assert {address: index.find(address) for address in expected} == expected
    assert SegmentIndex([]).find(7) is None
