"""torch.compile(model, backend="pygraph", options={...}).

The options are those of options.Options.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from pygraph import _engine
from pygraph.decide.signatures import SignatureRules, sizes_of
from pygraph.frontends.compile import (
    aot,
    breaks,
    compilations,
    culprits,
    entry_point,
    generated,
    hook,
    scalars,
    sources,
    speculation,
)
from pygraph.frontends.compile.options import Options
from pygraph.frontends.compile.options import split as split_options
from pygraph.frontends.compile.parts import Transformed
from pygraph.reporting import Applied
from pygraph.runtime import devices, registry
from pygraph.runtime.compiled_graph import CompiledGraph, SourceFinder
from pygraph.runtime.crossing import NOTHING
from pygraph.runtime.paranoid import Paranoid
from pygraph.runtime.partition import Partition
from pygraph.runtime.requirement import RequirementNotMet
from pygraph.runtime.training_pair import Role, TrainingPair
from pygraph.runtime.warn import no_graphs, warn_once
from pygraph.torch_private import aot as aot_names
from pygraph.torch_private import dynamo
from pygraph.torch_private import inductor as inductor_names
from pygraph.transform import keep

log = logging.getLogger(__name__)

for _entry in (_engine.Dispatcher, Paranoid):
    aot_names.boxed(_entry)  # what CompiledGraph.as_callable() returns


def backend(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: str | None = None,
    **_: Any,
) -> Callable[..., Any]:
    """Compiles one FX graph from Dynamo. Never raises where torch.compile's default would not,
    unless an option is wrong; with `require`, what it returns may raise RequirementNotMet."""
    ours, inductor = _split(options or {}, mode)
    reason = _reason_against(gm, example_inputs, ours.platform)
    kept: list[Applied] = []
    if reason is not None or keep.NAME not in ours.passes:
        scalars.leave(gm)
    else:
        kept = scalars.take_away(gm, generated=ours.compiler == "inductor")
    problem = _unmet(gm, reason) if ours.require == "full" else None
    if problem is not None:
        return _raising(problem)
    if reason is not None:
        _tell_no_graph(reason, ours)
        return _compile(gm, example_inputs, ours, inductor)
    with hook.observed_metadata() as metadata, _traced(ours):
        made = _Made(ours, sources.finder(gm), metadata, kept)
        try:
            compiled = _compile(gm, example_inputs, ours, inductor, made)
        except RequirementNotMet as error:
            return _raising(error)
    made.way_in = _WayIn(compiled, made, inductor)
    return made.way_in.called


def _keeps(asked: dynamo.Asked) -> bool:
    """Whether a frame is compiled for this backend, with the pass that takes reads of numbers
    away."""
    if asked.backend is not backend:
        return False
    try:
        ours, _ = split_options(asked.options.get("options") or {}, asked.options.get("mode"))
    except ValueError:  # the backend says so
        return False
    return keep.NAME in ours.passes and ours.platform.problem() is None


scalars.install(_keeps)


def _unmet(gm: torch.fx.GraphModule, reason: str | None) -> RequirementNotMet | None:
    """What `require="full"` is not met for, before anything is compiled. `reason`: why this FX
    graph is not fit for capture."""
    if reason is not None:
        return RequirementNotMet(reason)
    found = breaks.around(gm)
    if found is None:
        return None
    reason = f"Dynamo breaks the function into several graphs: {found.reason}"
    return RequirementNotMet(reason, source=found.source, remedy=breaks.REMEDY)


def _raising(error: RequirementNotMet) -> Callable[..., Any]:
    """What Dynamo is to call: the error comes to the caller as it is, at this call and later ones.
    Raised here, Dynamo would wrap it into one of its own."""

    def refused(*_: Any) -> Any:
        raise error.with_traceback(None)

    return refused


def _traced(ours: Options) -> AbstractContextManager[None]:
    """torch's cache of traced functions hands out code of which no operator is known."""
    return aot_names.without_cache() if ours.require == "full" else nullcontext()


def _split(options: dict[str, Any], mode: str | None) -> tuple[Options, dict[str, Any]]:
    """PyGraph's options and Inductor's. Raises for one that is wrong."""
    ours, inductor = split_options(options, mode)
    if ours.compiler == "aot" and inductor:
        names = ", ".join(map(repr, sorted(inductor)))
        warn_once(f"options without effect: {names}. Compiler 'aot' does not use Inductor")
    return ours, inductor


