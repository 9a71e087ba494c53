"""Whether a mode computes what it should, before anything is timed: as harness/compare.py tells.

Every mode runs the same inputs from the same seeds, forwards and backwards through them. Results,
and in training the gradients, are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from benchmarks.harness import compare
from benchmarks.harness.compare import (
    LEAST,
    SEED,
    SPREAD_FACTOR,
    Distances,
    is_nearest,
    relative_error,
    there_and_back,
    tolerated,
)
from benchmarks.harness.modes import Bench, Tensors
from benchmarks.harness.program import precisely
from benchmarks.paper.modes import Iteration
from pygraph.torch_private.cuda import sleep

EAGER_SEEDS = 2
RUNS = 3
CALLED = {"outputs": "results", "gradients": "gradients"}
"""In reasons, by kind."""
SEED_FACTOR = 3.0
DELAY_CYCLES = 20_000_000
"""In front of every second run, so that its kernels stand as close as those of a graph: the order
of atomics depends on it."""


@dataclass
class Outcome:
    """What an iteration left, in memory of its own."""

    outputs: Tensors
    gradients: tuple[Any, ...] = ()
    """By parameter; None where the results do not depend on it."""


@dataclass(frozen=True)
class Apart(Distances):
    """How far two outcomes are apart, relative."""

    outputs: float = 0.0
    gradients: float = 0.0


@dataclass
class Verdict:
    correct: bool = True
    reason: str | None = None
    relative_error: float | None = None
    """Of the results against eager; the largest of all inputs."""
    gradient_error: float | None = None
    fresh: bool | None = None
    bit_equal_to_default: bool | None = None
    distance_to_default: float | None = None
    bit_equal_to_uncaptured: bool | None = None
    """pygraph: to the same compiled code without graphs; so are the next two."""
    distance_to_uncaptured: float | None = None
    uncaptured_spread: float | None = None
    replays: int | None = None
    """pygraph: calls that graphs served while it was judged."""


@dataclass
class Reference:
    """What modes are compared with, and how much that is worth."""

    inputs: Sequence[Tensors]
    eager: list[Outcome] = field(default_factory=list)
    tolerance: Apart = field(default_factory=lambda: Apart(math.inf, math.inf))
    rounding: Apart | None = None
    """Of eager from itself without autocast."""
    seeds: Apart | None = None
    """Of eager from itself with another seed, where the program draws random numbers."""
    default: list[Outcome] = field(default_factory=list)
    default_spread: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "inputs": len(self.inputs),
            "tolerance": asdict(self.tolerance),
            "rounding": asdict(self.rounding) if self.rounding else None,
            "seeds": asdict(self.seeds) if self.seeds else None,
            "default_spread": self.default_spread,
        }


def outcome(iteration: Iteration, inputs: Tensors, seed: int, dense: bool = False) -> Outcome:
    """Of one iteration from this seed. `dense`: a GPU's kernels run without gaps."""
    torch.manual_seed(seed)
    if dense:
        sleep(DELAY_CYCLES)
    with iteration.all_results():
        outputs = tuple(output.detach().clone() for output in iteration.run(inputs))
    gradients = tuple(
        None if gradient is None else gradient.detach().clone()
        for gradient in iteration.gradients()
    )
    iteration.forget()
    return Outcome(outputs, gradients)


def gradient_distance(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """A gradient that is missing is one of zeros: compiled code makes zeros for parameters that
    eager finds to have no part in the results."""
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a is not None or b is not None]
    return relative_error(
        tuple(torch.zeros_like(b) if a is None else a for a, b in pairs),
        tuple(torch.zeros_like(a) if b is None else b for a, b in pairs),
    )


def same_bits(found: Outcome, expected: Outcome) -> bool:
    both = [(*each.outputs, *each.gradients) for each in (found, expected)]
    there = [[tensor is not None for tensor in each] for each in both]
    ours, theirs = (tuple(tensor for tensor in each if tensor is not None) for each in both)
    return there[0] == there[1] and compare.same_bits(ours, theirs)


def apart(bench: Bench, found: Outcome, expected: Outcome, whole: bool = True) -> Apart:
    """`whole`: all of the results, not only what eager can be compared with."""
    select = None if whole else bench.workload.compared
    ours, theirs = found.outputs, expected.outputs
    if select is not None:
        ours, theirs = select(ours), select(theirs)
    gradients = gradient_distance(found.gradients, expected.gradients)
    return Apart(relative_error(ours, theirs), gradients)


