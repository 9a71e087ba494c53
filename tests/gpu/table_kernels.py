"""Triton kernels of the tests, in a module of their own: Triton reads their source, and takes no
postponed annotations."""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def double_through_table(table, out, count, BLOCK: tl.constexpr):
    """out = 2 * (the floats at the address that stands in `table`)."""
    source = tl.load(table).to(tl.pointer_type(tl.float32))
    places = tl.arange(0, BLOCK)
    inside = places < count
    tl.store(out + places, 2 * tl.load(source + places, mask=inside), mask=inside)
