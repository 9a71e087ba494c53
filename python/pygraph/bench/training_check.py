"""Whether a mode trains as it should, before anything is timed.

Every mode starts from the same weights and the same seed and takes a few steps on inputs that it
has not seen. What it leaves, its *track*, is compared:

- *With eager*: losses, and the gradients of the first step. Eager rounds elsewhere, and draws other
  random numbers than compiled code for the same seed. So a mode may be off by a few times what
  eager is off without autocast, and by as much as eager itself moves from seed to seed. Where
  dropout is on, that is a coarse sieve.
- *With the default mode*: losses, weights, buffers and the first gradients, bit for bit. Where
  default does not repeat its own bits (kernels with atomics), a mode may be a few times as far off
  as default is from itself, measured on several runs; in every second one the kernels stand as
  close behind each other as a graph's, for the order of atomics depends on it. The first gradients
  are judged one by one. What the optimizer makes of them is judged as a whole: where a gradient is
  nearly 0, its last bits decide on the direction of a step. This is the fine sieve: all modes run
  the same kernels and must draw the same random numbers.

All modes are compiled and were called before the first track is taken; see training_modes.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from pygraph.bench.compare import ROUNDING, same_bits
from pygraph.bench.modes import Tensors
from pygraph.bench.training_models import precisely
from pygraph.bench.training_modes import COMPILED, Bench, Trainer, state

STEPS = 3
SEED = 7
EAGER_SEEDS = 3
DEFAULT_RUNS = 6
DELAY_CYCLES = 100_000_000
"""Some 50 ms of a GPU's clock: longer than the host takes to launch a step."""
SPREAD_FACTOR = 4.0
"""How much farther from default than default from itself, as in the proofs of graphs."""
LEAST_DISTANCE = 1e-30
LEAST = {True: 5e-2, False: 1e-3}
"""Least tolerance against eager, relative: with autocast to bf16, and without."""


@dataclass
class Track:
    """What some steps left."""

    losses: list[float]
    gradients: list[Any]
    """Of the first step."""
    state: dict[str, Any]
    """All weights and buffers after the last."""

    def tensors(self) -> dict[str, Any]:
        gradients = {f"gradient {n}": each for n, each in enumerate(self.gradients)}
        return {
            **self.state,
            **{name: each for name, each in gradients.items() if each is not None},
        }


@dataclass
class Verdict:
    correct: bool = True
    reason: str | None = None
    bit_equal_to_default: bool | None = None
    """Losses, weights, buffers and first gradients; None where there is no default to compare."""
    distance_to_default: float | None = None
    """Largest over all tensors: norm of the difference over norm of what the steps changed."""
    losses: list[float] = field(default_factory=list)
    loss_error: float | None = None
    """Against eager, relative; so is `gradient_error`, over all gradients together."""
    gradient_error: float | None = None
    other_random_numbers: bool = False
    """Differs from default, and is as near to eager as another seed: accepted of torch's own."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Reference:
    """What modes are compared with, and how much that is worth."""

    start: dict[str, Any]
    eager: Track | None = None
    default: Track | None = None
    loss_tolerance: float = math.inf
    gradient_tolerance: float = math.inf
    spread: dict[str, float] = field(default_factory=dict)
    """Of default's own runs: by tensor, the largest distance to the first."""
    loss_spread: float = 0.0

    @property
    def repeats(self) -> bool:
        """Whether default gave the same bits in all its runs."""
        return self.loss_spread == 0.0 and not any(self.spread.values())

    def to_dict(self) -> dict[str, Any]:
        return {
            "steps": STEPS,
            "loss_tolerance": self.loss_tolerance,
            "gradient_tolerance": self.gradient_tolerance,
            "default_repeats_its_bits": self.repeats,
            "default_spread": max(self.spread.values(), default=0.0),
            "default_loss_spread": self.loss_spread,
        }


def take(
    trainer: Trainer,
    start: dict[str, Any],
    inputs: Sequence[Tensors],
    seed: int,
    dense: bool = False,
) -> Track:
    """Some steps from the start. `dense`: a GPU's kernels run without gaps."""
    trainer.restore(start)
    torch.manual_seed(seed)
    losses: list[float] = []
    gradients: list[Any] = []
    for each in inputs:
        if dense:
            torch.cuda._sleep(DELAY_CYCLES)
        losses.append(float(trainer.take_step(each).detach()))
        if not gradients:
            gradients = [None if grad is None else grad.clone() for grad in trainer.gradients()]
    return Track(losses, gradients, copied(trainer.program))


def copied(program: Any) -> dict[str, Any]:
    return {name: tensor.detach().clone() for name, tensor in state(program).items()}


def _norm(tensor: Any) -> float:
    return float(torch.linalg.vector_norm(tensor.float(), dtype=torch.float64))


def gradient_error(found: Track, expected: Track) -> float:
    """Over all gradients together; infinite where one is missing."""
    apart = size = 0.0
    for a, b in zip(found.gradients, expected.gradients, strict=True):
        if (a is None) != (b is None):
            return math.inf
        if a is not None:
            apart += _norm(a - b) ** 2
            size += _norm(b) ** 2
    return _over(math.sqrt(apart), math.sqrt(size))


