"""Whether a mode computes what it should, before anything is timed.

Every mode runs the same inputs, forwards and backwards through them. It is compared

- *with eager*, by relative error, within what rounding explains: eager without autocast, without
  TF32 and with weights in fp32 tells how far off eager itself is. Each result must be nearer to
  eager's for the same inputs than to that for others.
- *with serial*, bit for bit, where serial repeats its own bits; otherwise a mode may be a few times
  as far off as runs of serial are apart.
- *with the same compiled code without graphs*, where the bits are not serial's. Buffers are not
  reused with lanes, so kernels can be others than serial's, and be tuned apart. A mode that has the
  bits of its own code counts as right, and as compiled apart: lanes have changed nothing.

Lanes that race would be as wrong as the delays between kernels make them. So runs with gaps and
runs without are compared.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness.compare import (
    LEAST,
    SPREAD_FACTOR,
    TOLERANCE,
    is_nearest,
    relative_error,
    same_bits,
    there_and_back,
    tolerated,
)
from benchmarks.harness.modes import Bench, Tensors
from benchmarks.harness.program import precisely
from benchmarks.parallel.modes import LANES, SERIAL, LaneRunner, eager
from benchmarks.parallel.workloads import Workload
from pygraph.torch_private.cuda import sleep

CHECKED = 3
"""Inputs that results are compared on, other ones than those of the clocks."""
RUNS = 2
"""Of the same code without graphs: with gaps between kernels, and without."""
DELAY_CYCLES = 20_000_000
"""Of a GPU's clock, in front of a run whose kernels shall stand close behind each other."""
MARGIN = 2.0
"""How many times as far off other inputs' results a result may be as off its own: rounding."""


@dataclass
class Reference:
    """What modes are compared with."""

    inputs: Sequence[Tensors]
    eager: list[Tensors]
    rounding: float
    tolerance: float
    distinct: bool
    """Whether different inputs give results that differ at all."""
    serial: list[Tensors] = field(default_factory=list)
    """What serial computed, once it was checked."""
    serial_spread: float = 0.0
    """How far runs of serial's code are apart."""
    serial_repeats: bool = True
    """Whether they all have the same bits."""


@dataclass
class Verdict:
    correct: bool = True
    reason: str | None = None
    relative_error: float = 0.0
    """Against eager; the largest of all inputs."""
    fresh: bool = True
    bit_equal_to_serial: bool | None = None
    distance_to_serial: float | None = None
    compiled_apart: bool | None = None
    """Its bits are not serial's, but those of its own compiled code without graphs."""

    def noted(self) -> dict[str, Any]:
        names = ("bit_equal_to_serial", "distance_to_serial", "compiled_apart")
        return {name: value for name, value in asdict(self).items() if name in names}


def learn_eager(bench: Bench, inputs: Sequence[Tensors]) -> Reference:
    runner = eager(bench, bench.model)
    found = [runner.compute(each) for each in inputs]
    rounding = apart(bench.workload, _precise(bench, inputs[0]), found[0])
    rounding = rounding if rounding < 1.0 else 0.0  # what is not comparable explains nothing
    least = TOLERANCE[bench.workload.dtype(bench.device.torch)]
    if bench.model.autocast:
        least = LEAST[True]
    distinct = not any(same_bits(a, b) for n, a in enumerate(found) for b in found[:n])
    return Reference(inputs, found, rounding, tolerated(least, rounding, 0.0), distinct)


def _precise(bench: Bench, inputs: Tensors) -> Tensors:
    """Eager's results in fp32, as types that can be compared with its own."""
    model = copy.deepcopy(bench.model).float()
    given = tuple(each.float() if each.is_floating_point() else each for each in inputs)
    with precisely(model):
        return eager(bench, model).compute(given)


def apart(workload: Workload, found: Tensors, expected: Tensors) -> float:
    """The largest relative error of results and gradients."""
    pairs = zip(_parts(workload, found), _parts(workload, expected), strict=True)
    return max(relative_error(_as_types(a, b), b) for a, b in pairs)


