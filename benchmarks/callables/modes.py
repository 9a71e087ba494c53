"""The ways to call a row's unit.

eager              as it is
default            torch.compile of what people compile of the program
reduce-overhead    the same with that mode: torch's own CUDA graphs
torch.cuda.graph   the unit captured by hand, as torch's notes have it: warmed up on a side stream,
                   from buffers that each call copies its inputs into
pygraph            pygraph.capture of the unit
pygraph-compiled   pygraph.capture of default's unit, compiled anew
floor              the graph of torch.cuda.graph, captured anew, without the copies: the limit while
                   the kernels stay eager's. Not a way to run a program, since nobody brings inputs

Some rows have those of torch.cuda.make_graphed_callables, too: of all the model, of a part of it,
and pygraph.make_graphed_callables in its place.

Every mode works on a program of its own, made from the same seed.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import nn

import pygraph
from benchmarks.callables.program import Program, Row
from benchmarks.callables.workloads_blog import OURS, PART, WHOLE
from benchmarks.harness import floor
from benchmarks.harness.device import nbytes
from benchmarks.harness.isolate import isolated
from benchmarks.harness.modes import (
    Bench,
    Runner,
    Step,
    Tensors,
    backward_thread,
    before,
    compiling,
)
from benchmarks.harness.program import with_code_of_its_own
from pygraph.demo.models import Unavailable

OWN, OWN_COMPILED = "pygraph", "pygraph-compiled"
BY_HAND, FLOOR = "torch.cuda.graph", "floor"
COMPILED = ("default", "reduce-overhead", OWN_COMPILED)
"""Those that run Inductor's kernels."""
ON_CPU = ("eager", OWN)
"""Unless others are named."""


@dataclass
class Caller(Runner):
    """A program whose unit is called in one way."""

    program: Program | None = None
    checked: Step | None = None
    """What is checked where the step that is timed reads no inputs."""

    def compute(self, inputs: Tensors) -> Tensors:
        """All tensors that a call returns, in memory of their own."""
        if self.before is not None:
            self.before()
        found = (self.checked or self.step)(*inputs)
        leaves = torch.utils._pytree.tree_leaves(found)
        return tuple(each.detach().clone() for each in leaves)


def make_caller(mode: str, bench: Bench, program: Program, unit: Step, **more: Any) -> Caller:
    mark = before(mode)
    if bench.workload.training:
        mark = backward_thread(mode, mark)
    return Caller(mode, program.call(unit), mark, program=program, **more)


def _made(bench: Bench) -> Program:
    row: Row = bench.workload
    return row.make(bench.device.torch)


def _eager(bench: Bench) -> Caller:
    program = _made(bench)
    return make_caller("eager", bench, program, program.unit)


def compile_program(program: Program, mode: str, on_gpu: bool) -> None:
    """What people compile of it, apart from the other modes' code."""
    how = compiling("default" if mode == OWN_COMPILED else mode, on_gpu)
    for name in program.compiled:
        part = _apart(getattr(program, name), mode.replace("-", "_"))
        setattr(program, name, torch.compile(part, **how))


def _apart(part: Any, label: str) -> Any:
    if isinstance(part, nn.Module):
        return isolated(part, label)
    return types.MethodType(with_code_of_its_own(part.__func__), part.__self__)


def _compiled(mode: str, bench: Bench) -> Caller:
    program = _made(bench)
    compile_program(program, mode, bench.device.is_cuda)
    copied = nbytes(bench.inputs[0]) if mode == "reduce-overhead" else 0
    return make_caller(mode, bench, program, program.unit, bytes_per_call=copied)


def _captured(bench: Bench) -> tuple[Program, floor.Captured]:
    program = _made(bench)
    inputs = program.unit_inputs(bench.inputs[0])
    return program, floor.capture(program.unit, inputs, program.parameters())


def replay_on(found: floor.Captured, *inputs: Any) -> Any:
    found.load(inputs)
    return found.step()


def _by_hand(bench: Bench) -> Caller:
    program, found = _captured(bench)
    unit = functools.partial(replay_on, found)
    copied = nbytes(bench.inputs[0])
    return make_caller(BY_HAND, bench, program, unit, keep=found, bytes_per_call=copied)


def _floor(bench: Bench) -> Caller:
    program, found = _captured(bench)
    checked = program.call(functools.partial(replay_on, found))
    return make_caller(FLOOR, bench, program, found.step, keep=found, checked=checked)


def ours(name: str) -> Callable[..., Any]:
    """A function of pygraph's. Versions that lack it may have a module of that name."""
    found = getattr(pygraph, name, None)
    if not callable(found):
        raise Unavailable(f"this pygraph has no function {name}")
    return found


def _pygraph(mode: str, bench: Bench) -> Caller:
    capture = ours("capture")
    program = _made(bench)
    if mode == OWN_COMPILED:
        compile_program(program, mode, bench.device.is_cuda)
    options = {} if bench.device.is_cuda else {"device": "twin"}
    return make_caller(mode, bench, program, capture(program.unit, **options))


def _graphed_callables(mode: str, bench: Bench) -> Caller:
    name = "make_graphed_callables"
    make = ours(name) if mode == OURS else getattr(torch.cuda, name)
    program = _made(bench)
    for path, arguments in program.callables(mode != PART, bench.inputs[0]).items():
        owner, _, attribute = path.rpartition(".")
        holder = attrgetter(owner)(program) if owner else program
        setattr(holder, attribute, make(getattr(holder, attribute), arguments))
    return make_caller(mode, bench, program, program.unit)


MODES: dict[str, Callable[[Bench], Caller]] = {
    "eager": _eager,
    "default": functools.partial(_compiled, "default"),
    "reduce-overhead": functools.partial(_compiled, "reduce-overhead"),
    BY_HAND: _by_hand,
    **{mode: functools.partial(_graphed_callables, mode) for mode in (WHOLE, PART, OURS)},
    OWN: functools.partial(_pygraph, OWN),
    OWN_COMPILED: functools.partial(_pygraph, OWN_COMPILED),
    FLOOR: _floor,
}
"""In the order in which they are prepared: eager first, which all are compared with, and default
before what is compared with it."""
CALLABLES = (WHOLE, PART, OURS)
ON_GPU = frozenset({"reduce-overhead", BY_HAND, FLOOR, *CALLABLES})
"""Those that the CPU and its twin have nothing for."""


def of_row(row: Row, wanted: tuple[str, ...]) -> list[str]:
    """The modes of `wanted` that a row has, and eager always."""
    there = [mode for mode in MODES if mode not in CALLABLES or mode in row.callables]
    return [mode for mode in there if mode in wanted or mode == "eager"]


def why_not(mode: str, row: Row, on_gpu: bool) -> str | None:
    """Why a row is not run in a mode, if so."""
    return "needs a GPU" if mode in ON_GPU and not on_gpu else row.skips.get(mode)