def _over(apart: float, size: float) -> float:
    if apart == 0.0:
        return 0.0
    # Not a number compares as nothing: it is as far as can be.
    return apart / size if size > 0.0 and math.isfinite(apart) else math.inf


def loss_error(found: Track, expected: Track) -> float:
    """The largest of all steps, relative."""
    pairs = zip(found.losses, expected.losses, strict=True)
    return max(_over(abs(a - b), abs(b)) for a, b in pairs)


def distances(found: Track, expected: Track, start: dict[str, Any]) -> dict[str, float]:
    """By tensor: 0 for the same bits, else relative to what the steps changed."""
    a, b = found.tensors(), expected.tensors()
    result = {}
    for name in a.keys() | b.keys():
        if name not in a or name not in b:
            result[name] = math.inf
        elif same_bits((a[name],), (b[name],)):
            result[name] = 0.0
        else:
            change = b[name] - start[name] if name in start else b[name]
            # Bits can differ where values do not: plus and minus zero.
            apart = _norm(a[name].float() - b[name].float()) or LEAST_DISTANCE
            result[name] = _over(apart, _norm(change))
    return result


def learn_eager(reference: Reference, bench: Bench, inputs: Sequence[Tensors]) -> None:
    """Eager's track, its rounding, and how far it moves from seed to seed."""
    trainer = bench.trainers["eager"]
    tracks = [take(trainer, reference.start, inputs, SEED + n) for n in range(EAGER_SEEDS)]
    with precisely(trainer.keep):
        precise = take(trainer, reference.start, inputs, SEED)
    first = tracks[0]
    least = LEAST[bool(trainer.program.autocast)]
    seeds = [loss_error(each, first) for each in tracks[1:]]
    reference.loss_tolerance = _tolerance(least, loss_error(precise, first), seeds, 3.0)
    seeds = [gradient_error(each, first) for each in tracks[1:]]
    reference.gradient_tolerance = _tolerance(least, gradient_error(precise, first), seeds, 1.5)
    reference.eager = first


def _tolerance(least: float, rounding: float, seeds: Iterable[float], factor: float) -> float:
    return max(least, ROUNDING * rounding) + factor * max(seeds)


def learn_default(reference: Reference, bench: Bench, inputs: Sequence[Tensors]) -> None:
    """Default's track, and its run-to-run spread."""
    trainer = bench.trainers["default"]
    first = take(trainer, reference.start, inputs, SEED)
    on_gpu = any(tensor.is_cuda for tensor in reference.start.values())
    for run in range(DEFAULT_RUNS - 1):
        again = take(trainer, reference.start, inputs, SEED, dense=on_gpu and run % 2 == 0)
        reference.loss_spread = max(reference.loss_spread, loss_error(again, first))
        for name, distance in distances(again, first, reference.start).items():
            reference.spread[name] = max(reference.spread.get(name, 0.0), distance)
    reference.default = first


def judge(mode: str, track: Track, reference: Reference, random: bool = False) -> Verdict:
    """`random`: the program draws random numbers, and torch's own modes may draw others."""
    verdict = Verdict(losses=track.losses)
    if not all(map(math.isfinite, track.losses)):
        verdict.reason = f"a loss is not finite: {track.losses}"
    if reference.eager is not None and mode != "eager":
        verdict.loss_error = loss_error(track, reference.eager)
        verdict.gradient_error = gradient_error(track, reference.eager)
        verdict.reason = verdict.reason or _far_from_eager(verdict, reference)
    if reference.default is not None and mode in COMPILED:
        against = _far_from_default(verdict, track, reference)
        if mode == "pygraph" or not random:
            verdict.reason = verdict.reason or against
        else:
            verdict.other_random_numbers = against is not None and verdict.reason is None
    verdict.correct = verdict.reason is None
    return verdict


def _far_from_eager(verdict: Verdict, reference: Reference) -> str | None:
    for what, error, tolerance in (
        ("loss", verdict.loss_error, reference.loss_tolerance),
        ("gradients", verdict.gradient_error, reference.gradient_tolerance),
    ):
        if error is not None and not error <= tolerance:
            return f"{what}: relative error {error:.2e} against eager, over {tolerance:.2e}"
    return None


def _far_from_default(verdict: Verdict, track: Track, reference: Reference) -> str | None:
    assert reference.default is not None
    found = distances(track, reference.default, reference.start)
    loss = loss_error(track, reference.default)
    verdict.distance_to_default = max(found.values(), default=0.0)
    verdict.bit_equal_to_default = loss == 0.0 and verdict.distance_to_default == 0.0
    if verdict.bit_equal_to_default:
        return None
    if not loss <= SPREAD_FACTOR * reference.loss_spread:
        spread = reference.loss_spread
        return f"loss: {loss:.2e} off default, whose own runs are {spread:.2e} apart"
    largest = max(reference.spread.values(), default=0.0)
    for name, distance in sorted(found.items(), key=lambda item: -item[1]):
        spread = largest if name in reference.start else reference.spread.get(name, 0.0)
        if not distance <= SPREAD_FACTOR * spread:
            return f"{name}: {distance:.2e} off default, whose own runs are {spread:.2e} apart"
    return None
