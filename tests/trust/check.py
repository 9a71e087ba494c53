"""One program, run twice side by side: eagerly, and the way under test.

Both sides have inputs, parameters and memory of their own and get the same calls. After each call
everything that can be seen must be the same: bits, dtype, shape, stride and storage offset of the
results, which results are which objects, which share memory with what, and every byte of the inputs
and parameters. Results of earlier calls are kept, and compared again later. Where programs are
trained, a backward follows each call, and gradients are compared too.

Libraries choose kernels by alignment, and those sum in another order; PyGraph computes on aligned
memory. On the CPU, a call on memory that is not aligned may therefore have either bits: those that
the reference computes there, or on aligned memory. On a GPU, floating-point results may differ by
rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch._dynamo  # loaded in halves otherwise, when a backend is called directly

import pygraph

from . import backends
from .backends import Backend, Function
from .compare import Mismatch, error_text, same_bits, same_value, text_of
from .programs import Call, Program, make_inputs, make_module


@dataclasses.dataclass
class Outcome:
    """What became of one program. `torch_differs` names what torch's own compilation changes
    against eager; such a program is held to what torch makes of it."""

    states: list[str] = dataclasses.field(default_factory=list)
    reasons: list[str] = dataclasses.field(default_factory=list)
    calls: int = 0
    replays: int = 0
    copies: int = 0
    lanes: list[int] = dataclasses.field(default_factory=list)  #: of graphs that are graphed
    #: Why graphs do not run in lanes that they were to run in.
    in_a_row: list[str] = dataclasses.field(default_factory=list)
    torch_differs: str | None = None

    @property
    def state(self) -> str:
        """Of the whole program: the least good state of its graphs."""
        for state in ("fallback", "warming", "graphed, partly copied", "graphed"):
            if state in self.states:
                return state
        return "nothing compiled"


class Side:
    """One of the two worlds. `aligned`: the memory that calls bring is, whatever they say."""

    def __init__(
        self, program: Program, device: str, trains: bool = False, aligned: bool = False
    ) -> None:
        self.program = program
        self.device = device
        self.trains = trains
        self.aligned = aligned
        self.module = make_module(program, device, trains)
        self.function: Function = self.module
        self.memory: list[torch.Tensor] = []
        self.arguments: list[list[Any]] = []
        self.results: list[tuple[Any, ...]] = []

    def call(self, call: Call) -> None:
        if call.again is None:
            memory, arguments = make_inputs(self.program, call, self.device, self.aligned)
            self.memory += memory
            if self.trains:
                for argument in arguments:
                    if isinstance(argument, torch.Tensor) and argument.is_floating_point():
                        argument.requires_grad_()
        else:
            arguments = self.arguments[call.again]
        self.arguments.append(arguments)
        torch.manual_seed(call.seed)  # both sides draw the same random numbers
        results = tuple(self.function(*arguments))
        self.results.append(results)
        if self.trains:
            self._learn(results)

    @staticmethod
    def _learn(results: tuple[Any, ...]) -> None:
        """A backward from all results that depend on something that learns."""
        losses = [
            (result.double() * result.double()).sum()
            for result in results
            if isinstance(result, torch.Tensor)
            and result.is_floating_point()
            and result.requires_grad
        ]
        if losses:
            torch.stack(losses).sum().backward()

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Of parameters and of the last call's inputs; empty where there is none."""
        for index, value in enumerate([*self.module.parameters(), *self.arguments[-1]]):
            if isinstance(value, torch.Tensor):
                grad = value.grad
                yield f"gradient {index}", torch.empty(0) if grad is None else grad

    def state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Everything a call can change, but for results."""
        yield from ((f"input memory {i}", t) for i, t in enumerate(self.memory))
        yield from self.module.named_parameters()
        yield from self.module.named_buffers()
        if self.trains:
            yield from self.gradients()


def run(program: Program, backend: Backend) -> Outcome:
    """Raises Mismatch, or what the side under test raised, unless torch's own compilation does the
    same."""
    outcome = Outcome()
    try:
        try:
            found = _compare(program, backend, backend.compile, backend.compile_reference)
        except Mismatch as mismatch:
            bent = any(call.offset or call.misaligned for call in program.calls)
            if mismatch.what != "bits" or not bent or backend.device != "cpu":
                raise
            found = None
        if found is None:
            outcome.torch_differs = "bits, by alignment"
            sides = backend.compile, backend.compile_reference
            found = _compare(program, backend, *sides, either_alignment=True)
        if backend.ours:
            _read_report(outcome)
        del found  # the report lists what lives
    except Exception as error:
        if not _torch_does_it_too(program, backend):
            raise
        outcome.torch_differs = getattr(error, "what", type(error).__name__)
    finally:
        backend.draw_order(0)
        torch._dynamo.reset()
        if backend.ours:
            pygraph.reset()
    return outcome


def _read_report(outcome: Outcome) -> None:
    for graph in pygraph.report().graphs:
        outcome.states.append(graph.state)
        if graph.graphed:
            outcome.lanes.append(graph.lanes)
        else:
            outcome.reasons.append(graph.reason or f"no reason given ({graph.state})")
        tried = [each for each in graph.selection if each.what == "lanes"]
        outcome.in_a_row += [each.about for each in tried if not each.graph]
        outcome.calls += graph.calls
        outcome.replays += graph.replays
        outcome.copies += graph.copies


def _torch_does_it_too(program: Program, backend: Backend) -> bool:
    """Whether the side under test does what torch's own compilation, uncaptured, does."""
    if backend.reference is not None or backend.compiler == backends.TORCH:
        return backend.compiler == backends.TORCH
    torch_alone = dataclasses.replace(backend, compiler=backends.TORCH)
    try:
        _compare(program, backend, backend.compile, torch_alone.compile, may_raise=True)
    except Exception:
        return False
    return True


