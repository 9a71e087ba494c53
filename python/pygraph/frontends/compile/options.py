"""The options of `torch.compile(model, backend="pygraph", options={...})`, and their checks."""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pygraph.capturing.lanes import LaneOptions
from pygraph.decide import lanes
from pygraph.decide.lanes import Parallel
from pygraph.decide.selection import Select
from pygraph.decide.signatures import sizes_of
from pygraph.runtime import devices
from pygraph.torch_private import inductor as inductor_names
from pygraph.transform import pipeline


@dataclasses.dataclass
class Options:
    """PyGraph's own options. Every other one must be a name of torch._inductor.config, such as
    "max_autotune" or "triton.unique_kernel_names", and goes there. An option that is neither is an
    error. With the compiler "aot" a setting of Inductor has no effect, which is said once."""

    compiler: Literal["inductor", "aot"] = "inductor"
    """"aot": AOTAutograd's graphs run operator by operator; the path is the same otherwise."""

    require: Literal["any", "full"] = "any"
    """"full": RequirementNotMet is raised where work runs outside of graphs for good: where graphs
    are ruled out (no GPU, a model on the CPU, an unsupported torch), where Dynamo breaks the
    function, where Inductor leaves work outside, and where no graph can be made for a call's sizes.
    "any": a warning says so once, and the program runs without."""

    device: Literal["cuda", "twin"] = "cuda"
    """"twin": the tensors are on the CPU, and the engine works on its CPU twin. Everything but the
    clock is as on a GPU. The compiler is "aot" then."""

    debug: Literal["off", "paranoid"] = "off"
    """"paranoid": the proof of a graph in use is repeated every `debug_interval` calls, and a graph
    that fails it is given up."""

    debug_interval: int = 100
    """Calls from one repeated proof to the next, with debug="paranoid" only."""

    arguments: Literal["patched", "copied"] = "patched"
    """"copied": tensors that change from call to call are copied to where the graph was captured
    with them, as torch does. That is slower, and measures what patching is worth."""

    backward_thread: Literal["calling", "autograd"] = "calling"
    """"calling": a backward runs on the thread that calls it, as long as the process uses one GPU.
    "autograd": it runs on a thread of autograd's, as torch has it."""

    transform: Literal["all", "none"] | Sequence[str] = "all"
    """The passes that take obstacles out of a graph before it is compiled: all of them, none, or
    those named ("keep", "predicate", "fold", "count", "bring", "fetch"; `pygraph.transform`
    describes each)."""

    launch: Literal["before_guards", "after_guards", "always"] = "before_guards"
    """"before_guards": a graph is reached past Dynamo's guards, where all that they look at can be
    compared; or one that writes nothing of the caller's, and indexes by nothing but arguments and
    places that it finds itself (argmax, topk), is launched while they run. Where that pays.
    "after_guards": it is launched once they have passed. "always": while they run, also where it
    does not pay."""

    select: Select = "measure"
    """Whether a proven graph serves calls. "measure": the graph and the compiled callable take
    turns on some of the first calls, in 1% of the time, and what the caller's clocks prefer serves
    from then on. "model": a cost model decides, without clocks; it says the same on each machine
    and each rank. "always": a proven graph does. "never": none is made, for comparing. Graphs that
    are required, or proven again (`require`, `debug`), always serve. On the twin, whose clock says
    nothing of a GPU's, "measure" is "always"."""

    parallel: Parallel = "off"
    """Nodes that do not depend on each other run side by side, in *lanes* (docs/design/lanes.md).
    "auto": in 2, 4 or 8, if clocks say when a graph is linked that this is faster than the order of
    the capture, and no slower where calls follow one another. An integer: in so many lanes at most,
    whatever clocks say. "off": in the order of the capture. On the twin, whose clock says nothing
    of a GPU's, "auto" takes all eight."""

    parallel_memory: float = 1.05
    """How many times the scratch memory of the order of the capture lanes may take; nodes overtake
    no more of others than this allows. An arena of 2 MiB costs nothing."""

    max_programs: int = 512
    """The most programs (sets of dynamic sizes that have a graph) that one compiled graph keeps.
    All of them together have 32,768 nodes at most. A further program takes the place of the one
    that was used longest ago, if its sizes come up much more often. The first eight that come in
    quick succession are linked at once, others in a 200th of the time and in half of what replays
    have saved; where they save much, ten seconds of that may be spent in advance."""

    programs_at_once: int = 0
    """So many programs are linked as soon as their sizes have come `capture_at` times, however long
    that takes and however many nodes they have. `max_programs` caps it: to have 500 at once, set
    both to 500."""

    capture_at: int = 2
    """The call with a set of sizes that captures them, counted from 1. The calls before it run
    without a graph. Sizes in `capture_sizes` do not wait for it."""

    capture_sizes: Sequence[int | tuple[int, ...]] = ()
    """Sizes that are captured at their first call; other sizes get no graph then. Each is an
    integer, or a tuple of integers: the dynamic sizes of a call that has all of them. Empty: any
    sizes, when they come for the `capture_at`-th time."""

    @property
    def passes(self) -> frozenset[str]:
        """The names of the passes that graphs go through."""
        if isinstance(self.transform, str):
            return pipeline.ALL if self.transform == "all" else frozenset()
        return frozenset(self.transform)

    @property
    def selects(self) -> Select:
        """How it is decided whether a graph serves, on this device."""
        return "always" if self.select == "measure" and self.device == "twin" else self.select

    @property
    def lanes(self) -> LaneOptions:
        """That nodes may be spread over."""
        return lanes.wanted(self.parallel, self.selects, self.parallel_memory)

    @property
    def platform(self) -> devices.Platform:
        return devices.PLATFORMS[self.device]


