"""The ways to run a workload.

serial       PyGraph, the nodes of a graph in the order of the capture, one behind the other
parallel     PyGraph with a number of lanes that it chooses itself, by measurement
lanes-N      PyGraph with so many lanes at most
floor        the serial replay floor: what torch.compile makes of an iteration, captured by hand in
             one graph on inputs that never move, and replayed (harness/floor.py)
streams      eager on several streams by hand, where a workload says how

All of PyGraph's modes use every graph that is proven. Each is compiled apart from the others: its
`forward` is a code object of its own, and it knows its graphs in the report by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.harness import floor
from benchmarks.harness.device import Device
from benchmarks.harness.modes import (
    Bench,
    Runner,
    Tensors,
    begin,
    compile_as,
    replaying,
    train,
    warm_up,
)
from benchmarks.paper.prepare import why_not_captured
from benchmarks.parallel.workloads import Workload

SERIAL, PARALLEL, FLOOR, STREAMS = "serial", "parallel", "floor", "streams"
LANES: dict[str, Any] = {"lanes-2": 2, "lanes-4": 4, "lanes-8": 8, PARALLEL: "auto"}
"""PyGraph's option `parallel`, in the order in which they are prepared: the first one compiles for
all, so that serial and parallel both find Inductor's caches filled."""
OWN: dict[str, Any] = {SERIAL: "off", **LANES}
MODES = (SERIAL, PARALLEL, "lanes-2", "lanes-4", "lanes-8", FLOOR, STREAMS)
SETTLING_PASSES = 2
"""Over all inputs, behind the warm-up: where sizes depend on values, each may have a graph."""


class LaneRunner(Runner):
    def compute(self, inputs: Tensors) -> Tensors:
        """The results, in memory of their own; in training the loss and, as one tensor, all
        gradients."""
        found = self.run(inputs)
        if not self.parameters:
            return tuple(each.clone() for each in found)
        gradients = [each.reshape(-1) for each in self.gradients() if each is not None]
        result = found.detach().clone(), torch.cat(gradients)
        self.forget()
        return result

    @contextmanager
    def noting_graphs(self) -> Iterator[None]:
        """What is compiled meanwhile is this mode's."""
        others = self.other_graphs()
        yield
        self.graphs |= self.other_graphs() - others


class FloorImpossible(Exception):
    """An iteration cannot be captured as one graph. The process is of no more use: torch's
    allocator is left in the middle of the capture."""


def available(device: Device) -> tuple[str, ...]:
    return MODES if device.is_cuda else tuple(mode for mode in MODES if mode in OWN)


def taken(workload: Workload, modes: tuple[str, ...]) -> tuple[str, ...]:
    """Those that the workload has; the floor has a row everywhere, if only to say why there is
    none."""
    return tuple(mode for mode in modes if mode != STREAMS or workload.by_hand is not None)


def name_of(mode: str) -> str:
    """As the harness knows it, which goes by the beginning."""
    return f"pygraph-{mode}" if mode in OWN else mode


def _runner(mode: str, bench: Bench, call: Callable[..., Any], model: Any = None) -> LaneRunner:
    """`model`: whose gradients they are, if not the bench's."""
    runner = LaneRunner(name_of(mode), call, keep=call)
    if bench.workload.trains:
        train(runner, call, list((bench.model if model is None else model).parameters()))
    return runner


def eager(bench: Bench, model: Any) -> LaneRunner:
    """`model`: the bench's, or one of the same architecture."""
    return _runner("eager", bench, model, model)


def _make(mode: str, bench: Bench) -> LaneRunner:
    if mode == STREAMS:
        return _runner(mode, bench, bench.workload.by_hand(bench.model))
    options = {"parallel": OWN[mode], "select": "always"} if mode in OWN else {}
    return _runner(mode, bench, compile_as(name_of(mode), bench.model, bench, **options))


def compiled(mode: str, bench: Bench) -> LaneRunner:
    """By a first call, and nothing captured yet."""
    found: LaneRunner = begin(lambda given: _make(mode, given), bench)
    found.forget()
    return found


def captured_floor(bench: Bench) -> LaneRunner:
    """Compiled as torch.compile has it, and captured; in front of all other captures, since a
    failed one costs the process. Raises FloorImpossible."""
    default = compiled("default", bench)
    started = bench.clock()
    try:
        found = floor.capture(
            default.step, bench.inputs[0], default.parameters, error_mode="thread_local"
        )
    except Exception as error:
        raise FloorImpossible(why_not_captured(error)) from error
    runner: LaneRunner = replaying(LaneRunner, found, parameters=default.parameters)
    runner.compile_s = default.compile_s + bench.clock() - started
    return runner


def settle(runner: LaneRunner, bench: Bench) -> None:
    """Call until nothing is compiled, captured or decided any more, and then with all inputs."""
    if runner.mode == FLOOR:
        return
    with runner.noting_graphs():
        warm_up(runner, bench)
        for call in range(SETTLING_PASSES * len(bench.inputs)):
            runner.run(bench.inputs[call % len(bench.inputs)])
        bench.device.synchronize()
    runner.forget()
