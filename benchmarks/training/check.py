"""Whether a mode trains as it should, before anything is timed: as harness/compare.py tells.

Every mode starts from the same weights and the same seed and takes a few steps. What it leaves, its
*track*, is compared:

- *With eager*: losses, and the gradients of the first step.
- *With the same code*: losses, weights, buffers and the first gradients. The floor, which captures
  default's code, is compared with default. The first gradients are judged one by one. What the
  optimizer makes of them is judged as a whole: where a gradient is nearly 0, its last bits decide
  on the direction of a step.
- *With default, compiled apart*: Inductor tunes the kernels of each compilation by time, and those
  that it takes may sum in another order, so that bits of two compilations differ by chance. A mode
  may be a few times as far off as default is from itself, as reduce-overhead is from default, and
  as pygraph without graphs is (what separate tuning makes); the latter two count only as far as
  rounding explains them. For that, default is run from weights that are off by what rounding makes.
  Other random numbers or a wrong gradient are farther off.

All modes are compiled and were called before the first track is taken; see modes.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness.compare import LEAST, SEED, SPREAD_FACTOR, tolerated
from benchmarks.harness.modes import COMPILED, Bench, Tensors
from benchmarks.harness.program import precisely
from benchmarks.harness.reports import Counts, read_report
from benchmarks.training.tracks import (
    SAME,
    Gap,
    Runs,
    Track,
    distances,
    gap,
    gradient_error,
    loss_error,
    take,
    take_nudged,
    take_runs,
)

STEPS = 3
EAGER_SEEDS = 3
NUDGES = 2
UNIT = {True: 2.0**-9, False: 2.0**-18}
"""What rounding makes of a weight, relative: with autocast to bf16, and without."""


@dataclass
class Served:
    """Which calls graphs served while pygraph was judged."""

    graphs: int = 0
    """Compiled graphs that run as CUDA graphs."""
    calls: int = 0
    replays: int = 0
    """Of pygraph's own track, as are the calls."""
    replays_uncaptured: int = 0
    """Of the runs that are to be without graphs."""

    @property
    def problem(self) -> str | None:
        """Why pygraph's graphs were not compared with the same code without them."""
        if self.replays_uncaptured:
            return f"graphs served {self.replays_uncaptured} calls of the runs without graphs"
        if self.graphs and not self.replays:
            return f"none of {self.graphs} graphs served any of the {self.calls} calls"
        return None


@dataclass
class Verdict:
    correct: bool = True
    reason: str | None = None
    bit_equal_to_default: bool | None = None
    """Losses, weights, buffers and first gradients; None where there is no default to compare."""
    distance_to_default: float | None = None
    """Largest over all tensors: norm of the difference over norm of what the steps changed."""
    gap_to_default: dict[str, float] | None = None
    """By kind."""
    bit_equal_to_uncaptured: bool | None = None
    """pygraph: of its graphs, to the same compiled code without them; so is the next."""
    distance_to_uncaptured: float | None = None
    tuning_distance: dict[str, float] | None = None
    """pygraph: of its code without graphs to default, by kind."""
    served: dict[str, int] | None = None
    """pygraph: `Served`."""
    losses: list[float] = field(default_factory=list)
    loss_error: float | None = None
    """Against eager, relative; so is `gradient_error`, over all gradients together."""
    gradient_error: float | None = None
    other_random_numbers: bool = False
    """Differs from default, and is as near to eager as another seed: accepted of torch's own."""


@dataclass
class Reference:
    """What modes are compared with, and how much that is worth."""

    start: dict[str, Any]
    eager: Track | None = None
    loss_tolerance: float = math.inf
    gradient_tolerance: float = math.inf
    default: Runs | None = None
    rounding: Gap = SAME
    """How far default moves where its weights are off by what rounding makes."""
    reduce_overhead: Gap = SAME
    """From default."""
    uncaptured: Runs | None = None
    """pygraph's code without graphs."""
    served: Served | None = None

    def allowed(self, apart: Gap) -> Gap:
        """How far code that was compiled apart may be from default, given what other such code is;
        that counts only as far as rounding explains it."""
        assert self.default is not None
        own = self.default.own.to_dict()
        explained = Gap.widest((self.default.own, self.rounding)).to_dict()
        return Gap(
            *(
                SPREAD_FACTOR * max(own[kind], min(each, SPREAD_FACTOR * explained[kind]))
                for kind, each in apart.to_dict().items()
            )
        )

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "steps": STEPS,
            "loss_tolerance": self.loss_tolerance,
            "gradient_tolerance": self.gradient_tolerance,
        }
        if self.default is not None:
            found |= self.default.to_dict("default")
            found |= {"rounding": self.rounding.to_dict()}
        if self.uncaptured is not None:
            found |= self.uncaptured.to_dict("uncaptured")
        return found


def learn_eager(reference: Reference, bench: Bench, inputs: Sequence[Tensors]) -> None:
    """Eager's track, its rounding, and how far it moves from seed to seed."""
    trainer = bench.runners["eager"]
    tracks = [take(trainer, reference.start, inputs, SEED + n) for n in range(EAGER_SEEDS)]
    with precisely(trainer.keep):
        precise = take(trainer, reference.start, inputs)
    first = tracks[0]
    least = LEAST[bool(trainer.program.autocast)]
    seeds = [loss_error(each, first) for each in tracks[1:]]
    rounding = loss_error(precise, first)
    reference.loss_tolerance = tolerated(least, rounding, 3.0 * max(seeds))
    seeds = [gradient_error(each, first) for each in tracks[1:]]
    rounding = gradient_error(precise, first)
    reference.gradient_tolerance = tolerated(least, rounding, 1.5 * max(seeds))
    reference.eager = first


