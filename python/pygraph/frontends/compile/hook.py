"""The hook below Inductor.

It makes Inductor hand every compiled callable that it would put into a CUDA graph to `wrap`:
`torch._inductor.compile_fx.cudagraphify` is replaced. output_code.py imports it inside the function
at each post-compile, so whole graphs, partitions and cache hits all come through it; for partitions
in the order of the graph's partition maps.

From torch 2.12 on Inductor has a CUDAGraphPolicy for this, too. A policy is given the whole
callable even where Inductor partitioned it around CPU operations; one that declines, to wrap
partitions itself, turns CUDA graphs off for the backward as well. So there must be none here.

The replacement stays in place for the life of the process and acts only inside `installed()`:
other compilations with torch's own CUDA graphs are not touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import torch

from pygraph.frontends.compile.parts import (
    Transformed,
    compile_in_parts,
    only_moves,
    run_by_operators,
)
from pygraph.reporting import Applied
from pygraph.reporting.text import first_line
from pygraph.runtime import notes
from pygraph.runtime.partition import Partition, Position
from pygraph.runtime.requirement import RequirementNotMet
from pygraph.torch_private import aot, inductor
from pygraph.torch_private.dispatch import tree_leaves
from pygraph.torch_private.replacing import surround
from pygraph.transform.pipeline import edition, transform
from pygraph.transform.split import Split

log = logging.getLogger(__name__)

_NOT_TRANSFORMED = "a graph is compiled as it is, for its transformed one could not be"


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
        transformed: Transformed | None = None,
        applied: Sequence[Applied] = (),
    ) -> Callable[..., Any]: ...


_active = threading.local()


def _current() -> Wrap | None:
    return getattr(_active, "wrap", None)


class Around(Protocol):
    """Is called for each graph of ATen operators, in place of its compilation, which it makes."""

    def __call__(
        self, compile_it: Callable[[], Any], graph_module: Any, is_backward: bool
    ) -> Any: ...


@contextlib.contextmanager
def installed(
    wrap: Wrap,
    around: Around | None = None,
    passes: Collection[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Hands the compilations of this thread to `wrap`, each graph transformed by the `passes`;
    yields what compile_fx is to be given for it, beside the user's own `settings` of Inductor. A
    backward graph may be compiled long after, at its first call and on autograd's thread: hence the
    `inner_compile`, which hands them over wherever and whenever it runs.

    A cache that has a graph's code does not call `inner_compile`. So everything compiled here has a
    key of its own in AOTAutograd's cache, with the passes and their edition in it: nobody finds
    untransformed code who wants the other, or the reverse. A graph in several parts is nothing
    that this cache can store, and is kept out of it. Inductor's cache goes by the graph that it is
    given, which is the transformed one, and by a mark for those on several GPUs: torch's own CUDA
    graphs have no use for them."""
    _replace_cudagraphify()
    _store_what_was_applied()
    _observe_graphs()
    _spare_the_tree_manager()
    _keep_gpus_together()
    _choose_partitions()
    with _handed_to(wrap, cached=bool(passes)):
        patches = inductor.with_graphs()
        if passes or torch.cuda.device_count() > 1:
            patches |= inductor.apart("_".join([*sorted(passes), edition()]), settings or {})
        yield {"config_patches": patches, "inner_compile": _inner_compile(wrap, around, passes)}


@contextlib.contextmanager
def _handed_to(
    wrap: Wrap | None, transformed: Transformed | None = None, cached: bool = False
) -> Iterator[None]:
    """`cached`: a graph that comes to `wrap` is from a cache, and what the passes have done about
    it stands there."""
    previous = _current(), getattr(_active, "transformed", None), getattr(_active, "cached", False)
    _active.wrap, _active.transformed, _active.cached = wrap, transformed, cached
    try:
        yield
    finally:
        _active.wrap, _active.transformed, _active.cached = previous


