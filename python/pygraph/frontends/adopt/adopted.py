"""`pygraph.adopt`: from two graphs of somebody else's to one that is called with tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.capturing import generators, proof, reference, tensors
from pygraph.capturing.device import Device, capture_lock
from pygraph.capturing.reference import Reference
from pygraph.frontends.adopt import words
from pygraph.frontends.adopt.movable import MovableGraph
from pygraph.frontends.adopt.not_movable import NotMovable
from pygraph.frontends.adopt.pairs import Pair, pairs_of
from pygraph.frontends.adopt.plan import AdoptionPlan
from pygraph.frontends.adopt.proving import Replay, StaticMemory, Surroundings
from pygraph.runtime import devices

__all__ = ["MovableGraph", "NotMovable", "adopt"]

#: Runs of a program whose graph does not do the same each time.
_REPEATS = 4
#: What is called of a graph.
_METHODS = ("raw_cuda_graph", "replay", "pool")


def adopt(
    first: Any,
    second: Any,
    inputs: Iterable[tuple[torch.Tensor, torch.Tensor]],
    outputs: Iterable[tuple[torch.Tensor, torch.Tensor]] = (),
    *,
    static_outputs: bool = False,
    device: str = "cuda",
) -> MovableGraph:
    """Makes a graph that somebody else captured movable, where a second capture can be had: what it
    returns is called with tensors, whose addresses are written into the graph. A replay of torch's
    needs them copied to where the graph was captured.

    movable = pygraph.adopt(first, second, inputs=[(x_1, x_2)], outputs=[(y_1, y_2)])
    y = movable(x)

    `first` and `second` are torch.cuda.CUDAGraph(keep_graph=True), captures of the same work by the
    same code, on one stream. `inputs` are the static tensors that they were captured with, each as
    it is in the first and in the second; `outputs` the same of the results. What both captures
    share, such as weights, stays where it is and is not named. `first` and its private pool are
    kept and serve as scratch; `second` and its tensors are not needed any more.

    An input that the graph writes is written in the caller's tensor. An output is a new tensor in
    each call: written there by the graph, if the capture had it outside of its pool and in memory
    of its own; else copied behind the graph. With `static_outputs` it is the first graph's own
    tensor, which the next call or replay overwrites.

    It is proven before it is returned: the first graph is replayed on the values that its static
    inputs have, and the movable one must compute the same of them elsewhere. Both run several times
    for that, so these values must be such that the graph may be run on. Afterwards the static
    tensors, and what of torch's allocations the graph has addresses of, have their values from
    before. Nothing else may use the graph, its pool or its tensors meanwhile.

    Raises NotMovable, which says what was found where and what is needed: captures that differ,
    tensors that overlap, a graph that draws random numbers, a failed proof. Raises TypeError for
    what is no graph or tensor, ValueError for a wrong option. `first` is usable whatever happens.
    One call at a time makes graphs; others wait.
    """
    if device not in devices.PLATFORMS:
        known = ", ".join(map(repr, devices.PLATFORMS))
        raise ValueError(f"device is {device!r}; it must be one of {known}")
    raw = tuple(_raw(graph, name) for graph, name in ((first, "first"), (second, "second")))
    if raw[0] == raw[1]:
        raise NotMovable("the second graph", "the first one", "another capture of the same work")
    given, made = pairs_of("input", inputs), pairs_of("output", outputs)
    chosen = _device(devices.PLATFORMS[device], [*given, *made])
    with capture_lock, _current(chosen), torch.no_grad():
        if chosen.busy():
            raise NotMovable("the current stream", "that it is being captured", "one that is not")
        plan = AdoptionPlan.of(chosen, first, second, given, made, static_outputs)
        linked, kept = _link(raw, plan)
        return _proven(linked, kept, plan)


def _raw(graph: Any, name: str) -> int:
    for method in _METHODS:
        if not callable(getattr(graph, method, None)):
            raise TypeError(
                f"the {name} graph is a {type(graph).__name__} without {method}(); needed: a "
                "torch.cuda.CUDAGraph(keep_graph=True)"
            )
    try:
        return int(graph.raw_cuda_graph())
    except RuntimeError as error:
        said = next(iter(str(error).splitlines()), "")
        raise NotMovable(
            f"the {name} graph",
            f"no cudaGraph_t ({said})",
            "torch.cuda.CUDAGraph(keep_graph=True), whose capture has ended and that was not reset",
        ) from error


def _device(platform: devices.Platform, pairs: Sequence[Pair]) -> Device:
    problem = platform.problem()
    if problem is not None:
        raise NotMovable("this process", problem, platform.advice())
    if not pairs:
        raise NotMovable("the captures", "neither inputs nor outputs", "one of them at least")
    index = platform.index(pair.first for pair in pairs)
    if index is None:
        raise NotMovable(
            pairs[0].name, f"a tensor on {pairs[0].first.device}", f"one {platform.what}"
        )
    device = platform.device(index)
    here = next(pair.first.device for pair in pairs if device.owns(pair.first))
    for pair in pairs:
        if pair.first.device != here:
            raise NotMovable(pair.name, f"a tensor on {pair.first.device}", f"one on {here}")
    return device


@contextlib.contextmanager
def _current(device: Device) -> Iterator[None]:
    """The device is the current one, and has nothing to do."""
    with contextlib.nullcontext() if device.twin else torch.cuda.device(device.index):
        if device.twin:
            device.space()  # from now on tensors are its memory
        if not device.busy():
            device.synchronize()
        yield


def _link(raw: tuple[int, ...], plan: AdoptionPlan) -> tuple[_engine.Linked, int]:
    """The two graphs compared, each word explained; and how many words keep their addresses."""
    regions = plan.regions
    try:
        linked = _engine.link(
            a=raw[0],
            b=raw[1],
            regions=[
                _engine.Region(in_a=place[0], in_b=there[0], bytes=pair.bytes)
                for pair in regions
                for place, there in (pair.ranges,)
            ],
            phantom_begin=0,
            phantom_end=0,
            twin=plan.device.twin,
        )
    except _engine.UnsupportedGraph as error:
        raise NotMovable("the first graph", str(error), "nodes that can be relocated") from error
    words.require_same_work(linked)
    words.require_alone(linked)
    words.require_told_apart(linked, regions, plan.device.alignment)
    allocations = words.Allocations(*plan.allocations)
    return linked, words.require_explained(linked, plan.pools, plan.staying, allocations)


def _proven(linked: _engine.Linked, kept: int, plan: AdoptionPlan) -> MovableGraph:
    """The program, if it does what a replay of the first graph does. Leaves no trace."""
    device = plan.device
    state = device.generator_state(device.default_generator())
    named = [pair for pair in (*plan.inputs, *plan.outputs) if pair.bytes]
    memory = StaticMemory(named, plan.regions)
    around = Surroundings(device, plan.surroundings(linked.foreign_words))
    try:
        run, repeatable = _replayed(plan, around)
        program = _program(linked, plan, run)
        verdict = proof.prove(program, run, memory)
        if verdict.passed and not repeatable:
            _require_as_varying(program, run, len(plan.inputs))
    finally:
        memory.restore()
        around.put_back()
        device.restore_generator(device.default_generator(), state)
        device.synchronize()
    if not verdict.passed:
        raise NotMovable(
            "the proof",
            verdict.fault,
            "a graph that computes the same of the same inputs, wherever they are: with no other "
            "copy of their addresses, in a table in memory for instance",
        )
    kinds = "static outputs" if plan.static_outputs else "copied outputs"
    return MovableGraph(
        program,
        plan,
        written=[index for index in run.mutated if index < len(plan.inputs)],
        ignored=len(run.arguments) - len(plan.inputs),
        verdict=str(verdict),
        figures={
            "nodes": linked.nodes,
            "relocations": linked.relocations,
            "kept words": kept,
            "inputs": len(plan.inputs),
            "new outputs": len(plan.relocated),
            kinds: len(plan.staying),
        },
    )


def _draws(how: str) -> NotMovable:
    return NotMovable(
        "the first graph",
        f"that it draws random numbers ({how}), whose seed and offset torch sets in each replay",
        "a graph that draws none",
    )


def _require_as_varying(program: _engine.TensorProgram, run: Reference, inputs: int) -> None:
    """Raises NotMovable where replays of the same inputs differ by what torch does in front of
    them: runs of the program then do not, or leave memory as it was that a replay writes. That is
    how the numbers of a generator show that only torch knows."""
    runs = []
    try:
        for _ in range(_REPEATS):
            run.rewind()
            results: Any = program.run(list(run.arguments))
            runs.append([tensors.static_copy(each) for each in (*results, *run.arguments[:inputs])])
            found = [index for index in run.before if index >= inputs]
            still = tensors.differing(
                [run.before[index] for index in found], [run.arguments[index] for index in found]
            )
            if len(still) < len(found):
                raise _draws("a replay writes memory that no node writes")
    finally:
        run.finish()
    if not any(tensors.differing(runs[0], each) for each in runs[1:]):
        raise _draws("two replays of the same inputs differ, and no two runs of the nodes alone do")


def _replayed(plan: AdoptionPlan, around: Surroundings) -> tuple[Reference, bool]:
    """What a replay of the first graph does, and whether it does the same each time. Arguments are
    copies of the inputs, then the memory that it writes besides."""
    device, function = plan.device, Replay(plan.first, plan.inputs, plan.outputs)
    values: list[Any] = [tensors.static_copy(pair.first) for pair in plan.inputs]
    runs = []
    for _ in range(2):  # the first may leave what only the second one changes: torch's own state
        arguments = [tensors.static_copy(each) for each in values]
        before = generators.states((), device)
        results = function(arguments)
        if generators.drawn(before, generators.states((), device)):
            raise _draws("the state of the device's generator changes")
        runs.append([*results, *arguments])
        around.put_back()
    arguments = [*values, *around.narrow()]
    taken = reference.take(
        function,
        arguments,
        changing=range(len(plan.inputs)),
        declared=(),
        device=device,
        watched=range(len(arguments)),
    )
    for index in taken.mutated:
        if index < len(plan.inputs) and not plan.inputs[index].whole:
            raise NotMovable(
                plan.inputs[index].name,
                "that the graph writes it, and that it is a part of a larger tensor",
                "a static tensor with memory of its own, or the larger one as the input",
            )
    return taken, not tensors.differing(*runs)


def _program(linked: _engine.Linked, plan: AdoptionPlan, run: Reference) -> _engine.TensorProgram:
    kinds, regions = _engine.ArgumentKind, plan.regions
    arguments = [_engine.ArgumentSpec(kind=kinds.IGNORED) for _ in run.arguments]
    for index, pair in enumerate(plan.inputs):
        if pair.bytes:
            arguments[index] = _engine.ArgumentSpec(
                kind=kinds.PATCHED,
                region=regions.index(pair),
                alignment_mask=tensors.alignment_mask(pair.first.data_ptr()),
                bytes=pair.bytes,
                mutated=index in run.mutated,
            )
    blocks: list[_engine.OutputBlock] = []
    results = [_result(pair, plan, blocks) for pair in plan.outputs]
    return _engine.TensorProgram.make(
        linked=linked,
        twin=plan.device.twin,
        device_index=plan.device.index,
        arguments=arguments,
        blocks=blocks,
        results=results,
    )


def _result(
    pair: Pair, plan: AdoptionPlan, blocks: list[_engine.OutputBlock]
) -> _engine.ResultSpec:
    """How a call makes an output. Adds the memory for it to `blocks`."""
    kinds = _engine.ResultKind
    for index, each in enumerate(plan.inputs):
        if pair.bytes and pair.same_as(each):
            return _engine.ResultSpec(kind=kinds.ARGUMENT, index=index)
    if plan.static_outputs:
        return _engine.ResultSpec(kind=kinds.CONSTANT, object=pair.first)
    if pair in plan.relocated:
        region = plan.regions.index(pair)
        blocks.append(_engine.OutputBlock(bytes=pair.bytes, regions=[region]))
    else:
        source = pair.first.data_ptr() if pair.bytes else 0
        blocks.append(_engine.OutputBlock(bytes=pair.bytes, source=source))
    return _engine.ResultSpec(
        kind=kinds.WHOLE,
        index=len(blocks) - 1,
        sizes=list(pair.first.shape),
        strides=list(pair.first.stride()),
        dtype_of=pair.first,
    )