def learn_eager(reference: Reference, bench: Bench) -> None:
    """Eager's results, its rounding, and how far it moves from seed to seed."""
    eager = bench.runners["eager"]
    reference.eager = [outcome(eager, each, SEED + n) for n, each in enumerate(reference.inputs)]
    first = reference.eager[0]
    least = LEAST[bool(bench.model.autocast)]
    with precisely(bench.model):
        precise = outcome(eager, reference.inputs[0], SEED)
    reference.rounding = _as_far(bench, precise, first)
    seeds = Apart()
    if bench.workload.random:
        others = [outcome(eager, reference.inputs[0], SEED + 100 + n) for n in range(EAGER_SEEDS)]
        seeds = Apart.widest(apart(bench, each, first, False) for each in others)
        reference.seeds = seeds
    reference.tolerance = Apart(
        tolerated(least, reference.rounding.outputs, SEED_FACTOR * seeds.outputs),
        tolerated(least, reference.rounding.gradients, SEED_FACTOR * seeds.gradients),
    )


def _as_far(bench: Bench, precise: Outcome, first: Outcome) -> Apart:
    """Types differ where autocast decides on them; what is not comparable explains nothing."""
    outputs = tuple(a.to(b.dtype) for a, b in zip(precise.outputs, first.outputs, strict=True))
    found = apart(bench, Outcome(outputs, precise.gradients), first, False)
    return Apart(*(each if each < 1.0 else 0.0 for each in (found.outputs, found.gradients)))


def judge(mode: str, reference: Reference, bench: Bench) -> Verdict:
    """Runs the mode on all inputs of the check, in order and again in reverse."""
    iteration, verdict = bench.runners[mode], Verdict()
    before = iteration.counted("replays")
    found: list[Outcome | None] = [None] * len(reference.inputs)
    errors, to_default, equal, fresh = [Apart()], [Apart()], True, True
    for n in there_and_back(len(reference.inputs)):
        result = outcome(iteration, reference.inputs[n], SEED + n)
        if reference.eager and mode != "eager":
            errors.append(apart(bench, result, reference.eager[n], False))
        earlier = found[n]
        if mode == "default" and earlier is not None:
            spread = apart(bench, result, earlier).largest
            reference.default_spread = max(reference.default_spread, spread)
        if reference.default:
            to_default.append(apart(bench, result, reference.default[n]))
            equal = equal and same_bits(result, reference.default[n])
            fresh = fresh and _is_fresh(bench, n, result, reference)
        found[n] = earlier or result
    if mode == "default":
        reference.default = [each for each in found if each is not None]
    elif reference.default and mode != "eager":
        verdict.bit_equal_to_default, verdict.fresh = equal, fresh
        verdict.distance_to_default = Apart.widest(to_default).largest
    _against_eager(verdict, Apart.widest(errors), reference, mode)
    if iteration.graphs:
        verdict.replays = iteration.counted("replays") - before
        _against_uncaptured(verdict, iteration, reference, bench)
    if not fresh:
        verdict.reason = verdict.reason or "a result is that of other inputs"
    verdict.correct = verdict.reason is None
    return verdict


def _against_eager(verdict: Verdict, error: Apart, reference: Reference, mode: str) -> None:
    if mode == "eager" or not reference.eager:
        return
    verdict.relative_error, verdict.gradient_error = error.outputs, error.gradients
    for kind, found, most in error.beyond(reference.tolerance):
        off = f"relative error {found:.2e} against eager, over {most:.2e}"
        verdict.reason = f"{CALLED[kind]}: {off}"
        if mode == "default" and reference.default_spread:
            verdict.reason += f"; two runs of it are {reference.default_spread:.2e} apart"
        return


def _is_fresh(bench: Bench, n: int, result: Outcome, reference: Reference) -> bool:
    """Random numbers are the same for the same seed only where the same code draws them."""
    if bench.workload.random:
        return True
    known = reference.default
    return is_nearest(n, len(known), lambda m: apart(bench, result, known[m]).largest)


def _against_uncaptured(
    verdict: Verdict, iteration: Iteration, reference: Reference, bench: Bench
) -> None:
    """The fine sieve, input by input: several runs without graphs, one with."""
    from pygraph.runtime.registry import without_graphs

    spread, off, equal = Apart(), Apart(), True
    for n, inputs in enumerate(reference.inputs):
        with without_graphs():
            runs = [
                outcome(iteration, inputs, SEED + n, dense=bench.device.is_cuda and run % 2 == 1)
                for run in range(RUNS)
            ]
        spread = Apart.widest([spread, *(apart(bench, each, runs[0]) for each in runs[1:])])
        graphed = outcome(iteration, inputs, SEED + n)
        off = Apart.widest([off, apart(bench, graphed, runs[0])])
        equal = equal and same_bits(graphed, runs[0])
    verdict.bit_equal_to_uncaptured = equal
    verdict.distance_to_uncaptured, verdict.uncaptured_spread = off.largest, spread.largest
    for kind, distance, own in () if equal else off.beyond(spread, SPREAD_FACTOR):
        verdict.reason = verdict.reason or (
            f"{CALLED[kind]}: {distance:.2e} off the same code without graphs, whose own runs are "
            f"{own:.2e} apart"
        )
