"""torch.compile(model, backend="pygraph", options={...}).

Options
  compiler  "inductor" (default), or "aot": AOTAutograd's graphs run operator by operator, the same
            path otherwise.
  require   "full": raise instead of falling back at compile time (no GPU, a CPU model, ...).
            Default "any".
  device    "cuda" (default), or "twin": CPU tensors, and the engine on its CPU twin. Everything but
            the clock is as on a GPU; the compiler is "aot" then.
  debug     "paranoid": the proof of a deployed graph is repeated every `debug_interval` calls
            (default 100). Default "off".
  max_programs  programs (sets of dynamic sizes) of one compiled graph that are kept; default 256,
            and no more than 16,384 nodes in all of them. A further one takes the place of the one
            used longest ago, if it comes up much more often. The first eight that come in quick
            succession are linked at once, others in a 200th of the time, and half of what replays
            have saved.
  programs_at_once  so many of those are linked as soon as their sizes have been seen often enough,
            however long that takes and however many nodes they have; default 0.
  arguments  "patched" (default), or "copied": tensors that change from call to call are copied to
            where the graph was captured with them. Slower: for measuring what patching is worth.
  backward_thread  "calling" (default): a backward runs on the thread that calls it, as long as the
            process uses one GPU (calling_thread.py); or "autograd": on a thread of autograd's.
  launch    "early" (default): a graph that writes nothing of the caller's, and indexes by nothing
            but arguments, is launched while Dynamo checks that it is the right one, where that
            pays (early.py). "checked": behind the guards. "always": as "early", whatever it costs.
  capture_at    the sight of a set of sizes at which it is captured; default 2.
  capture_sizes a list of sizes: those are captured at their first sight, and no others. A size is
            an integer or a tuple of integers: the dynamic sizes of a call that has all of them.
Every other option is passed to Inductor's config, as torch.compile(options=...) does.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pygraph.adapter import aot, devices, early, gateway, hook, registry, sources
from pygraph.adapter.graphed import PARANOID_INTERVAL, Graphed
from pygraph.adapter.pair import Pair, Role
from pygraph.adapter.partition import Partition
from pygraph.adapter.signatures import CAPTURE_AT, PROGRAMS, Policy, sizes_of

log = logging.getLogger("pygraph")

_CHOICES: dict[str, tuple[str, ...]] = {
    "compiler": ("inductor", "aot"),
    "require": ("any", "full"),
    "device": tuple(devices.TARGETS),
    "debug": ("off", "paranoid"),
    "arguments": ("patched", "copied"),
    "backward_thread": ("calling", "autograd"),
    "launch": ("early", "checked", "always"),
}

#: The least that an option may be which is an integer; of others 1.
_LEAST = {"programs_at_once": 0}


@dataclasses.dataclass
class Options:
    """Our own options, checked."""

    compiler: str = "inductor"
    require: str = "any"
    device: str = "cuda"
    debug: str = "off"
    debug_interval: int = PARANOID_INTERVAL
    arguments: str = "patched"
    backward_thread: str = "calling"
    launch: str = "early"
    max_programs: int = PROGRAMS
    programs_at_once: int = 0
    capture_at: int = CAPTURE_AT
    capture_sizes: Sequence[Any] = ()

    @property
    def target(self) -> devices.Target:
        return devices.TARGETS[self.device]


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
    ours, inductor = _split_options(options or {}, mode)
    target = ours.target
    reason = _reason_against(gm, example_inputs, target)
    if reason is not None:
        if ours.require == "full":
            raise RequirementNotMet(reason)
        registry.add_fallback(registry.next_name("not captured"), reason)
        return _compile(gm, example_inputs, ours.compiler, inductor)

    find_source = sources.finder(gm)
    listed = sizes_of(ours.capture_sizes)
    sizes = Policy(ours.max_programs, ours.capture_at, listed, ours.programs_at_once)
    graphs: list[Graphed] = []
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
        graph = Graphed(
            model,
            name=registry.next_name(role.value),
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
        whole.append(gateway.covers_everything(model))
        first.append(whole[-1] or gateway.comes_first(model))
        return graph.entry()

    with hook.observed_metadata() as metadata:
        pair = Pair(metadata, stays=ours.backward_thread == "calling")
        if ours.compiler == "aot":
            compiled = aot.compile_graph(gm, example_inputs, wrap, target.index)
        else:
            with hook.installed(wrap) as routed:
                compiled = _compile(gm, example_inputs, "inductor", inductor, routed)
    inert = len(metadata) == 1 and gateway.wrappers_are_inert(metadata[0])
    log.debug("wrappers: inert %s of %d, whole %s, first %s", inert, len(metadata), whole, first)
    if not graphs or not graphs[0].direct_calls_allowed or not first[0]:
        return compiled
    permit = None
    if ours.launch != "checked":
        code, always = graphs[0].uncaptured.function, ours.launch == "always"
        checked = early.indices_are_checked(inductor)
        permit = functools.partial(early.permit, code, always, checked)
    if inert and whole == [True] and graphs[0].role is Role.INFERENCE:
        return gateway.through(compiled, graphs[0], permit)
    return gateway.ahead(compiled, graphs[0], permit)


def _split_options(options: dict[str, Any], mode: str | None) -> tuple[Options, dict[str, Any]]:
    ours, inductor = Options(), dict(options)
    for name in (field.name for field in dataclasses.fields(Options)):
        if name not in inductor:
            continue
        value = inductor.pop(name)
        least = _LEAST.get(name, 1)
        if name in _CHOICES and value not in _CHOICES[name]:
            raise ValueError(f"option {name!r} is {value!r}; it must be one of {_CHOICES[name]}")
        if name == "capture_sizes":
            sizes_of(value)
        elif name not in _CHOICES and (type(value) is not int or value < least):
            raise ValueError(
                f"option {name!r} is {value!r}; it must be an integer of {least} or more"
            )
        setattr(ours, name, value)
    only = ours.target.compiler
    if only is not None:
        if options.get("compiler", only) != only:
            raise ValueError(
                f"option 'compiler' is {ours.compiler!r}; device {ours.device!r} works with "
                f"{only!r} only"
            )
        ours.compiler = only
    if mode is not None and mode != "default":
        from torch._inductor import list_mode_options

        inductor = {**list_mode_options(mode), **inductor}
    return ours, inductor


def _reason_against(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], target: devices.Target
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
    from torch._inductor.compile_fx import compile_fx

    routed = dict(routed or {})
    patches = {**options, **routed.pop("config_patches", {})}
    compiled: Callable[..., Any] = compile_fx(
        gm, example_inputs, config_patches=patches or None, **routed
    )
    return compiled
