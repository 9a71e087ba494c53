"""What a few training steps leave, its *track*, and how far two tracks are apart.

By tensor, for the fine sieve; and by kind (losses, gradients together, state together), for what is
only asked to be near. All distances are relative: of a loss to the loss, of a gradient to the
gradient, of a weight or buffer to what the steps changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.harness.compare import SEED, Distances, by_tensor, over, together
from benchmarks.harness.modes import Tensors
from benchmarks.training.modes import Trainer, state
from pygraph.torch_private.cuda import sleep

RUNS = 6
"""How often the same code is run for its spread."""
DELAY_CYCLES = 100_000_000
"""Some 50 ms of a GPU's clock: longer than the host takes to launch a step."""


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


@dataclass(frozen=True)
class Gap(Distances):
    """How far two tracks are apart, by kind."""

    losses: float = 0.0
    """The largest of all steps."""
    gradients: float = 0.0
    state: float = 0.0


SAME = Gap()


@dataclass
class Runs:
    """A track, and how far further ones of the same code were from it."""

    first: Track
    spread: dict[str, float] = field(default_factory=dict)
    """By tensor, the largest distance to the first."""
    own: Gap = SAME
    """The same by kind."""

    @property
    def repeats(self) -> bool:
        """Whether all runs gave the same bits."""
        return self.own.losses == 0.0 and not any(self.spread.values())

    def to_dict(self, name: str) -> dict[str, Any]:
        return {
            f"{name}_repeats_its_bits": self.repeats,
            f"{name}_spread": max(self.spread.values(), default=0.0),
            f"{name}_loss_spread": self.own.losses,
            f"{name}_gap": self.own.to_dict(),
        }


def take(
    trainer: Trainer,
    start: dict[str, Any],
    inputs: Sequence[Tensors],
    seed: int = SEED,
    dense: bool = False,
) -> Track:
    """Some steps from the start. `dense`: a GPU's kernels run without gaps."""
    trainer.restore(start)
    torch.manual_seed(seed)
    losses: list[float] = []
    gradients: list[Any] = []
    for each in inputs:
        if dense:
            sleep(DELAY_CYCLES)
        losses.append(float(trainer.run(each).detach()))
        if not gradients:
            gradients = [None if grad is None else grad.clone() for grad in trainer.gradients()]
    return Track(losses, gradients, copied(trainer.program))


def take_runs(trainer: Trainer, start: dict[str, Any], inputs: Sequence[Tensors]) -> Runs:
    """Several runs of the same code. In every second further one a GPU's kernels stand as close
    behind each other as a graph's, for the order of atomics depends on it."""
    runs = Runs(take(trainer, start, inputs))
    on_gpu = any(tensor.is_cuda for tensor in start.values())
    for n in range(RUNS - 1):
        again = take(trainer, start, inputs, dense=on_gpu and n % 2 == 0)
        runs.own = Gap.widest((runs.own, gap(again, runs.first, start)))
        for name, distance in distances(again, runs.first, start).items():
            runs.spread[name] = max(runs.spread.get(name, 0.0), distance)
    return runs


def take_nudged(
    trainer: Trainer, start: dict[str, Any], inputs: Sequence[Tensors], unit: float, seed: int
) -> Track:
    """A track from weights that are off by at most `unit`, relative: what rounding can do to the
    program. The nudge itself is taken out of the state again."""
    generators: dict[Any, torch.Generator] = {}
    nudges = {}
    for name in dict(trainer.program.named_parameters()):
        weight = start[name]
        if weight.device not in generators:
            generators[weight.device] = torch.Generator(weight.device).manual_seed(seed)
        noise = torch.rand(weight.shape, generator=generators[weight.device], device=weight.device)
        nudges[name] = weight * ((2 * noise - 1) * unit).to(weight.dtype)
    moved = {
        name: tensor + nudges[name] if name in nudges else tensor for name, tensor in start.items()
    }
    track = take(trainer, moved, inputs)
    for name in nudges:
        track.state[name] -= moved[name] - start[name]
    return track


def copied(program: Any) -> dict[str, Any]:
    return {name: tensor.detach().clone() for name, tensor in state(program).items()}


def gap(found: Track, expected: Track, start: dict[str, Any]) -> Gap:
    """By kind."""
    return Gap(
        loss_error(found, expected),
        gradient_error(found, expected),
        _state_error(found, expected, start),
    )


def gradient_error(found: Track, expected: Track) -> float:
    """Over all gradients together; infinite where one is missing."""
    pairs = list(zip(found.gradients, expected.gradients, strict=True))
    if any((a is None) != (b is None) for a, b in pairs):
        return math.inf
    return together((a - b, b) for a, b in pairs if a is not None)


def _state_error(found: Track, expected: Track, start: dict[str, Any]) -> float:
    return together(
        (found.state[name].float() - tensor.float(), tensor.float() - start[name].float())
        for name, tensor in expected.state.items()
        if tensor.is_floating_point()  # a counter of steps outweighs what it counts
    )


def loss_error(found: Track, expected: Track) -> float:
    """The largest of all steps, relative."""
    pairs = zip(found.losses, expected.losses, strict=True)
    return max(over(abs(a - b), abs(b)) for a, b in pairs)


def distances(found: Track, expected: Track, start: dict[str, Any]) -> dict[str, float]:
    """By tensor: 0 for the same bits, else relative to what the steps changed."""
    return by_tensor(found.tensors(), expected.tensors(), start)
