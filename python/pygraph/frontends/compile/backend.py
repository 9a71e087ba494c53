"""torch.compile(model, backend="pygraph", options={...}).

The options are those of options.Options.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.decide.signatures import SignaturePolicy, sizes_of
from pygraph.frontends.compile import aot, entry_point, generated, hook, sources, speculation
from pygraph.frontends.compile.options import split as split_options
from pygraph.runtime import devices, registry
from pygraph.runtime.compiled_graph import CompiledGraph
from pygraph.runtime.paranoid import Paranoid
from pygraph.runtime.partition import Partition
from pygraph.runtime.training_pair import Role, TrainingPair
from pygraph.runtime.warn import no_graphs, warn_once
from pygraph.torch_private import aot as aot_names
from pygraph.torch_private import inductor as inductor_names

log = logging.getLogger("pygraph")

for _entry in (_engine.Dispatcher, Paranoid):
    aot_names.boxed(_entry)  # what CompiledGraph.entry() returns


class RequirementNotMet(RuntimeError):
    """`options={"require": "full"}` was given and a compiled graph cannot run as a CUDA graph."""


def backend(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: str | None = None,
    **_: Any,
) -> Callable[..., Any]:
    """Compiles one FX graph from Dynamo. Never raises where torch.compile's default would not,
    unless `require` asks for it or an option is wrong."""
    ours, inductor = split_options(options or {}, mode)
    if ours.compiler == "aot" and inductor:
        names = ", ".join(map(repr, sorted(inductor)))
        warn_once(f"options without effect: {names}. Compiler 'aot' does not use Inductor")
    target = ours.target
    reason = _reason_against(gm, example_inputs, target)
    if reason is not None:
        if ours.require == "full":
            raise RequirementNotMet(reason)
        no_graphs(reason if reason == devices.FORKED else f"{reason}. {target.advice()}")
        registry.add_fallback(registry.next_name("not captured"), reason, target.name)
        return _compile(gm, example_inputs, ours.compiler, inductor)

    find_source = sources.finder(gm)
    listed = sizes_of(ours.capture_sizes)
    sizes = SignaturePolicy(ours.max_programs, ours.capture_at, listed, ours.programs_at_once)
    graphs: list[CompiledGraph] = []
    whole: list[bool] = []
    first: list[bool] = []

    def wrap(
        model: Callable[..., Any],
        static_input_idxs: Sequence[int],
        *,
        device_index: int,
        is_backward: bool,
        is_inference: bool,
        mutated_input_idxs: Sequence[int],
        partition: Partition | None = None,
    ) -> Callable[..., Any]:
        role = Role.BACKWARD if is_backward else Role.INFERENCE if is_inference else Role.FORWARD
        graph = CompiledGraph(
            model,
            name=registry.next_name(role.value),
            holdings=generated.holdings_of(model),
            # What Inductor calls static of a backward is whatever was saved.
            static=() if is_backward else static_input_idxs,
            mutated=mutated_input_idxs,
            device=target.device(device_index),
            find_source=find_source,
            sizes=sizes,
            aligned=ours.compiler == "inductor",
            sure=static_input_idxs,
            paranoid=ours.debug_interval if ours.debug == "paranoid" else 0,
            role=role,
            pair=None if is_inference else pair,
            partition=partition,
            copied=ours.arguments == "copied",
        )
        registry.add(graph)
        if is_backward:
            pair.add_backward(partition)
            return graph.entry()
        graphs.append(graph)
        whole.append(entry_point.covers_everything(model))
        first.append(whole[-1] or entry_point.comes_first(model))
        return graph.entry()

    with hook.observed_metadata() as metadata:
        layout = functools.partial(aot.pair_layout, metadata)
        pair = TrainingPair(layout, stays=ours.backward_thread == "calling")
        if ours.compiler == "aot":
            compiled = aot.compile_graph(gm, example_inputs, wrap, target.index)
        else:
            with hook.installed(wrap) as routed:
                compiled = _compile(gm, example_inputs, "inductor", inductor, routed)
    inert = len(metadata) == 1 and aot_names.wrappers_are_inert(metadata[0])
    log.debug("wrappers: inert %s of %d, whole %s, first %s", inert, len(metadata), whole, first)
    if not graphs or not graphs[0].direct_calls_allowed or not first[0]:
        return compiled
    permit = None
    if ours.launch != "after_guards":
        code, always = graphs[0].fallback.function, ours.launch == "always"
        checked = speculation.indices_are_checked(inductor)
        permit = functools.partial(speculation.permit, code, always, checked)
    if inert and whole == [True] and graphs[0].role is Role.INFERENCE:
        return entry_point.past_wrappers(compiled, graphs[0], permit)
    return entry_point.before_wrappers(compiled, graphs[0], permit)


def _reason_against(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], target: devices.Platform
) -> str | None:
    """Why this FX graph is not worth or not fit for capture, before anything is compiled."""
    problem = target.problem()
    if problem is not None:
        return problem
    tensors = [x for x in example_inputs if isinstance(x, torch.Tensor)]
    tensors += [*gm.parameters(), *gm.buffers()]
    if tensors and target.index(tensors) is None:
        return f"no argument, parameter or buffer is {target.what}"
    return None


def _compile(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    compiler: str,
    options: dict[str, Any],
    routed: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """`options` are Inductor's; `routed`: what the hook gives compile_fx, if it is to be used."""
    if compiler == "aot":
        return aot.compile_graph(gm, example_inputs, None)
    routed = dict(routed or {})
    patches = {**options, **routed.pop("config_patches", {})}
    compiled: Callable[..., Any] = inductor_names.compile_fx()(
        gm, example_inputs, config_patches=patches or None, **routed
    )
    return compiled
