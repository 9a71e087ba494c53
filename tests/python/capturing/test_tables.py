"""Operators whose kernels read addresses from a table: what is called in their place has the same
bits, and no operator of theirs in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed.fsdp

from pygraph.capturing import tables
from pygraph.capturing.tensors import same_bits
from pygraph.torch_private.dispatch import UnseenByDynamo


class Seen(UnseenByDynamo):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def see(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        self.names.add(str(func))
        return func(*args, **kwargs)


def instead(func: Any, *args: Any, **kwargs: Any) -> Any:
    """What is called in place of an operator."""
    way = tables.without(func, args, kwargs)
    assert way is not None
    with Seen() as seen:
        result = way()
    assert not any("split_with_sizes_copy" in name or "chunk_cat" in name for name in seen.names)
    return result


@pytest.mark.parametrize("func", [
    torch.ops.fsdp.split_with_sizes_copy.default, torch.ops.aten.split_with_sizes_copy.out,
])  # fmt: skip
@pytest.mark.parametrize(
    ("shape", "dim"), [((12,), 0), ((2, 12), 1), ((2, 12), -1), ((12, 3), 0), ((2, 3, 12), 2)]
)
def test_parts_of_a_tensor(func: Any, shape: Sequence[int], dim: int) -> None:
    source, sizes = torch.randn(shape), [5, 0, 4, 3]
    wanted = [each.clone() for each in source.split(sizes, dim)]
    found = [torch.empty_like(each) for each in wanted]
    assert instead(func, source, sizes, dim, out=found) is None
    assert all(map(same_bits, found, wanted))


@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_in_one(chunks: int, dtype: torch.dtype) -> None:
    """Rows that do not divide are filled up with zeros; bf16 may go into fp32."""
    given = [torch.randn(shape).to(dtype) for shape in ((7, 3), (4,), (1, 2, 2), (12, 5))]
    given.append(torch.randn(3, 8).t().to(dtype))
    wanted = torch._chunk_cat(given, 0, chunks).float()
    for func in (torch.ops.fsdp.chunk_cat.default, torch.ops.aten._chunk_cat.out):
        found = torch.full_like(wanted, 7)
        result = instead(func, given, 0, chunks, out=found)
        assert same_bits(found, wanted)
        assert result is (found if func.namespace == "aten" else None)


def test_others_are_called_as_they_are() -> None:
    x = torch.randn(2, 4)
    copied, joined = torch.ops.aten.split_with_sizes_copy, torch.ops.aten._chunk_cat
    assert tables.without(copied.default, (x, [2, 2], 1), {}) is None
    assert tables.without(joined.out, ([x], 1, 2), {"out": torch.empty(2, 2, 2)}) is None
    assert tables.without(torch.ops.aten.add.out, (x, x), {"out": x}) is None
