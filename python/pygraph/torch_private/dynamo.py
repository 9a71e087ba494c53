"""Dynamo. It takes seconds to import, so its names are looked up when they are asked for."""

from __future__ import annotations

from types import CodeType
from typing import Any, cast

from pygraph.torch_private.names import private


def config() -> Any:
    return private("torch._dynamo:config")


def aot_autograd() -> Any:
    return private("torch._dynamo.backends.common:aot_autograd")


def graph_break_reasons() -> Any:
    return private("torch._dynamo.utils:graph_break_reasons")


def code_around_backend() -> CodeType:
    """The code of what Dynamo puts around a backend's function."""
    return cast(CodeType, private("torch._dynamo:disable")(lambda: None).__code__)