def _parts(workload: Workload, found: Tensors) -> list[Tensors]:
    if workload.trains:
        return [found[:1], found[1:]]
    return [found if workload.compared is None else workload.compared(found)]


def _as_types(found: Tensors, like: Tensors) -> Tensors:
    return tuple(a.to(b.dtype) for a, b in zip(found, like, strict=True))


def judge(mode: str, runner: LaneRunner, reference: Reference, bench: Bench) -> Verdict:
    order = there_and_back(len(reference.inputs))
    results = [(n, runner.compute(reference.inputs[n])) for n in order]
    verdict = Verdict()
    _against_eager(verdict, results, reference, bench.workload)
    if mode == SERIAL:
        _learn_serial(runner, results, reference, bench)
    elif mode in LANES and reference.serial:
        _against_serial(verdict, runner, results, reference, bench)
    verdict.correct = verdict.reason is None
    return verdict


def _against_eager(
    verdict: Verdict,
    results: Sequence[tuple[int, Tensors]],
    reference: Reference,
    workload: Workload,
) -> None:
    known = reference.eager
    verdict.relative_error = max(apart(workload, each, known[n]) for n, each in results)
    verdict.fresh = not reference.distinct or all(
        _is_fresh(n, each, known, workload) for n, each in results
    )
    if not verdict.relative_error <= reference.tolerance:
        off = f"relative error {verdict.relative_error:.2e} against eager"
        verdict.reason = f"{off}, over {reference.tolerance:.2e}"
    elif not verdict.fresh:
        verdict.reason = "a result is that of other inputs"


def _is_fresh(n: int, found: Tensors, known: Sequence[Tensors], workload: Workload) -> bool:
    return is_nearest(n, len(known), lambda m: apart(workload, found, known[m]), MARGIN)


def _learn_serial(
    runner: LaneRunner,
    results: Sequence[tuple[int, Tensors]],
    reference: Reference,
    bench: Bench,
) -> None:
    first = dict(reversed(results))
    reference.serial = [first[n] for n in range(len(reference.inputs))]
    every = [*results, *_without_graphs(runner, reference, bench)]
    reference.serial_repeats = all(same_bits(each, first[n]) for n, each in every)
    reference.serial_spread = _farthest(every, reference.serial)


def _without_graphs(
    runner: LaneRunner, reference: Reference, bench: Bench
) -> list[tuple[int, Tensors]]:
    """By the number of the inputs."""
    from pygraph.runtime.registry import without_graphs

    found = []
    with without_graphs():
        for n, inputs in enumerate(reference.inputs):
            for run in range(RUNS):
                if bench.device.is_cuda and run % 2:
                    sleep(DELAY_CYCLES)
                found.append((n, runner.compute(inputs)))
    return found


def _farthest(results: Iterable[tuple[int, Tensors]], expected: Sequence[Tensors]) -> float:
    return max(relative_error(each, expected[n]) for n, each in results)


def _against_serial(
    verdict: Verdict,
    runner: LaneRunner,
    results: Sequence[tuple[int, Tensors]],
    reference: Reference,
    bench: Bench,
) -> None:
    known = reference.serial
    verdict.bit_equal_to_serial = all(same_bits(each, known[n]) for n, each in results)
    if verdict.bit_equal_to_serial:
        return
    verdict.distance_to_serial = distance = _farthest(results, known)
    if not reference.serial_repeats:
        if not distance <= SPREAD_FACTOR * reference.serial_spread:
            spread = f"whose own runs are {reference.serial_spread:.2e} apart"
            verdict.reason = verdict.reason or f"{distance:.2e} off serial, {spread}"
        return
    own = _without_graphs(runner, reference, bench)
    verdict.compiled_apart = all(same_bits(a, b) for n, a in results for m, b in own if n == m)
    if not verdict.compiled_apart:
        same = "nor those of the same code without graphs"
        verdict.reason = verdict.reason or f"not serial's bits ({distance:.2e} off), {same}"
