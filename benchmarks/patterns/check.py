"""Whether a mode computes what eager computes, before it is timed.

A call is compared by all that it computes: results, what it wrote, gradients. It has to be near
eager's, and nearer to default's (or eager's) for the same inputs than to that for any others, which
a graph that reads old inputs is not. The clean model is compared with eager's results of the model
with the obstacle. Where compiled code draws other random numbers than eager, torch's and PyGraph's
graphs are compared with default, and default only by what kind of results it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from benchmarks.harness.compare import (
    Verdict,
    is_nearest,
    max_difference,
    relative_error,
    same_bits,
    there_and_back,
)
from benchmarks.harness.device import Device
from benchmarks.patterns.modes import PatternRunner, observed
from benchmarks.patterns.pattern import Pattern, Tensors, flat

CALLS = 4
"""Inputs that are compared, in order and in reverse."""

Result = tuple[int, Tensors]
"""Of the n-th inputs."""


@dataclass
class Reference:
    pattern: Pattern
    by_mode: dict[str, list[Tensors]] = field(default_factory=dict)
    """What eager and default computed for the n-th inputs."""

    def of(self, mode: str) -> list[Tensors] | None:
        """What a mode is compared with."""
        if self.pattern.random and mode not in ("eager", "clean"):
            return self.by_mode.get("default")
        return self.by_mode.get("eager")


def results(runner: PatternRunner, mode: str, pattern: Pattern, device: Device) -> list[Result]:
    found = []
    for n in there_and_back(CALLS):
        inputs = pattern.inputs(n, mode == "clean", device.torch)
        torch.manual_seed(n)
        seen = observed(runner, inputs)
        device.synchronize()
        found.append((n, flat(seen)))
    return found


def judge(mode: str, found: Sequence[Result], reference: Reference) -> Verdict:
    """Eager and default are remembered; they come first."""
    if mode in ("eager", "default"):
        first = dict(reversed(found))
        reference.by_mode[mode] = [first[n] for n in range(CALLS)]
    verdict = Verdict(correct=True, relative_error=0.0, fresh=True)
    compared = reference.of(mode)
    if compared is None:
        verdict.reason = "nothing to compare with: the mode that it is compared with failed"
    elif not all(each.isfinite().all() for _, result in found for each in result):
        verdict.reason = "a result that is not finite"
    else:
        _compare(verdict, mode, found, compared, reference)
    verdict.correct = verdict.reason is None
    return verdict


def _compare(
    verdict: Verdict,
    mode: str,
    found: Sequence[Result],
    compared: Sequence[Tensors],
    reference: Reference,
) -> None:
    verdict.relative_error = max(relative_error(each, compared[n]) for n, each in found)
    default = reference.by_mode.get("default")
    if default is not None and mode not in ("eager", "default"):
        pairs = [(result, default[n]) for n, result in found]
        verdict.bit_equal_to_default = all(same_bits(a, b) for a, b in pairs)
        if all(len(a) == len(b) and _alike(a, b) for a, b in pairs):
            verdict.max_difference_to_default = max(max_difference(a, b) for a, b in pairs)
    same_code = default is not None and mode in ("reduce-overhead", "pygraph")
    nearest = default if default is not None and same_code else compared
    verdict.fresh = all(
        is_nearest(n, CALLS, lambda m, each=each: relative_error(each, nearest[m]))  # type: ignore[misc]
        for n, each in found
    )
    tolerance = reference.pattern.tolerance
    if verdict.relative_error > tolerance:
        other = "default" if reference.pattern.random and mode != "clean" else "eager"
        verdict.reason = (
            f"relative error {verdict.relative_error:.2e} against {other}, over {tolerance:.2e}"
        )
    elif not verdict.fresh:
        verdict.reason = "a result is that of other inputs"


def _alike(result: Tensors, other: Tensors) -> bool:
    return all(a.shape == b.shape for a, b in zip(result, other, strict=True))
