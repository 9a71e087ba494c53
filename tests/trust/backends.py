"""Ways to run a program that are under test, and what each is compared with.

A program that goes through Dynamo is compiled by torch.compile. For the others the FX graph is
handed to the backend directly, once per set of sizes and sharing, as Dynamo's guards would do;
this leaves out what takes most of the time of a compilation and is not PyGraph's.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

from .programs import Program

Function = Callable[..., Any]
#: Takes (graph module, example inputs), returns what runs.
Compiler = Callable[[Any, list[Any]], Function]


@dataclasses.dataclass(frozen=True)
class Backend:
    """`name` as on the command line."""

    name: str
    device: str
    compiler: Compiler | str
    ours: bool  #: PyGraph: there is a report
    reference: Compiler | str | None = None  #: None: eager
    trains: bool = False  #: a backward behind every call, of programs that write nothing
    lanes: bool = False  #: nodes may run side by side, so programs are made of branches

    def compile(self, module: torch.nn.Module, program: Program) -> Function:
        return _compile(self.compiler, module, program, self.reference is not None)

    def compile_reference(self, module: torch.nn.Module, program: Program) -> Function:
        if self.reference is None:
            return module
        return _compile(self.reference, module, program, True)

    def draw_order(self, seed: int) -> None:
        """Has the twin run nodes that are side by side in another order at each launch, and not
        only in proofs. 0: as they stand."""
        if self.lanes and self.device == "cpu":
            from pygraph import _engine

            _engine.twin_any_order(seed)


def backend(name: str) -> Backend:
    """twin: PyGraph on the CPU twin. cuda: PyGraph below AOTAutograd's graphs. cuda-inductor:
    PyGraph below Inductor, compared with Inductor alone. aot_eager, eager: torch's own, to test the
    test. With "-lanes" behind the name of one of ours, up to four nodes of programs of branches run
    side by side; with "-train", programs that write nothing are trained."""
    if name.endswith("-train"):
        return dataclasses.replace(backend(name.removesuffix("-train")), name=name, trains=True)
    lanes = name.endswith("-lanes")
    wide: dict[str, Any] = {"parallel": 4} if lanes else {}
    ours = name.removesuffix("-lanes")
    if ours == "twin":
        return Backend(name, "cpu", _pygraph(device="twin", **wide), True, lanes=lanes)
    if ours == "cuda":
        return Backend(name, "cuda", _pygraph(compiler="aot", **wide), True, lanes=lanes)
    if ours == "cuda-inductor":
        inductor = _pygraph(**wide)
        return Backend(name, "cuda", inductor, True, reference="inductor", lanes=lanes)
    if name in ("aot_eager", "eager"):
        return Backend(name, "cpu", name, False)
    raise ValueError(f"no backend {name!r}")


def share_memory_eagerly(arena_in_pieces: bool) -> None:
    """Has this process do with small memory what otherwise large memory is needed for: scratch
    stands in outputs, and arenas consist of pieces."""
    from pygraph.capturing.cuda import Cuda
    from pygraph.capturing.twin import Twin

    for device in (Cuda, Twin):
        device.smallest_loan = 1
        device.arena_in_pieces = arena_in_pieces


#: What torch's own compilation makes of a program, where it differs from eager.
TORCH = "aot_eager"


def _pygraph(**options: Any) -> Compiler:
    from pygraph.frontends.compile.backend import backend as compile_with_pygraph

    return functools.partial(compile_with_pygraph, options=options)


def _compile(
    compiler: Compiler | str, module: torch.nn.Module, program: Program, dynamo: bool
) -> Function:
    if program.dynamo or dynamo:
        compiled: Function = torch.compile(
            module, backend=compiler, dynamic=program.dynamic, fullgraph=True
        )
        return compiled
    return _Direct(compiler, module, guard_sharing=program.writes)


class _Tracer(torch.fx.Tracer):
    proxy_buffer_attributes = True  # else buffers are constants, and are written while tracing


class _Direct:
    """Guards of our own in front of the backend: sizes, strides, which arguments are the same
    tensor, and in programs that write, which share memory at what distance. As with Dynamo, one
    compiled graph that only reads serves inputs that share memory and inputs that do not."""

    def __init__(
        self, compiler: Compiler | str, module: torch.nn.Module, guard_sharing: bool
    ) -> None:
        self._module = module
        self._guard_sharing = guard_sharing
        self._graph: torch.fx.GraphModule | None = None
        self._compiled: dict[Any, Function] = {}
        self._compiler = compiler

    def __call__(self, *arguments: Any) -> Any:
        key = _guard(arguments, self._guard_sharing)
        function = self._compiled.get(key)
        if function is None:
            # The backend may change the graph, so each compilation gets a new one.
            tracer = _Tracer()
            graph = torch.fx.GraphModule(self._module, tracer.trace(self._module))
            function = _named(self._compiler)(graph, list(arguments))
            self._compiled[key] = function
        return function(*arguments)


def _named(compiler: Compiler | str) -> Compiler:
    if not isinstance(compiler, str):
        return compiler
    from torch._dynamo.backends.registry import lookup_backend

    found: Compiler = lookup_backend(compiler)
    return found


def _guard(arguments: tuple[Any, ...], sharing: bool) -> tuple[Any, ...]:
    first: dict[int, int] = {}
    seen: dict[int, int] = {}
    key: list[Any] = []
    for index, argument in enumerate(arguments):
        if not isinstance(argument, torch.Tensor):
            key.append(argument)
            continue
        storage = argument.untyped_storage().data_ptr() or id(argument)
        origin = first.setdefault(storage, index)
        key.append(
            (
                argument.dtype,
                argument.shape,
                argument.stride(),
                (origin, argument.storage_offset()) if sharing else None,
                seen.setdefault(id(argument), index),
            )
        )
    return tuple(key)