def _reason_against(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], platform: devices.Platform
) -> str | None:
    """Why this FX graph is not worth or not fit for capture, before anything is compiled."""
    problem = platform.problem()
    if problem is not None:
        return problem
    tensors = [x for x in example_inputs if isinstance(x, torch.Tensor)]
    tensors += [*gm.parameters(), *gm.buffers()]
    if tensors and platform.index(tensors) is None:
        return f"no argument, parameter or buffer is {platform.what}"
    return None


def _tell_no_graph(reason: str, ours: Options) -> None:
    no_graphs(reason if reason == devices.FORKED else f"{reason}. {ours.platform.advice()}")
    registry.add_fallback(registry.next_name("not captured"), reason, ours.platform.name)


class _Made:
    """The compiled graphs that become of one FX graph: one of inference, or a training pair. A
    backward may come long after the forward, at its first call."""

    def __init__(
        self,
        ours: Options,
        find_source: SourceFinder,
        metadata: list[Any],
        kept: Sequence[Applied] = (),
    ) -> None:
        """`metadata`: see hook.observed_metadata. `kept`: what was done in Dynamo's graph."""
        self.ours, self.metadata = ours, metadata
        self._kept = list(kept)
        self._find_source = find_source
        listed = sizes_of(ours.capture_sizes)
        self._sizes = SignatureRules(
            ours.max_programs, ours.capture_at, listed, ours.programs_at_once
        )
        layout = functools.partial(aot.pair_layout, metadata)
        self._pair = TrainingPair(layout, stays=ours.backward_thread == "calling")
        self._models: list[Any] = []
        self._compilation = compilations.Compilation()
        self.units = culprits.Units(self._replaced, self._pair.set_backward_aside)
        #: No backwards, which no caller calls.
        self.graphs: list[culprits.Wrapped] = []
        self.way_in: _WayIn | None = None  #: None: not compiled yet

    def around(self, compile_it: Callable[[], Any], graph_module: Any, is_backward: bool) -> Any:
        """Compiles one graph of ATen operators, and looks at it (hook.Around)."""
        before, outer = len(self._models), self._compilation
        found = compilations.look(graph_module, is_backward, self.ours.platform.on_host)
        self._compilation = found
        try:
            compiled = compile_it()
        finally:
            self._compilation = outer
        compilations.conclude(found, self._models[before:], compiled)
        problem = found.problem()
        if problem is not None and self.ours.require == "full":
            raise problem
        return compiled

    def wrap(
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
    ) -> Callable[..., Any]:
        """What runs in place of a compiled callable (hook.Wrap)."""
        ours, unit = self.ours, self.units.now
        tentative = unit is not None and unit.tentative
        if tentative and isinstance(model, (_engine.Dispatcher, Paranoid)):
            unit.rewrapped = True  # type: ignore[union-attr]
            return model
        whole, first = _reach(model)
        crossing = NOTHING
        if transformed is not None:
            crossing = transformed.crossing(model, partition)
            whole = whole and transformed.transparent
            first = first and transformed.begins_with_body
        role = Role.BACKWARD if is_backward else Role.INFERENCE if is_inference else Role.FORWARD
        graph = CompiledGraph(
            model,
            name=registry.next_name(role.value),
            holdings=generated.holdings_of(model),
            # What Inductor calls static of a backward is whatever was saved.
            constants=() if is_backward else static_input_idxs,
            mutated=mutated_input_idxs,
            device=ours.platform.device(device_index),
            find_source=self._find_source,
            sizes=self._sizes,
            aligned=ours.compiler == "inductor",
            sure=static_input_idxs,
            paranoid=ours.debug_interval if ours.debug == "paranoid" else 0,
            role=role,
            pair=None if is_inference else self._pair,
            partition=partition,
            copied=ours.arguments == "copied",
            crossing=crossing,
            refusal=self._compilation.refusal if ours.require == "full" else None,
            # An operator outside of graphs would not meet the requirement.
            select=ours.selects,
            lanes=ours.lanes,
            on_culprit=None if unit is None or ours.require == "full" else unit.on_culprit,
        )
        graph.report.passes = [] if self._models else list(self._kept)
        graph.report.passes += applied if transformed is None else transformed.split.applied
        self._models.append(model)
        self._compilation.graphs.append(graph.report.name)
        if is_backward:
            self._pair.add_backward(partition)
        wrapped = culprits.Wrapped(graph, whole, first)
        if unit is not None:
            unit.add(wrapped)
        if not tentative:
            registry.add(graph)
            if not is_backward:
                self.graphs.append(wrapped)
        return graph.as_callable()

    def _replaced(self, unit: culprits.Unit) -> None:
        """A unit was compiled once more: the new one."""
        if not unit.source.is_backward:
            self.graphs = unit.graphs
            if self.way_in is not None:
                self.way_in.lead()