def learn_default(reference: Reference, bench: Bench, inputs: Sequence[Tensors]) -> None:
    """Default's track, its run-to-run spread, and what rounding does to it."""
    trainer, start = bench.runners["default"], reference.start
    runs = take_runs(trainer, start, inputs)
    unit = UNIT[bool(trainer.program.autocast)]
    nudged = [take_nudged(trainer, start, inputs, unit, SEED + n) for n in range(NUDGES)]
    reference.rounding = Gap.widest(gap(each, runs.first, start) for each in nudged)
    reference.default = runs


def learn_pygraph(reference: Reference, bench: Bench, inputs: Sequence[Tensors]) -> Track:
    """pygraph's own track, returned, and that of its code without graphs with its spread."""
    from pygraph.runtime import registry

    trainer, start = bench.runners["pygraph"], reference.start
    before = Counts.of(read_report())
    track = take(trainer, start, inputs)
    report = read_report()
    after = Counts.of(report)
    with registry.without_graphs():
        reference.uncaptured = take_runs(trainer, start, inputs)
    reference.served = Served(
        sum(graph.graphed for graph in report.graphs),
        after.calls - before.calls,
        after.replays - before.replays,
        read_report().replays - after.replays,
    )
    return track


def judge(mode: str, track: Track, reference: Reference, random: bool = False) -> Verdict:
    """`random`: the program draws random numbers, and torch's own modes may draw others."""
    verdict = Verdict(losses=track.losses)
    if not all(map(math.isfinite, track.losses)):
        verdict.reason = f"a loss is not finite: {track.losses}"
    if reference.eager is not None and mode != "eager":
        verdict.loss_error = loss_error(track, reference.eager)
        verdict.gradient_error = gradient_error(track, reference.eager)
        verdict.reason = verdict.reason or _far_from_eager(verdict, reference)
    if mode == "pygraph":
        against = _far_from_uncaptured(verdict, track, reference)
        verdict.reason = verdict.reason or against
    if reference.default is not None and mode in COMPILED:
        _judge_by_default(mode, verdict, track, reference, random)
    verdict.correct = verdict.reason is None
    return verdict


def _judge_by_default(
    mode: str, verdict: Verdict, track: Track, reference: Reference, random: bool
) -> None:
    assert reference.default is not None
    found = gap(track, reference.default.first, reference.start)
    verdict.gap_to_default = found.to_dict()
    against, largest, equal = _far_from("default", track, reference.default, reference.start)
    verdict.distance_to_default, verdict.bit_equal_to_default = largest, equal
    if mode == "pygraph":
        tuning = SAME
        if reference.uncaptured is not None:
            tuning = gap(reference.uncaptured.first, reference.default.first, reference.start)
            verdict.tuning_distance = tuning.to_dict()
        apart = Gap.widest((tuning, reference.reduce_overhead))
        against = _far_by_kind(found, reference.allowed(apart))
    elif mode == "reduce-overhead":
        reference.reduce_overhead = found
        # The same bits, the spread of default, or other kernels that are as right.
        against = against and _far_by_kind(found, reference.allowed(found))
    if random and mode in ("reduce-overhead", "floor"):
        verdict.other_random_numbers = against is not None and verdict.reason is None
        against = None
    verdict.reason = verdict.reason or against


def _far_from_eager(verdict: Verdict, reference: Reference) -> str | None:
    for what, error, tolerance in (
        ("loss", verdict.loss_error, reference.loss_tolerance),
        ("gradients", verdict.gradient_error, reference.gradient_tolerance),
    ):
        if error is not None and not error <= tolerance:
            return f"{what}: relative error {error:.2e} against eager, over {tolerance:.2e}"
    return None


def _far_from_uncaptured(verdict: Verdict, track: Track, reference: Reference) -> str | None:
    problem = None
    if reference.served is not None:
        verdict.served = asdict(reference.served)
        problem = reference.served.problem
    if reference.uncaptured is None:
        return problem or "its code was not run without graphs"
    against, largest, equal = _far_from(
        "the same code without graphs", track, reference.uncaptured, reference.start
    )
    verdict.distance_to_uncaptured, verdict.bit_equal_to_uncaptured = largest, equal
    return problem or against


def _far_by_kind(found: Gap, allowed: Gap) -> str | None:
    for kind, distance, most in found.beyond(allowed):
        return f"{kind}: {distance:.2e} off default, and {most:.2e} is explained"
    return None


def _far_from(
    whom: str, track: Track, runs: Runs, start: dict[str, Any]
) -> tuple[str | None, float, bool]:
    """Against the same code: what is farther off than that is from itself, if anything; the
    largest distance; and whether all bits are the same."""
    found = distances(track, runs.first, start)
    loss = loss_error(track, runs.first)
    farthest = max(found.values(), default=0.0)
    if loss == 0.0 and farthest == 0.0:
        return None, farthest, True
    largest = max(runs.spread.values(), default=0.0)
    off = [("loss", loss, runs.own.losses)]
    for name, distance in sorted(found.items(), key=lambda item: -item[1]):
        off.append((name, distance, largest if name in start else runs.spread.get(name, 0.0)))
    for name, distance, spread in off:
        if not distance <= SPREAD_FACTOR * spread:
            reason = f"{name}: {distance:.2e} off {whom}, whose own runs are {spread:.2e} apart"
            return reason, farthest, False
    return None, farthest, False
