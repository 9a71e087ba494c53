"""Inductor. It takes seconds to import, so its names are looked up when they are asked for; those
that are replaced (hook.py) come with the place where they stand."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from pygraph.torch_private.dispatch import calls_one_of
from pygraph.torch_private.names import place, private

ALLOCATORS = ("empty_strided_cuda", "empty_strided_cuda_pinned", "alloc_from_pool")
"""What generated code calls the functions that it takes buffers from."""

_PARTITIONED_AT = "custom_should_partition_ops"
"""What the setting is called."""


def config() -> Any:
    return private("torch._inductor:config")


def with_graphs() -> dict[str, Any]:
    """Settings by which code is compiled for CUDA graphs. From torch 2.12 on there is a policy
    besides, which is not to be asked."""
    policy = {"cudagraph_policy": None} if hasattr(config(), "cudagraph_policy") else {}
    return {"triton.cudagraphs": True, **policy}


def buffers_apart() -> dict[str, Any]:
    """Settings by which generated code gives no buffer's memory to a later one: who writes that
    would have to wait for who reads this."""
    return {"allow_buffer_reuse": False}


def apart(mark: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that compile what these do, but whose results no cache has for them: the key of
    every cache has them in it. `mark` is told apart from others by being like the name of an
    operator to partition at."""
    return _partitioned_at([f"{_MARK}{mark}"], settings)


_MARK = "pygraph::"


def together(mark: str | None = None) -> AbstractContextManager[Any]:
    """Within it the same without a mark, or with another one: without, the keys are the ones that
    torch makes."""
    names = getattr(config(), _PARTITIONED_AT)
    left = [each for each in names if not each.startswith(_MARK)]
    left += [] if mark is None else [f"{_MARK}{mark}"]
    context: AbstractContextManager[Any] = config().patch({_PARTITIONED_AT: left})
    return context


def compile_on_host(module: Any, examples: Sequence[Any]) -> Any:
    """Compiles a graph of the host, within a compilation."""
    boxed_bool = private("torch._inductor.utils:BoxedBool")
    with config().patch({"triton.cudagraphs": False}):
        return compile_fx_inner()(
            module, list(examples), cudagraphs=boxed_bool(False), is_inference=True
        )


def checks_indices(options: Mapping[str, Any]) -> bool:
    """Whether code that is compiled now, with these settings, checks each index that comes from
    data."""
    name = "assert_indirect_indexing"
    return bool(options.get(name, getattr(config(), name)))


def list_mode_options() -> Any:
    return private("torch._inductor:list_mode_options")


def compile_fx() -> Any:
    return private("torch._inductor.compile_fx:compile_fx")


def compile_fx_inner() -> Any:
    return private("torch._inductor.compile_fx:compile_fx_inner")


def cudagraphify() -> tuple[Any, str]:
    return place("torch._inductor.compile_fx:cudagraphify")


def graph_is_stored() -> tuple[Any, str]:
    """Where a compiled graph goes to Inductor's cache, pickled with what it has for attributes."""
    return place("torch._inductor.codecache:FxGraphCache._save_graph")


def graph_is_handed_over() -> tuple[Any, str]:
    """Where a graph that has no partitions is handed to cudagraphify."""
    return place("torch._inductor.output_code:cudagraph_post_compile")


def partitions_are_handed_over() -> tuple[Any, str]:
    """Where the partitions of a graph are handed to cudagraphify, one by one."""
    return place("torch._inductor.output_code:cudagraph_partition_post_compile")


def maps_of_partitions(compiled_graph: Any) -> Sequence[Any]:
    """One for each partition of a graph, in their order; none where it has no partitions."""
    return compiled_graph.partition_maps or ()


def positions(partition_map: Any) -> tuple[Sequence[Any], Sequence[Any]] | None:
    """Of a GraphPartitionMap (torch/_inductor/utils.py): which of the graph's arguments and results
    each of the partition's is. None: it is of an unknown form."""
    inputs = getattr(partition_map, "input_index_mapping", None)
    outputs = getattr(partition_map, "output_index_mapping", None)
    return None if inputs is None or outputs is None else (inputs, outputs)


