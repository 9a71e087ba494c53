"""The hook below Inductor, in its two forms (design: integration of torch 2.11 to 2.13).

Both make Inductor hand every compiled callable that it would put into a CUDA graph to `wrap`:

* 2.11: `torch._inductor.compile_fx.cudagraphify` is replaced. output_code.py imports it inside the
  function at each post-compile, so whole graphs, partitions and cache hits all come through it;
  for partitions in the order of the graph's partition maps.
* 2.13: a CUDAGraphPolicy. It would wrap the whole callable even where Inductor partitioned it
  around CPU operations, so partitions are wrapped one by one here, as 2.11 does.

The replacement stays in place for the life of the process and acts only inside `installed()`:
other compilations with torch's own CUDA graphs are not touched.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from pygraph.adapter import versions
from pygraph.adapter.partition import Partition


class Wrap(Protocol):
    """Makes the callable that runs in place of a compiled one."""

    def __call__(
        self,
        model: Callable[..., Any],
        static_input_idxs: Sequence[int],
        *,
        device_index: int,
        is_backward: bool,
        is_inference: bool,
        mutated_input_idxs: Sequence[int],
        partition: Partition | None = None,
    ) -> Callable[..., Any]: ...


_active = threading.local()


def _current() -> Wrap | None:
    return getattr(_active, "wrap", None)


@contextlib.contextmanager
def installed(wrap: Wrap) -> Iterator[dict[str, Any]]:
    """Routes the compilations of this thread to `wrap`; yields what compile_fx is to be given for
    it. A backward graph may be compiled long after, at its first call and on autograd's thread:
    hence the `inner_compile`, which routes to `wrap` wherever and whenever it runs."""
    patches: dict[str, Any] = {"triton.cudagraphs": True}
    if versions.hook_form() == "policy":
        patches["cudagraph_policy"] = _make_policy()
    _replace_cudagraphify()
    _observe_partitions()
    _spare_the_tree_manager()
    with _routed(wrap):
        yield {"config_patches": patches, "inner_compile": _inner_compile(wrap)}


@contextlib.contextmanager
def _routed(wrap: Wrap) -> Iterator[None]:
    previous = _current()
    _active.wrap = wrap
    try:
        yield
    finally:
        _active.wrap = previous


def _inner_compile(wrap: Wrap) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx_inner

    @functools.wraps(compile_fx_inner)
    def inner_compile(*args: Any, **kwargs: Any) -> Any:
        with _routed(wrap):
            return compile_fx_inner(*args, **kwargs)

    return inner_compile


@contextlib.contextmanager
def observed_metadata() -> Iterator[list[Any]]:
    """Collects the ViewAndMutationMeta that AOTAutograd builds its runtime wrapper from, for each
    graph that this thread compiles. (TracingContext has it only when AOTAutograd's cache missed.)
    """
    _observe_runtime_wrapper()
    previous = getattr(_active, "metadata", None)
    found: list[Any] = []
    _active.metadata = found
    try:
        yield found
    finally:
        _active.metadata = previous


def _surround(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Calls of torch's `owner.name(…)` become `around(original, …)`, from now on. Once."""
    original = getattr(owner, name)
    if getattr(original, "_pygraph_hook", False):
        return

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    replacement._pygraph_hook = True  # type: ignore[attr-defined]
    setattr(owner, name, replacement)


def _observe_runtime_wrapper() -> None:
    from torch._functorch._aot_autograd.runtime_wrappers import RuntimeWrapper

    def post_compile(original: Any, *args: Any, **kwargs: Any) -> Any:
        found = getattr(_active, "metadata", None)
        if found is not None:
            found.append(kwargs.get("runtime_metadata"))
        return original(*args, **kwargs)

    _surround(RuntimeWrapper, "post_compile", post_compile)


def _replace_cudagraphify() -> None:
    from torch._inductor import compile_fx

    def cudagraphify(
        original: Any,
        model: Callable[..., Any],
        static_input_idxs: Sequence[int] = (),
        **kwargs: Any,
    ) -> Any:
        wrap = _current()
        if wrap is None:
            return original(model, static_input_idxs, **kwargs)
        return _call(wrap, model, static_input_idxs, kwargs)

    _surround(compile_fx, "cudagraphify", cudagraphify)


def _observe_partitions() -> None:
    """Keeps a graph's partition maps at hand while its partitions are handed to cudagraphify."""
    from torch._inductor import output_code

    def post_compile(
        original: Any, example_inputs: Any, compiled_graph: Any, *args: Any, **kwargs: Any
    ) -> None:
        _active.partitions = iter(compiled_graph.partition_maps or ())
        try:
            original(example_inputs, compiled_graph, *args, **kwargs)
        finally:
            _active.partitions = None

    _surround(output_code, "cudagraph_partition_post_compile", post_compile)


def _next_partition() -> Partition | None:
    maps = getattr(_active, "partitions", None)
    return None if maps is None else Partition.of(next(maps, None))


def _spare_the_tree_manager() -> None:
    """A backward graph that Inductor keeps out of CUDA graphs tells torch's own tree manager that
    a backward runs, and asserts that there is one. Under this hook there is none."""
    from torch._inductor import output_code

    def maybe_handle_backward_generation(original: Any, *args: Any, **kwargs: Any) -> None:
        if _current() is None:
            original(*args, **kwargs)

    _surround(output_code, "maybe_handle_backward_generation", maybe_handle_backward_generation)


def _call(
    wrap: Wrap, model: Callable[..., Any], static: Sequence[int], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    return wrap(
        model,
        static,
        device_index=kwargs["device_index"],
        is_backward=kwargs["is_backward"],
        is_inference=kwargs["is_inference"],
        mutated_input_idxs=kwargs.get("mutated_input_idxs", ()),
        partition=_next_partition(),
    )


def _make_policy() -> Any:
    from torch._inductor import cudagraph_utils

    class Policy(cudagraph_utils.CUDAGraphPolicy):
        def cudagraphify(
            self,
            model: Callable[..., Any],
            example_inputs: Sequence[Any],
            static_input_idxs: Sequence[int],
            **kwargs: Any,
        ) -> Callable[..., Any]:
            wrap = _current()
            return model if wrap is None else _call(wrap, model, static_input_idxs, kwargs)

        def should_wrap(self, compiled_graph: Any) -> bool:
            wrap = _current()
            if wrap is None:
                return False
            if not getattr(compiled_graph, "partition_maps", None):
                return True
            wrap_partitions(compiled_graph, wrap)
            return False

    return Policy()


def wrap_partitions(compiled_graph: Any, wrap: Wrap) -> None:
    """Wraps each partition of a compiled graph; what stands between them (CPU operations) stays
    where it is. Does nothing when Inductor itself found a reason against graphs."""
    from torch._inductor.cudagraph_utils import (
        CudagraphMetadata,
        get_partition_cudagraph_metadata,
    )
    from torch.utils._ordered_set import OrderedSet

    cached = compiled_graph.cudagraph_info
    if cached is None or cached.cudagraph_fail_reasons:
        return
    kwargs = compiled_graph.fx_kwargs
    whole = CudagraphMetadata(
        cached.placeholders,
        OrderedSet(kwargs["static_input_idxs"] or ()),
        compiled_graph.mutated_input_idxs,
        cached.stack_traces,
        {},
    )
    functions = []
    for partition in compiled_graph.partition_maps:
        metadata = get_partition_cudagraph_metadata(partition, whole)
        functions.append(
            functools.partial(
                wrap,
                static_input_idxs=tuple(metadata.static_input_idxs),
                device_index=next(iter(compiled_graph.device_idxs)),
                is_backward=kwargs["is_backward"],
                is_inference=kwargs["is_inference"],
                mutated_input_idxs=tuple(metadata.mutated_input_idxs),
                partition=Partition.of(partition),
            )
        )
    compiled_graph.recursively_apply_fns(functions)
