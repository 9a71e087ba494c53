"""Whether a mode computes what it should, before anything is timed.

Every mode takes the same steps, from the same state, inputs and seed of the generator. What it
leaves, its *track* (all results, and all state after the last step), is compared:

- *Eager's kernels* (torch.cuda.graph, the floor, make_graphed_callables, pygraph): bit for bit with
  eager, or a few times as far off as eager is from itself, tensor by tensor. In some of eager's
  runs the kernels stand as close behind each other as a graph's, for the order of atomics depends
  on it.
- *Inductor's kernels* (default, reduce-overhead): as far off eager as rounding explains, which is
  found by eager from weights that are off by as much. Compiled code draws other random numbers;
  where a row draws any, as far as another seed takes eager, which is a coarse sieve.
- *pygraph-compiled* as those, and it is compared with default: bit for bit, or a few times as far
  off as default is from itself or as rounding explains, since the two are compiled apart.

Stale inputs would show in the state: of other inputs, gradients are others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.callables.modes import COMPILED, OWN_COMPILED, Caller
from benchmarks.callables.program import Row
from benchmarks.harness.compare import (
    LEAST,
    ROUNDING,
    SEED,
    SPREAD_FACTOR,
    Distances,
    by_tensor,
    relative_error,
    same_bits,
    together,
)
from benchmarks.harness.modes import Tensors
from pygraph.torch_private.cuda import sleep

STEPS = 5
RUNS = 4
"""How often the same code is run for its spread."""
NUDGES = 2
SEEDS = 2
OTHER_SEED = 1.5
"""How many times as far as another seed takes eager compiled code may be off."""
DELAY_CYCLES = 100_000_000
"""Some 50 ms of a GPU's clock: longer than the host takes to launch a unit."""
UNIT = {True: 2.0**-8, False: 2.0**-18}
"""What rounding makes of a weight, relative: where units compute in 16 bits, and where not."""


@dataclass
class Track:
    """What some steps left."""

    outputs: list[Tensors]
    """Of each step."""
    state: dict[str, Any]

    def same_bits(self, other: Track) -> bool:
        return (
            len(self.outputs) == len(other.outputs)
            and all(map(same_bits, self.outputs, other.outputs))
            and self.state.keys() == other.state.keys()
            and all(same_bits((each,), (other.state[n],)) for n, each in self.state.items())
        )


@dataclass(frozen=True)
class Apart(Distances):
    """How far two tracks are apart, relative."""

    outputs: float = 0.0
    """The largest of all steps."""
    state: float = 0.0
    """Over all tensors together, to what the steps changed."""
    tensor: float = 0.0
    """Of the state's tensors alone, the largest."""


@dataclass
class Runs:
    """A track, and how far further ones of the same code are from it."""

    first: Track
    own: Apart = field(default_factory=Apart)


@dataclass
class Reference:
    """What modes are compared with."""

    start: Mapping[str, Any]
    eager: Runs
    rounding: Apart = field(default_factory=Apart)
    """How far eager moves where its weights are off by what rounding makes."""
    seeds: Apart = field(default_factory=Apart)
    """And with other random numbers."""
    least: float = LEAST[False]
    default: Runs | None = None

    def of_compiled(self) -> Apart:
        """How far Inductor's kernels may be off eager. Of single tensors nothing is asked: where a
        gradient is nearly 0, its last bits decide on the direction of Adam's step."""
        return Apart(self._tolerated("outputs"), self._tolerated("state"), float("inf"))

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "steps": STEPS,
            "eager_spread": self.eager.own.to_dict(),
            "rounding": self.rounding.to_dict(),
            "seeds": self.seeds.to_dict(),
        }
        if self.default is not None:
            found["default_spread"] = self.default.own.to_dict()
        return found

    def _tolerated(self, kind: str) -> float:
        rounding, seeds = getattr(self.rounding, kind), getattr(self.seeds, kind)
        return max(self.least, ROUNDING * rounding) + OTHER_SEED * seeds


@dataclass
class Verdict:
    correct: bool = True
    reason: str | None = None
    bit_equal: bool | None = None
    """To eager, or of pygraph-compiled to default."""
    against: str | None = None
    apart: dict[str, float] = field(default_factory=dict)
    allowed: dict[str, float] = field(default_factory=dict)


def take(
    caller: Caller,
    start: Mapping[str, Any],
    inputs: Sequence[Tensors],
    seed: int = SEED,
    dense: bool = False,
) -> Track:
    """Steps from the start. `dense`: a GPU's kernels run without gaps."""
    assert caller.program is not None
    caller.program.restore(start)
    torch.manual_seed(seed)
    outputs = []
    for each in inputs:
        if dense:
            sleep(DELAY_CYCLES)
        outputs.append(caller.compute(each))
    return Track(outputs, caller.program.copied())