def reasons_against_graphs(compiled: Any) -> list[str]:
    """Why Inductor keeps what it has compiled out of CUDA graphs, as far as it says."""
    said = getattr(compiled, "disabled_cudagraphs_reason", None)
    known = getattr(compiled, "cudagraph_info", None)
    failed = getattr(known, "cudagraph_fail_reasons", None) or ()
    prefix = "skipping cudagraphs due to "
    return [str(each).removeprefix(prefix) for each in (said, *failed) if each]


def partitions_are_chosen() -> tuple[Any, str]:
    """Where Inductor's scheduler says why a node cannot be in a CUDA graph, if so."""
    return place("torch._inductor.scheduler:Scheduler.should_partition")


def devices_are_looked_at() -> tuple[Any, str]:
    """Where Inductor says why a graph on some devices, the keys of a mapping, cannot be in a CUDA
    graph, if so."""
    return place("torch._inductor.cudagraph_utils:check_multiple_devices_or_any_cpu_nodes")


def copies_between_gpus(node: Any) -> bool:
    """Whether a node of the scheduler copies from one GPU to another."""
    kernel = getattr(node, "node", None)
    if not isinstance(kernel, private("torch._inductor.ir:DeviceCopy")):
        return False
    ends = [kernel.get_device(), *(each.get_device() for each in kernel.inputs)]
    return all(each is not None and each.type == "cuda" for each in ends)


def partitions_graphs() -> bool:
    """Whether graphs are cut around what a CUDA graph cannot have."""
    return bool(config().graph_partition)


def without(operators: Collection[str]) -> dict[str, Any]:
    """Settings by which code is compiled with partitions around these operators. What Inductor does
    by them is not enough (runs_one_of), but they are part of the keys of its caches."""
    return _partitioned_at(operators, {})


def _partitioned_at(names: Collection[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The setting of which operators to partition at, with these besides those that `settings`, or
    else Inductor's own, name."""
    own = settings.get(_PARTITIONED_AT, getattr(config(), _PARTITIONED_AT))
    return {_PARTITIONED_AT: [*own, *names]}


def runs_one_of(operators: Collection[str], node: Any) -> bool:
    """Whether a node of the scheduler calls one of these operators in place of generated code.
    Inductor's own setting holds for operators that it has no lowering for (FallbackKernel), and not
    for those that it may choose a library's kernel for, such as grouped matrix products."""
    kernel = getattr(node, "node", None)
    if not isinstance(kernel, private("torch._inductor.ir:ExternKernel")):
        return False
    called = [getattr(kernel, "op_overload", None)]
    called += [each.target for each in kernel.get_origins() if each.op == "call_function"]
    return any(calls_one_of(operators, each) for each in called)


def callable_within(compiled: Any) -> Any:
    """What an OutputCode calls (torch/_inductor/output_code.py); None where it calls nothing."""
    return getattr(compiled, "current_callable", None)


def call_within(compiled: Any, other: Any) -> None:
    """Has an OutputCode call what another one calls from now on. Where that one dies it takes the
    partitions with it that it calls (CompiledFxGraph.__del__), so it is kept."""
    compiled.current_callable = other.current_callable
    compiled.kept_by_pygraph = other


def output_strides(compiled: Any) -> Any:
    """Of an OutputCode's results. Later graphs may have been compiled for them."""
    return getattr(compiled, "output_strides", None)


def backward_is_announced() -> tuple[Any, str]:
    """Where torch's own manager of CUDA graphs is told that a backward runs."""
    return place("torch._inductor.output_code:maybe_handle_backward_generation")


_KERNELS = "torch._inductor.runtime.triton_heuristics"


def kernel_class() -> Any:
    """The class of what generated code launches Triton's kernels by, with run(); None: no code has
    been generated that does."""
    return private(f"{_KERNELS}:CachingAutotuner") if _KERNELS in sys.modules else None


def parameters_of(kernel: Any) -> tuple[list[str], Collection[str]] | None:
    """The names of what a kernel's run() is given, in order, and those that it is said to write.
    None: it is the program's own, whose names say nothing."""
    if kernel.custom_kernel:
        return None
    signature: Mapping[str, Any] = kernel.triton_meta["signature"]
    names = [name for name, kind in signature.items() if kind != "constexpr"]
    return names, kernel.mutated_arg_names
