"""Graphs that are launched before Dynamo's guards (src/speculation says why that is right).

Two things are decided here. First, which graphs may be: a guess that is wrong runs a graph on a
call that it is not for, so nothing in it may go by what it reads from memory. An index that comes
from data is checked on the GPU, and ends the process where it is out of bounds; so those that are
arguments are looked at on the host before the launch (index_bounds.py finds them), and there may be
no others. That is read from Inductor's generated code, and everything that is not known to be
harmless counts as harm.

Second, where torch is told. Each compiled callable has a list of what to call in front of it
(torch_private/dynamo.py), which is found while a call of it arrives at its graph. Where a torch has
no such thing, nothing is launched before them.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import gc
import logging
import operator
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from pygraph import _engine
from pygraph.frontends.compile import index_bounds
from pygraph.frontends.compile.generated import callables_behind, generated_functions
from pygraph.operators.known import known
from pygraph.operators.table import FOR_EACH, Property, operators
from pygraph.torch_private import dynamo, modules
from pygraph.torch_private.dispatch import OpOverload

log = logging.getLogger(__name__)

#: What generated code calls besides: memory, views, copies, checks on the host.
_HARMLESS = {
    "alloc_from_pool",
    "args.clear",
    "assert_alignment",
    "assert_size_stride",
    "assert_size_stride_grouped",
    "assert_tensor_metadata",
    "copy_if_misaligned",
    "empty_strided_cpu",
    "empty_strided_cuda",
    "get_raw_stream",
    "reinterpret_tensor",
    "torch.cuda._DeviceGuard",
    "torch.cuda.set_device",
}


@dataclasses.dataclass(frozen=True)
class Permit:
    """`bounds`: see bounds_of(). `always`: even where a guess costs more than it gains."""

    bounds: dict[int, int]
    always: bool = False


def permit(model: Any, always: bool = False, checked: bool = True) -> Permit | None:
    """How the compiled code `model` may be launched before the guards. Reading it takes up to half
    a second, so this is asked only of graphs that leave no trace. `checked`: see
    inductor.checks_indices()."""
    bounds = bounds_of(model, checked)
    return None if bounds is None else Permit(bounds, always)


def bounds_of(model: Any, checked: bool = True) -> dict[int, int] | None:
    """How `model`, compiled code as Inductor gave it to the hook, may be run on a call that it is
    not for, as long as the shapes are right: if the values of these arguments are 0 or more and
    below this. None: it may not."""
    graphs = [item for item in callables_behind(model) if isinstance(item, torch.fx.GraphModule)]
    if graphs:
        return _only([_of_graph(each.graph) for each in graphs])
    if not checked:
        return None
    called = generated_functions(model)
    return _only([_of_source(_source(each.__globals__), each.__name__) for each in called])


def _only(found: list[dict[int, int] | None]) -> dict[int, int] | None:
    """Several pieces of code have arguments of their own, of which nothing is known here."""
    if len(found) == 1:
        return found[0]
    return {} if found and all(each == {} for each in found) else None


def _of_graph(graph: torch.fx.Graph) -> dict[int, int] | None:
    harmless = all(index_bounds.looks_up(n.target) or _is_harmless_node(n) for n in graph.nodes)
    return index_bounds.of_graph(graph) if harmless else None


def _is_harmless_node(node: torch.fx.Node) -> bool:
    if node.op != "call_function" or node.target is operator.getitem:
        return node.op in ("call_function", "placeholder", "output")
    target: Any = node.target
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    by_element = torch.Tag.pointwise in target.tags
    for_each = target.overloadpacket.__name__.startswith(FOR_EACH)
    return by_element or for_each or known(target, Property.ADDRESSES_BY_SHAPE, ("aten", "prims"))


def _source(names: dict[str, Any]) -> str:
    try:
        with open(names["__file__"], encoding="utf-8") as file:
            return file.read()
    except (KeyError, OSError, TypeError, UnicodeDecodeError):
        return ""


def _of_source(source: str, called: str = "call") -> dict[int, int] | None:
    """`called`: the function of the generated code whose arguments are the graph's."""
    with _collector_paused():
        return _of_parsed(source, called)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """The garbage collector looks at all of the process each time that a syntax tree has grown by a
    quarter, in which there is no garbage: half of the time of reading 4 MB of code."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def _of_parsed(source: str, called: str) -> dict[int, int] | None:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    if not index_bounds.checks_what_it_must(source, tree):
        return None
    functions = index_bounds.functions_in(tree)
    run = [each for each in functions if each.name == "call" or each.name.startswith("partition_")]
    unknown = {name for each in run for name in _called_in(each) if not _is_harmless_call(name)}
    if unknown:
        log.debug(
            "not launched before the guards: generated code calls %s", ", ".join(sorted(unknown))
        )
    return index_bounds.of_source(source, called, tree) if run and not unknown else None


def _called_in(function: ast.FunctionDef) -> set[str]:
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    return {ast.unparse(call.func) for call in calls}


def _is_harmless_call(name: str) -> bool:
    first, _, rest = name.partition(".")
    if name in _HARMLESS or name.startswith(("self.partitions[", "cpp_fused_")):
        return True
    if name.endswith(").as_strided"):  # of memory that is padded: of what the call before it made
        return True
    if first.startswith("triton_"):  # a name that Inductor gives its own
        return rest == "run"
    if first == "extern_kernels":
        return rest in operators(Property.ADDRESSES_BY_SHAPE)
    packet = name.removeprefix("torch.ops.").removeprefix("aten.").partition(".")[0]
    harmless = operators(Property.ADDRESSES_BY_SHAPE) | operators(Property.RANKS)
    return name.startswith(("torch.ops.aten.", "aten.")) and packet in harmless


def install(entry_point: Any, permit: Permit, frames: Sequence[FrameType]) -> Withdraw | None:
    """Has the graph of an entry point launched before the guards, from the next calls on, as far as
    the permit goes. For a call that is on its way, whose frames these are. What it returns ends
    that behind a later call; None: it could not be done."""
    running = dynamo.running(frames)
    if running is None:
        return None
    hook = next(filter(_engine.is_speculation_hook, running.hooks), None)
    if hook is None:
        plain = torch.Tensor, torch.nn.Parameter
        seen = running.code, running.variables
        hook = _engine.make_speculation_hook(*seen, *_surroundings(), plain)
        running.hooks.append(hook)
    _engine.allow_speculation(entry_point, sorted(permit.bounds.items()), permit.always)
    _engine.count_permits(hook, 1)
    hooks = running.hooks

    def withdraw() -> None:
        _engine.forbid_speculation(entry_point)
        if not _engine.count_permits(hook, -1) and hook in hooks:
            hooks.remove(hook)  # which costs each call some microseconds, whatever it does

    return functools.partial(_engine.call_at_end, hook, withdraw)


#: Ends the launches before the guards, when the next call ends.
Withdraw = Callable[[], None]


def counts(compiled: Any) -> tuple[int, int, int]:
    """Of what torch.compile has returned: graphs launched before the guards, those of them whose
    call came, and calls whose arguments were read for it. For tests and benchmarks."""
    found = filter(_engine.is_speculation_hook, dynamo.hooks_of(compiled))
    return next(map(_engine.speculation_counts, found), (0, 0, 0))


def _surroundings() -> tuple[Any, tuple[Any, ...]]:
    """The code of what Dynamo puts around a backend's function, and of what calls a module's
    forward if there are no hooks."""
    return dynamo.code_around_backend(), modules.code_around_forward()