def apart(found: Track, expected: Track, start: Mapping[str, Any]) -> Apart:
    """Infinite where one has what the other lacks."""
    outputs = [
        relative_error(_measured(a), _measured(b))
        for a, b in zip(found.outputs, expected.outputs, strict=True)
    ]
    single = by_tensor(found.state, expected.state, start)
    largest = max(single.values(), default=0.0)
    if found.state.keys() != expected.state.keys():
        return Apart(tensor=largest)
    floats = {
        name: (found.state[name].float() - each.float(), each.float() - _at(start, name))
        for name, each in expected.state.items()
        # A counter of steps outweighs what it counts.
        if each.is_floating_point() and each.dim()
    }
    return Apart(
        max(outputs, default=0.0),
        together(floats.values()),
        largest,
    )


def _measured(outputs: Tensors) -> Tensors:
    """Indices say little about how far off what they were chosen by is; where there is nothing
    else, they count."""
    return tuple(each for each in outputs if each.is_floating_point()) or outputs


def _at(start: Mapping[str, Any], name: str) -> Any:
    """An optimizer's state was zeros, before it was there."""
    return start[name].float() if name in start else 0.0


def take_runs(
    caller: Caller, start: Mapping[str, Any], inputs: Sequence[Tensors], on_gpu: bool
) -> Runs:
    runs = Runs(take(caller, start, inputs))
    for n in range(1, RUNS):
        again = take(caller, start, inputs, dense=on_gpu and n % 2 == 0)
        runs.own = Apart.widest((runs.own, apart(again, runs.first, start)))
    return runs


def take_nudged(
    caller: Caller, start: Mapping[str, Any], inputs: Sequence[Tensors], unit: float, seed: int
) -> Track:
    """A track from weights that are off by at most `unit`, relative. The nudge itself is taken out
    of the state again."""
    assert caller.program is not None
    weights = {
        each.data_ptr()
        for module in caller.program.modules.values()
        for each in module.parameters()
    }
    names = [name for name, each in caller.program.state().items() if each.data_ptr() in weights]
    torch.manual_seed(seed)
    moved = {name: _moved(start[name], unit) for name in names}
    track = take(caller, {**start, **moved}, inputs)
    for name in names:
        track.state[name] -= moved[name] - start[name]
    return track


def _moved(weight: Any, unit: float) -> Any:
    noise = 2 * torch.rand(weight.shape, device=weight.device) - 1
    return (weight.float() * (1 + unit * noise)).to(weight.dtype)


def learn_eager(
    start: Mapping[str, Any], caller: Caller, inputs: Sequence[Tensors], row: Row, on_gpu: bool
) -> Reference:
    """Eager's track and spread, and what rounding and other seeds do to it."""
    runs = take_runs(caller, start, inputs, on_gpu)
    rounded = [
        apart(take_nudged(caller, start, inputs, UNIT[row.half], SEED + n), runs.first, start)
        for n in range(NUDGES)
    ]
    drawn = [
        apart(take(caller, start, inputs, SEED + n), runs.first, start)
        for n in range(1, 1 + SEEDS * row.random)
    ]
    return Reference(start, runs, Apart.widest(rounded), Apart.widest(drawn), LEAST[row.half])


def judge(mode: str, track: Track, reference: Reference) -> Verdict:
    if mode == "eager":
        finite = all(bool(torch.isfinite(each).all()) for out in track.outputs for each in out)
        return Verdict(finite, None if finite else "a result is not finite")
    if mode not in COMPILED:
        allowed = _times(reference.eager.own, SPREAD_FACTOR)
        return compared(track, reference.eager.first, reference.start, "eager", allowed)
    found = compared(
        track, reference.eager.first, reference.start, "eager", reference.of_compiled()
    )
    if mode == OWN_COMPILED and found.correct and reference.default is not None:
        known = Apart.widest((reference.default.own, reference.rounding))
        allowed = _times(known, SPREAD_FACTOR)
        return compared(track, reference.default.first, reference.start, "default", allowed)
    return found


def _times(spread: Apart, factor: float) -> Apart:
    return Apart(*(factor * each for each in spread.to_dict().values()))


def compared(
    track: Track, expected: Track, start: Mapping[str, Any], against: str, allowed: Apart
) -> Verdict:
    if track.same_bits(expected):
        return Verdict(bit_equal=True, against=against)
    found = apart(track, expected, start)
    verdict = Verdict(True, None, False, against, found.to_dict(), allowed.to_dict())
    for kind, distance, most in found.beyond(allowed):
        verdict.correct = False
        verdict.reason = verdict.reason or (
            f"{kind}: {distance:.2e} off {against}, and {most:.2e} is explained"
        )
    return verdict
