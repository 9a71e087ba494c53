"""AOTAutograd. It takes seconds to import, so its names are looked up when they are asked for."""

from __future__ import annotations

from typing import Any, TypeVar

from pygraph.torch_private.names import bound, place, private

Callee = TypeVar("Callee")

BoxedCodeGen = bound("torch.fx.graph:_BoxedCodeGen")
TracingContext = bound("torch._guards:TracingContext")


def boxed(function: Callee) -> Callee:
    """Marks a callable, or the class of some, as taking one list, which it clears."""
    function._boxed_call = True  # type: ignore[attr-defined]
    return function


def aot_module_simplified() -> Any:
    return private("torch._functorch.aot_autograd:aot_module_simplified")


def output_type() -> Any:
    return private("torch._functorch._aot_autograd.schemas:OutputType")


def wrapper_is_made() -> tuple[Any, str]:
    """Where a graph's runtime wrapper is made from its metadata."""
    return place("torch._functorch._aot_autograd.runtime_wrappers:RuntimeWrapper.post_compile")
