"""Which results of attention are random states that nobody writes."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from pygraph.capturing import hold
from pygraph.capturing.attention import unwritten_states

aten = torch.ops.aten
QKV = [torch.empty(2, 4, 8, 16, dtype=torch.float16, device="meta") for _ in range(3)]
OPERATORS: dict[str, tuple[Any, list[Any], list[int]]] = {
    "flash": (aten._scaled_dot_product_flash_attention.default, [], [6, 7]),
    "CUTLASS": (aten._scaled_dot_product_efficient_attention.default, [None, True], [2, 3]),
    "cuDNN": (aten._scaled_dot_product_cudnn_attention.default, [None, True], [6, 7]),
}


@pytest.mark.parametrize("share", [None, 0.0, 0.1])
@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_states_are_idle_without_dropout(name: str, by_name: bool, share: float | None) -> None:
    operator, between, places = OPERATORS[name]
    args, kwargs = [*QKV, *between], {}
    if share is not None and by_name:
        kwargs["dropout_p"] = share
    elif share is not None:
        args.append(share)
    result = operator(*args, **kwargs)
    expected = [] if share else [result[i] for i in places if result[i] is not None]
    found = unwritten_states(operator, args, kwargs, result)
    assert len(found) == len(expected)
    assert all(one is other for one, other in zip(found, expected, strict=True))


def test_other_operators_have_none() -> None:
    x = torch.ones(2)
    assert unwritten_states(aten.add.Tensor, [x, x], {}, x + x) == []
    assert unwritten_states(aten.native_dropout.default, [x, 0.0, True], {}, (x, x > 0)) == []
    assert unwritten_states(print, [], {}, None) == []


def test_a_capture_notes_them() -> None:
    operator, between, places = OPERATORS["CUTLASS"]
    kept: list[Any] = []
    with hold.hold_buffers((), kept) as mode:
        result = operator(*QKV, *between, 0.0)
        operator(*QKV, *between, 0.5)
    assert mode.unwritten == [result[i].data_ptr() for i in places]


def test_a_capture_holds_no_tensor_but_among_what_is_kept() -> None:
    """What it holds must be gone before its memory is, also when it fails."""
    operator, between, _ = OPERATORS["CUTLASS"]
    kept: list[Any] = []
    with hold.hold_buffers((), kept) as mode:
        results = [weakref.ref(each) for each in operator(*QKV, *between, 0.0)]
    kept.clear()
    assert mode.unwritten
    assert [each() for each in results] == [None] * len(results)