def _reach(model: Callable[..., Any]) -> tuple[bool, bool]:
    """Whether it is all of its unit, and whether nothing but moved names comes before it."""
    if isinstance(model, aot.OnePiece):
        return False, model.first
    whole = entry_point.covers_everything(model)
    return whole, whole or entry_point.comes_first(model)


def _compile(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    ours: Options,
    inductor: dict[str, Any],
    made: _Made | None = None,
) -> Callable[..., Any]:
    """What Dynamo is to call, each compiled callable below it wrapped; None: left as it is."""
    wrap, around, units = (
        (None, None, None) if made is None else (made.wrap, made.around, made.units)
    )
    if ours.compiler == "aot":
        find_device = ours.platform.index
        return aot.compile_graph(
            gm, example_inputs, wrap, units, find_device, passes=ours.passes, around=around
        )
    hooked: AbstractContextManager[dict[str, Any]]
    hooked = (
        nullcontext({}) if wrap is None else hook.installed(wrap, around, ours.passes, inductor)
    )
    named = units is not None and culprits.named_beforehand(gm)
    with hooked as extra, aot_names.without_cache() if named else nullcontext():
        apart = inductor_names.buffers_apart() if ours.lanes.numbers else {}
        patches = {**apart, **inductor, **extra.pop("config_patches", {})}
        if units is not None:
            extra["inner_compile"] = culprits.watched(units, extra["inner_compile"], patches)
        compiled: Callable[..., Any] = inductor_names.compile_fx()(
            gm, example_inputs, config_patches=patches or None, **extra
        )
    return compiled


class _WayIn:
    """What Dynamo calls: the compiled function, or an entry point in front of it, where its first
    graph can be reached sooner than through all of it."""

    def __init__(self, compiled: Callable[..., Any], made: _Made, inductor: dict[str, Any]) -> None:
        self._made, self._inductor = made, inductor
        self._connector: entry_point.Connector | None = None
        destination = self._destination()
        if destination is not None:
            self._connector = entry_point.Connector(
                compiled, destination, lambda: made.units.waiting
            )
        self.called = compiled if self._connector is None else self._connector.entry_point

    def lead(self) -> None:
        """Other graphs stand behind the compiled function from now on."""
        if self._connector is not None:
            self._connector.lead(self._destination())

    def _destination(self) -> entry_point.Destination | None:
        metadata, graphs = self._made.metadata, self._made.graphs
        inert = len(metadata) == 1 and aot_names.wrappers_are_inert(metadata[0])
        log.debug("wrappers: inert %s of %d, %s", inert, len(metadata), graphs)
        if not graphs or not graphs[0].graph.direct_calls_allowed or not graphs[0].first:
            return None
        graph = graphs[0].graph
        past = inert and len(graphs) == 1 and graphs[0].whole and graph.role is Role.INFERENCE
        ours = self._made.ours
        return entry_point.Destination(
            graph,
            before_wrappers=not past,
            ask=_permit(graph, ours, self._inductor),
            past_guards=ours.launch == "before_guards",
            arguments=aot_names.arguments_of(metadata[0]) if past else None,
            counted=aot_names.counted_up(metadata[0]) if past else (),
        )


def _permit(
    graph: CompiledGraph, ours: Options, inductor: dict[str, Any]
) -> entry_point.AskPermit | None:
    """Tells whether the graph may be launched before the guards; None: none is to be."""
    if ours.launch == "after_guards":
        return None
    checked = inductor_names.checks_indices(inductor)
    code, always = graph.fallback.function, ours.launch == "always"
    return functools.partial(speculation.permit, code, always, checked)
