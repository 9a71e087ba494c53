"""Which results share memory."""

from __future__ import annotations

import types
from typing import Any

import pytest

from pygraph.capturing import blocks
from pygraph.capturing.blocks import GivenUp

MIB = 1 << 20
SOON, LATER, AT_END = GivenUp(0, 0), GivenUp(0, 1), GivenUp(0, -1)


def groups(of: list[tuple[int, int]], given_up: dict[int, Any]) -> list[list[int]]:
    """`of`: the bytes and the first part of each block; result i is block i."""
    made: list[list[list[int]]] = []
    call: Any = types.SimpleNamespace(
        blocks=of, block_of_result=list(range(len(of))), merge_blocks=made.append
    )
    blocks.merge(call, given_up)
    (only,) = made
    return only


def test_what_is_taken_and_given_up_at_the_same_times_shares() -> None:
    of = [(8 * MIB, 0), (8 * MIB, 0), (8 * MIB, 1), (8 * MIB, 0), (8 * MIB, 1), (8 * MIB, 0)]
    given_up = {0: SOON, 1: LATER, 2: SOON, 3: SOON, 4: SOON}
    assert groups(of, given_up) == [[0, 3], [2, 4]]


def test_a_block_holds_128_mib_at_most() -> None:
    assert groups([(50 * MIB, 0)] * 5, dict.fromkeys(range(5), SOON)) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("size", "shared"), [(MIB - 512, [[0, 1], [2, 3]]), (MIB, [])])
def test_what_stays_to_the_end_shares_small_blocks(size: int, shared: list[list[int]]) -> None:
    assert groups([(size, 0)] * 4, dict.fromkeys(range(4), AT_END)) == shared


def test_a_block_that_the_caller_has_a_result_in_is_left_alone() -> None:
    made: list[Any] = []
    call: Any = types.SimpleNamespace(
        blocks=[(64, 0)] * 3, block_of_result=[0, 0, 1, 2, -1], merge_blocks=made.append
    )
    blocks.merge(call, dict.fromkeys((1, 2, 3, 4), SOON))
    assert made == [[[1, 2]]]


def test_a_block_whose_results_are_given_up_at_different_times_is_left_alone() -> None:
    made: list[Any] = []
    call: Any = types.SimpleNamespace(
        blocks=[(64, 0)] * 3, block_of_result=[0, 0, 1, 1, 2], merge_blocks=made.append
    )
    blocks.merge(call, {0: SOON, 1: LATER, 2: LATER, 3: SOON, 4: SOON})
    assert made == [[]]
