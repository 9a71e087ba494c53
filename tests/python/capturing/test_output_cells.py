"""Which outputs take their cell with them, and which are copied out of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pygraph import _engine
from pygraph.capturing import outputs
from pygraph.capturing.device import CaptureFailed, Segment
from pygraph.capturing.record import Capture

BASE = 1 << 30


def capture(segments: list[Segment], results: list[torch.Tensor]) -> Capture:
    nothing: Any = None
    return Capture(nothing, [], segments, results, [], [], nothing, [], [], {}, False, frozenset())


def at(address: int, count: int) -> torch.Tensor:
    """A tensor of `count` bytes on memory that is never looked at."""
    storage = torch._C._construct_storage_from_data_pointer(address, torch.device("cpu"), count)
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (count,), (1,))


def planned(cell: Segment, *results: torch.Tensor) -> outputs.Outputs:
    from pygraph.capturing.twin import twin_device

    made = capture([cell], list(results))
    return outputs.plan(made, made, [], twin_device(), False)


def test_a_cell_with_one_buffer_is_the_outputs_own() -> None:
    plan = planned(Segment(BASE, 4 << 20, 4096, 1), at(BASE, 4000))
    assert plan.counts["direct"] == 1 and not plan.copies
    assert plan.direct == {0: 0}
    assert plan.blocks[0].bytes == 4000


def test_a_small_output_is_copied_out_of_a_large_shared_cell() -> None:
    plan = planned(Segment(BASE, 64 << 20, 64 << 20, 2), at(BASE + 512, 4000))
    assert plan.counts == {"direct": 0, "copied": 1, "kept": 0, "aliased": 0}
    assert not plan.direct
    (copy,) = plan.copies
    assert (copy.segment, copy.offset, copy.bytes) == (0, 512, 4000)
    assert plan.results[0].kind == _engine.ResultKind.WHOLE


def test_an_output_that_fills_most_of_a_shared_cell_takes_all_of_it() -> None:
    plan = planned(Segment(BASE, 64 << 20, 64 << 20, 2), at(BASE, 60 << 20))
    assert plan.counts["direct"] == 1 and not plan.copies
    assert plan.blocks[0].bytes == 64 << 20
    assert plan.results[0].kind == _engine.ResultKind.VIEW


def test_outputs_of_one_storage_leave_a_shared_cell_together() -> None:
    whole = at(BASE + 1024, 4096)
    plan = planned(Segment(BASE, 64 << 20, 64 << 20, 3), whole[:1000], whole[3000:])
    assert plan.counts["copied"] == 2
    (copy,) = plan.copies
    assert (copy.offset, copy.bytes) == (1024, 4096)
    assert [result.byte_offset for result in plan.results] == [0, 3000]
    assert {result.kind for result in plan.results} == {_engine.ResultKind.VIEW}


def test_memory_of_nobody_is_refused() -> None:
    with pytest.raises(CaptureFailed, match="output 0 is memory that is neither"):
        planned(Segment(BASE, 1 << 20, 1 << 20, 1), at(BASE + (8 << 20), 64))
