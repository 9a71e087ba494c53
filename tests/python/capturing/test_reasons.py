"""Why a capture failed, said for a user."""

from __future__ import annotations

from pygraph.capturing import reasons


def test_reasons_name_operator_and_source() -> None:
    try:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    except RuntimeError as error:
        reason, operator, source = reasons.explain(error, "aten.item.default")
    assert "not allow during a capture" in reason
    assert operator == "aten.item.default"
    assert source is not None and source.split(":")[0].endswith("test_reasons.py")
