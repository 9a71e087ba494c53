"""AOTAutograd. It takes seconds to import, so its names are looked up when they are asked for."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from pygraph.torch_private.dispatch import disable_current_modes
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


def wrapper_is_made() -> tuple[Any, str]:
    """Where a graph's runtime wrapper is made from its metadata."""
    return place("torch._functorch._aot_autograd.runtime_wrappers:RuntimeWrapper.post_compile")


# What AOTAutograd knows of a function, its ViewAndMutationMeta
# (torch/_functorch/_aot_autograd/schemas.py).


def metadata_given(kwargs: Mapping[str, Any]) -> Any:
    """Among the arguments of what makes a wrapper; None where there is none."""
    return kwargs.get("runtime_metadata")


def _traced() -> Any:
    context = TracingContext.try_get()
    return getattr(context, "fw_metadata", None)


@dataclasses.dataclass(frozen=True)
class Tracing:
    """What torch knows of the function whose graphs are being compiled now, to compile one of them
    again later, outside of Dynamo, as a lazy backward is
    (torch/_functorch/_aot_autograd/runtime_wrappers.py)."""

    context: Any
    compile_context: Any

    @classmethod
    def now(cls) -> Tracing:
        contexts = private("torch._guards:CompileContext")
        return cls(TracingContext.try_get(), contexts.try_get())

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        """As it was, on whichever thread."""
        tracing = private("torch._guards:tracing")
        compiling = private("torch._guards:compile_context")
        with disable_current_modes(), tracing(self.context), compiling(self.compile_context):
            yield

    def guards(self) -> tuple[int, ...]:
        """What has been assumed of sizes so far, counted: code that assumes more needs guards that
        Dynamo does not have."""
        mode = getattr(self.context, "fake_mode", None)
        sizes = getattr(mode, "shape_env", None)
        names = ("guards", "replacements", "axioms", "deferred_runtime_asserts")
        return tuple(len(getattr(sizes, name, ())) for name in names)


def is_fake(value: Any) -> bool:
    """Whether a tensor has no memory."""
    return isinstance(value, private("torch._subclasses.fake_tensor:FakeTensor"))


def without_cache() -> AbstractContextManager[None]:
    """AOTAutograd traces, whatever it has in its cache: from there comes compiled code, and no
    graphs, whose operators and lines could be named."""
    config: Any = private("torch._functorch:config")
    patched: AbstractContextManager[None] = config.patch(enable_autograd_cache=False)
    return patched


def static_inputs() -> list[int]:
    """Positions of parameters and buffers among the arguments of the graph that is traced now."""
    return list(getattr(_traced(), "static_input_indices", None) or ())


def mutated_inputs() -> list[int]:
    """Those of its arguments that it writes, as far as AOTAutograd knows."""
    return list(getattr(_traced(), "mutated_inp_runtime_indices", None) or ())


def forward_results(metadata: Any) -> int | None:
    """How many of a forward's results are for the caller; None: not known."""
    return _count(metadata, "num_forward_returns")


def saved_sizes(metadata: Any) -> int | None:
    """How many sizes a forward saves for its backward; None: not known."""
    return _count(metadata, "num_symints_saved_for_bw")


def _count(metadata: Any, name: str) -> int | None:
    count = getattr(metadata, name, None)
    return count if isinstance(count, int) else None


def wrappers_are_inert(metadata: Any) -> bool:
    """Whether the runtime wrappers hand arguments and results through, but for what tensors among
    them are made of, and versions that they count (counted_up). Unknown metadata: no."""
    try:
        non_alias = private("torch._functorch._aot_autograd.schemas:OutputType").non_alias
        return (
            not metadata.mutated_inp_runtime_indices
            and not any(i.mutates_metadata for i in metadata.input_info)
            and {n for n, i in enumerate(metadata.input_info) if i.mutates_data}
            <= {*metadata.mutated_graph_handled_indices}
            and metadata.num_intermediate_bases == 0
            and not metadata.tokens
            and not metadata.is_rng_op_functionalized
            and all(info.output_type == non_alias for info in metadata.output_info)
        )
    except AttributeError:
        return False


def counted_up(metadata: Any) -> list[int]:
    """The arguments whose versions the runtime wrappers count up, since the graph writes them."""
    return sorted(metadata.mutated_graph_handled_indices_seen_by_autograd)


def arguments_of(metadata: Any) -> int:
    """How many arguments the function has."""
    return len(metadata.input_info)


@contextlib.contextmanager
def strides_kept(keep: Callable[[list[Any]], list[Any]] | None) -> Iterator[None]:
    """What a compilation meanwhile tells of its results' strides goes through `keep` before
    AOTAutograd hears of it; None: it does not hear of it."""
    context = TracingContext.try_get()
    told = getattr(context, "output_strides", None)
    if told is None:
        yield
        return
    context.output_strides = None if keep is None else told
    try:
        yield
    finally:
        context.output_strides = told
    if keep is not None:
        told[:] = keep(list(told))


def tangents(graph_module: Any) -> int:
    """How many gradients of outputs a backward graph takes, by AOTAutograd's naming."""
    names = [node.name for node in graph_module.graph.nodes if node.op == "placeholder"]
    return sum("tangents" in name for name in names)
