"""Tensors without memory."""

from __future__ import annotations

from typing import Any

from pygraph.torch_private.names import bound

FakeTensor = bound("torch._subclasses.fake_tensor:FakeTensor")
FakeTensorMode = bound("torch._subclasses.fake_tensor:FakeTensorMode")
DataDependentOutputException = bound("torch._subclasses.fake_tensor:DataDependentOutputException")
DynamicOutputShapeException = bound("torch._subclasses.fake_tensor:DynamicOutputShapeException")


#: Whether something is true of sizes for all values that they can have; asking adds no guard.
known_true = bound("torch.fx.experimental.symbolic_shapes:statically_known_true")


def constant_of(tensor: Any) -> Any:
    """The tensor whose values a fake one is known to have; None: they are not known."""
    return getattr(tensor, "constant", None)