def _inner_compile(
    wrap: Wrap, around: Around | None, passes: Collection[str]
) -> Callable[..., Any]:
    compile_fx_inner = inductor.compile_fx_inner()

    def compile_it(made: Transformed | None, gm: Any, *args: Any, **kwargs: Any) -> Any:
        code = functools.partial(compile_fx_inner, gm, *args, **kwargs)
        with _handed_to(wrap, made):
            return code() if around is None else around(code, gm, kwargs.get("is_backward", False))

    @functools.wraps(compile_fx_inner)
    def inner_compile(gm: Any, *args: Any, **kwargs: Any) -> Any:
        several = _on_several_gpus(gm)
        with inductor.together("gpus" if several else None), _told_of_several_gpus(several):
            return compile_graph(gm, *args, **kwargs)

    def compile_graph(gm: Any, *args: Any, **kwargs: Any) -> Any:
        found = transform(gm, passes, generated=True, tell=notes.note)
        if found is not None:
            try:
                return compile_transformed(found, *args, **kwargs)
            except RequirementNotMet:
                raise
            except Exception as error:  # what it is, compiling the graph as it is will show
                log.exception("a transformed graph could not be compiled; please report this")
                notes.note(f"{_NOT_TRANSFORMED}: {first_line(str(error))}")
        return compile_it(None, gm, *args, **kwargs)

    def compile_transformed(found: Split, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        made = Transformed(found)
        static = {*kwargs.pop("static_input_idxs", ())} - found.staged

        def compile_body(body: Any, examples: list[Any]) -> Any:
            kept = range(min(found.arguments, len(example_inputs)))
            given = [
                example_inputs[i] if i in kept and i not in found.staged else example
                for i, example in enumerate(examples)
            ]
            with aot.strides_kept(found.strides_of_results):
                return compile_it(made, body, given, static_input_idxs=sorted(static), **kwargs)

        return compile_in_parts(made, compile_body, _compile_host)

    return inner_compile


def _compile_host(module: Any, examples: Sequence[Any]) -> Any:
    if only_moves(module.graph):
        return run_by_operators(module)
    with _handed_to(None), aot.strides_kept(None):
        return inductor.compile_on_host(module, examples)


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


def _observe_runtime_wrapper() -> None:
    def post_compile(original: Any, *args: Any, **kwargs: Any) -> Any:
        found = getattr(_active, "metadata", None)
        if found is not None:
            found.append(aot.metadata_given(kwargs))
        return original(*args, **kwargs)

    surround(aot.wrapper_is_made(), post_compile)


def _replace_cudagraphify() -> None:
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

    surround(inductor.cudagraphify(), cudagraphify)


def _observe_graphs() -> None:
    """While a graph is handed to cudagraphify, whole or in partitions, keeps at hand the maps of
    the partitions, and what the passes have done about a graph from a cache."""

    def post_compile(
        original: Any, example_inputs: Any, compiled_graph: Any, *args: Any, **kwargs: Any
    ) -> None:
        stored = getattr(compiled_graph, _APPLIED, ()) if getattr(_active, "cached", False) else ()
        _active.applied = [Applied(*each) for each in stored]
        _active.partitions = iter(inductor.maps_of_partitions(compiled_graph))
        try:
            original(example_inputs, compiled_graph, *args, **kwargs)
        finally:
            _active.applied, _active.partitions = (), None

    surround(inductor.graph_is_handed_over(), post_compile)
    surround(inductor.partitions_are_handed_over(), post_compile)


_APPLIED = "_pygraph_applied"


def _store_what_was_applied() -> None:
    """Inductor's cache keeps with a graph what the passes have done about it, for the report of a
    process that finds the graph there: as tuples, which are read without PyGraph, too."""

    def save(original: Any, key: Any, compiled_graph: Any, *args: Any, **kwargs: Any) -> Any:
        made = getattr(_active, "transformed", None)
        if made is not None:
            applied = [dataclasses.astuple(each) for each in made.split.applied]
            setattr(compiled_graph, _APPLIED, applied)
        return original(key, compiled_graph, *args, **kwargs)

    surround(inductor.graph_is_stored(), save)


def _next_partition() -> Partition | None:
    maps = getattr(_active, "partitions", None)
    return None if maps is None else partition_of(next(maps, None))


def partition_of(partition_map: Any) -> Partition | None:
    """One of Inductor's maps as one of ours; None when it is of an unknown form."""
    positions = inductor.positions(partition_map)
    if positions is None:
        return None
    inputs, outputs = positions
    return Partition(tuple(inputs), tuple(map(_last, outputs)))


def _last(outputs: Any) -> Position:
    """Of a partition's result that is several of the graph's, the last. From torch 2.14 on the map
    lists them all; before, it had the last."""
    if isinstance(outputs, list):
        return outputs[-1] if outputs else None
    return cast(Position, outputs)


@contextlib.contextmanager
def kept_outside(operators: Collection[str]) -> Iterator[None]:
    """While on, this thread compiles code whose partitions are cut around these operators."""
    previous = getattr(_active, "outside", ())
    _active.outside = operators
    try:
        with inductor.config().patch(inductor.without(operators)):
            yield
    finally:
        _active.outside = previous


def _choose_partitions() -> None:
    """Around what captures have failed in, and not around copies from one GPU to another."""

    def should_partition(original: Any, scheduler: Any, node: Any, *args: Any, **kw: Any) -> Any:
        if getattr(_active, "several_gpus", False) and inductor.copies_between_gpus(node):
            return None
        reason = original(scheduler, node, *args, **kw)
        outside = getattr(_active, "outside", ())
        if reason is None and outside and inductor.runs_one_of(outside, node):
            return "a capture has failed in it"
        return reason

    surround(inductor.partitions_are_chosen(), should_partition)


def _on_several_gpus(gm: Any) -> bool:
    """Whether a graph of ATen operators has tensors on more than one."""
    values = (leaf for node in gm.graph.nodes for leaf in tree_leaves(node.meta.get("val")))
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    return len({each.device for each in tensors if each.device.type == "cuda"}) > 1


@contextlib.contextmanager
def _told_of_several_gpus(several: bool) -> Iterator[None]:
    """While on, this thread compiles a graph that works on several, or one that does not."""
    previous = getattr(_active, "several_gpus", False)
    _active.several_gpus = several
    try:
        yield
    finally:
        _active.several_gpus = previous


def _keep_gpus_together() -> None:
    """Inductor has nothing against several GPUs in one graph."""

    def check(original: Any, nodes_by_device: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_active, "several_gpus", False):
            others = [device for device in nodes_by_device if device.type == "cuda"][1:]
            left = (each for each in nodes_by_device.items() if each[0] not in others)
            nodes_by_device = dict(left)
        return original(nodes_by_device, *args, **kwargs)

    surround(inductor.devices_are_looked_at(), check)


def _spare_the_tree_manager() -> None:
    """A backward graph that Inductor keeps out of CUDA graphs tells torch's own tree manager that
    a backward runs, and asserts that there is one. Under this hook there is none."""

    def maybe_handle_backward_generation(original: Any, *args: Any, **kwargs: Any) -> None:
        if _current() is None:
            original(*args, **kwargs)

    surround(inductor.backward_is_announced(), maybe_handle_backward_generation)


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
        transformed=getattr(_active, "transformed", None),
        applied=getattr(_active, "applied", ()),
    )