#: By device, where not every compiler works.
_ONLY_COMPILER = {"twin": "aot"}

#: The least value of an option that is an integer; of others 1.
_LEAST = {"programs_at_once": 0}


def split(given: Mapping[str, Any], mode: str | None = None) -> tuple[Options, dict[str, Any]]:
    """PyGraph's own options, and what goes to Inductor's config. Raises ValueError for what is
    neither, and for a wrong value of an option of ours."""
    hints = typing.get_type_hints(Options)
    own = {name: value for name, value in given.items() if name in hints}
    inductor = {name: value for name, value in given.items() if name not in hints}
    for name in inductor:
        _check_name(name, list(hints))
    for name, value in own.items():
        _check_value(name, value, hints[name])
    only = _ONLY_COMPILER.get(own.get("device", Options.device))
    if only is not None and own.setdefault("compiler", only) != only:
        raise ValueError(
            f"option 'compiler' is {own['compiler']!r}; device {own['device']!r} works with "
            f"{only!r} only"
        )
    if mode is not None and mode != "default":
        inductor = {**inductor_names.list_mode_options()(mode), **inductor}
    return Options(**own), inductor


def _check_name(name: str, own: Sequence[str]) -> None:
    """Raises unless `name` is one of Inductor's config."""
    config = inductor_names.config()
    try:
        config.__getattr__(name)  # what config.patch() calls
    except AttributeError:
        nearest = difflib.get_close_matches(str(name), [*own, *config.get_config_copy()], n=1)
        hint = f" (nearest: {nearest[0]!r})" if nearest else ""
        raise ValueError(
            f"unknown option {name!r}{hint}: PyGraph has {', '.join(own)}, and any other name must "
            "be one of torch._inductor.config"
        ) from None


def _check_passes(value: Any) -> None:
    listed = ("all", "none") if isinstance(value, str) else pipeline.ALL
    names = [value] if isinstance(value, str) else list(value) if _is_list(value) else [value]
    wrong = [name for name in names if name not in listed]
    if wrong:
        raise ValueError(
            f"option 'transform' is {value!r}; it must be 'all', 'none', or a list of passes: "
            f"{', '.join(sorted(pipeline.ALL))}"
        )


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset))


def _check_value(name: str, value: Any, hint: Any) -> None:
    least = _LEAST.get(name, 1)
    if name == "capture_sizes":
        sizes_of(value)
    elif name == "transform":
        _check_passes(value)
    elif name == "parallel":
        if value not in ("off", "auto") and (type(value) is not int or value < 1):
            raise ValueError(
                f"option 'parallel' is {value!r}; it must be 'off', 'auto', or an integer of 1 or "
                "more"
            )
    elif name == "parallel_memory":
        if type(value) not in (int, float) or not 1 <= value < math.inf:
            raise ValueError(f"option {name!r} is {value!r}; it must be a number of 1 or more")
    elif hint is not int:
        if value not in typing.get_args(hint):
            raise ValueError(
                f"option {name!r} is {value!r}; it must be one of {typing.get_args(hint)}"
            )
    elif type(value) is not int or value < least:
        raise ValueError(f"option {name!r} is {value!r}; it must be an integer of {least} or more")