def _compare(
    program: Program,
    backend: Backend,
    tested: Any,
    reference: Any,
    may_raise: bool = False,
    either_alignment: bool = False,
) -> Side:
    """`may_raise`: the reference may raise; then the other must raise the same in that call, which
    ends the comparison. `either_alignment`: each call must be as the reference has it on the memory
    of the call, or as it has it on aligned memory."""
    trains = backend.trains and not program.writes
    alignments = (False, True) if either_alignment else (False,)
    references = [Side(program, backend.device, trains, aligned) for aligned in alignments]
    for side in references:
        side.function = reference(side.module, program)
    found = Side(program, backend.device, trains)
    found.function = tested(found.module, program)
    as_expected: list[Side] = []
    with torch.set_grad_enabled(trains):
        for number, call in enumerate(program.calls):
            where = f"call {number} (N={call.size})"
            backend.draw_order(call.seed)
            raised = [_call(side, call, may_raise) for side in (*references, found)]
            if len(set(raised)) > 1:
                raise Mismatch("error", where, ", ".join(map(str, raised)))
            if raised[0] is not None:
                break
            as_expected.append(_same_call(references, found, where))
            last = number + 1 == len(program.calls)
            if last or program.calls[number + 1].size != call.size:
                _same_kept(as_expected, found, where)
    return found


def _same_call(references: Sequence[Side], found: Side, where: str) -> Side:
    """The reference that the call is as; Mismatch with the first where there is none."""
    first: Mismatch | None = None
    for expected in references:
        try:
            _same_results(expected, found, where)
            _same_state(expected, found, where)
            return expected
        except Mismatch as mismatch:
            first = first or mismatch
    assert first is not None
    raise first


def _call(side: Side, call: Call, may_raise: bool) -> str | None:
    """Makes a call; what it raised."""
    try:
        side.call(call)
    except Exception as error:
        if not may_raise:
            raise
        return error_text(error)
    return None


def _same_results(expected: Side, found: Side, where: str) -> None:
    left, right = expected.results[-1], found.results[-1]
    if len(left) != len(right):
        raise Mismatch("number", f"results of {where}", f"{len(left)}, {len(right)}")
    for index, (a, b) in enumerate(zip(left, right, strict=True)):
        same_value(a, b, f"result {index} of {where}")
    identity, sharing = _relations(expected), _relations(found)
    if identity[0] != sharing[0]:
        raise Mismatch("identity", f"results of {where}", f"{identity[0]}, {sharing[0]}")
    if identity[1] != sharing[1]:
        raise Mismatch("shared memory", f"results of {where}", f"{identity[1]}, {sharing[1]}")


def _relations(side: Side) -> tuple[list[int], list[int]]:
    """For each result the first object that is it, and the first that shares its storage, counted
    through parameters, inputs and results."""
    parameters = [*side.module.parameters(), *side.module.buffers()]
    seen = [*parameters, *side.arguments[-1], *side.results[-1]]
    objects: dict[int, int] = {}
    storages: dict[int, int] = {}
    for index, value in enumerate(seen):
        if isinstance(value, torch.Tensor):
            objects.setdefault(id(value), index)
            storages.setdefault(value.untyped_storage()._cdata, index)
    results = [value for value in side.results[-1] if isinstance(value, torch.Tensor)]
    return (
        [objects[id(value)] for value in results],
        [storages[value.untyped_storage()._cdata] for value in results],
    )


def _same_state(expected: Side, found: Side, where: str) -> None:
    for (name, a), (_, b) in zip(expected.state(), found.state(), strict=True):
        if not same_bits(a, b):
            raise Mismatch("bits", f"{name} after {where}", text_of(a, b))


def _same_kept(as_expected: Sequence[Side], found: Side, where: str) -> None:
    for number, expected in enumerate(as_expected):
        for a, b in zip(expected.results[number], found.results[number], strict=True):
            if isinstance(a, torch.Tensor) and not same_bits(a, b):
                raise Mismatch("bits", f"a kept result of call {number} after {where}")
