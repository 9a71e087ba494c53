"""Why a capture failed, said for a user."""

from __future__ import annotations

import pytest

from pygraph.capturing import reasons
from pygraph.capturing.device import CaptureFailed


def test_reasons_name_operator_and_source() -> None:
    try:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    except RuntimeError as error:
        reason, operator, source = reasons.explain(error, "aten.item.default")
    assert "not allow during a capture" in reason
    assert operator == "aten.item.default"
    assert source is not None and source.split(":")[0].endswith("test_reasons.py")


def test_what_went_wrong_first_is_told() -> None:
    """Not what a program's own clean-up meets, once the capture has ended."""

    def clean_up() -> None:
        try:
            raise RuntimeError("operation not permitted when stream is capturing")
        finally:
            raise CaptureFailed("the capture was invalidated between operators", "aten.mul")

    with pytest.raises(CaptureFailed) as caught:
        clean_up()
    reason, operator, _ = reasons.explain(caught.value, "aten.item")
    assert operator == "aten.item" and reason.startswith("an operation that CUDA does not allow")

    def said() -> None:
        try:
            raise KeyError("inside")
        except KeyError as error:
            raise CaptureFailed("said by us") from error

    with pytest.raises(CaptureFailed) as caught:
        said()
    assert reasons.explain(caught.value, None)[0] == "said by us"
