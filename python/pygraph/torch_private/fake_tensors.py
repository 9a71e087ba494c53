"""Tensors without memory."""

from __future__ import annotations

from typing import Any

from pygraph.torch_private.names import bound

FakeTensor = bound("torch._subclasses.fake_tensor:FakeTensor")
FakeTensorMode = bound("torch._subclasses.fake_tensor:FakeTensorMode")
DataDependentOutputException = bound("torch._subclasses.fake_tensor:DataDependentOutputException")
DynamicOutputShapeException = bound("torch._subclasses.fake_tensor:DynamicOutputShapeException")


def constant_of(tensor: Any) -> Any:
    """The tensor whose values a fake one is known to have; None: they are not known."""
    return getattr(tensor, "constant", None)
