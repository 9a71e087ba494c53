"""Tensors without memory."""

from __future__ import annotations

from pygraph.torch_private.names import bound

FakeTensor = bound("torch._subclasses.fake_tensor:FakeTensor")
FakeTensorMode = bound("torch._subclasses.fake_tensor:FakeTensorMode")
DataDependentOutputException = bound("torch._subclasses.fake_tensor:DataDependentOutputException")
DynamicOutputShapeException = bound("torch._subclasses.fake_tensor:DynamicOutputShapeException")
