"""Whether a mode computes what it should, before anything is timed: what the checks of all suites
share, and that of the nine models. On inputs that it has not seen, a mode is compared

- *with eager*, by relative error (norm of the difference over norm of the result). Eager rounds
  too: a mode may be a few times as far off as eager is from itself without autocast, and where a
  program draws random numbers, which compiled code draws otherwise, as far as eager moves from seed
  to seed. With dropout that is a coarse sieve.
- *with the same code*: pygraph's graphs with their own compiled callables run without graphs, from
  the same seeds, bit for bit. Code that does not repeat its own bits (kernels with atomics) may be
  a few times as far off as several runs of it are apart. This is the fine sieve; the nine models
  do without.
- *with other inputs' results*. A graph that replays stale inputs can pass for close when outputs
  hardly depend on the inputs, as in a random network. So each result of a mode with graphs must be
  nearer to default's (or eager's) for the same inputs than to that for any others.
- *with default*, bit for bit: told, and no condition, since two compilations may tune apart. A
  second run of default tells how much of a difference means anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

import torch

from benchmarks.harness.modes import Bench, Runner, Tensors

TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Least tolerance, by the narrowest type that the model computes in."""
CHUNK = 2**26
ROUNDING = 3.0
"""How much farther than eager from the precise result a mode may be."""
LEAST = {True: 5e-2, False: 1e-3}
"""Least tolerance against eager of a whole program: with autocast to bf16, and without."""
SPREAD_FACTOR = 4.0
"""How much farther than the same code from itself, as in the proofs of graphs."""
SEED = 7
LEAST_DISTANCE = 1e-30


@dataclass(frozen=True)
class Distances:
    """How far two of a mode's results are apart, relative: a field for each kind of result."""

    @classmethod
    def widest(cls, them: Iterable[Self]) -> Self:
        """The largest of each kind."""
        known = [cls(), *them]
        return cls(*(max(getattr(each, kind.name) for each in known) for kind in fields(cls)))

    @property
    def largest(self) -> float:
        return max(self.to_dict().values())

    def beyond(self, most: Self, factor: float = 1.0) -> Iterator[tuple[str, float, float]]:
        """What is farther off than that many times the most; not a number is."""
        allowed = most.to_dict()
        for kind, found in self.to_dict().items():
            if not found <= factor * allowed[kind]:
                yield kind, found, allowed[kind]

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass
class Expected:
    """Eager's outputs on the inputs of the check, and how well they are known."""

    inputs: Sequence[Tensors]
    outputs: list[Tensors]
    tolerance: float
    eager_error: float | None = None
    """Eager against a run without autocast."""
    distinct: bool = True
    """Whether different inputs give outputs that differ at all."""
    default: list[Tensors] = field(default_factory=list)
    """What the default mode computed, once it was checked."""
    default_spread: float = 0.0
    """Largest difference between two runs of the default mode."""


@dataclass
class Verdict:
    correct: bool
    relative_error: float
    fresh: bool
    bit_equal_to_default: bool | None = None
    max_difference_to_default: float | None = None
    reason: str | None = None


def relative_error(result: Tensors, expected: Tensors) -> float:
    """Over all outputs together; infinite where shapes, types or the places of what is not finite
    differ. In chunks: results can have billions of elements."""
    if len(result) != len(expected):
        return float("inf")
    apart = size = 0.0
    for a, b in zip(result, expected, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        for x, y in zip(*(each.reshape(-1).split(CHUNK) for each in (a, b)), strict=True):
            x, y = x.double(), y.double()
            finite = torch.isfinite(y)
            if not torch.equal(torch.isfinite(x), finite):
                return float("inf")
            apart += float((x - y)[finite].square().sum())
            size += float(y[finite].square().sum())
    if apart == 0.0:
        return 0.0
    return float("inf") if size == 0.0 else (apart / size) ** 0.5


def same_bits(result: Tensors, expected: Tensors) -> bool:
    """NaNs included: their bits are compared like any others."""
    return len(result) == len(expected) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bits(a), _bits(b))
        for a, b in zip(result, expected, strict=True)
    )


def _bits(tensor: Any) -> Any:
    flat = tensor.contiguous().view(-1)
    return flat.view(torch.uint8) if flat.numel() else flat


def max_difference(result: Tensors, expected: Tensors) -> float:
    return max(
        (
            float((a.double() - b.double()).abs().max())
            for a, b in zip(result, expected, strict=True)
            if a.numel()
        ),
        default=0.0,
    )


def by_tensor(
    found: Mapping[str, Any], expected: Mapping[str, Any], start: Mapping[str, Any]
) -> dict[str, float]:
    """How far each tensor is off: 0 for the same bits, else relative to its change since the start,
    or to itself where it was not there."""
    result = {}
    for name in found.keys() | expected.keys():
        if name not in found or name not in expected:
            result[name] = math.inf
        elif same_bits((found[name],), (expected[name],)):
            result[name] = 0.0
        else:
            own = expected[name]
            change = own - start[name] if name in start else own
            # Bits can differ where values do not: plus and minus zero.
            apart = norm(found[name].float() - own.float()) or LEAST_DISTANCE
            result[name] = over(apart, norm(change))
    return result


def together(pairs: Iterable[tuple[Any, Any]]) -> float:
    """The norm of all differences over that of all sizes."""
    apart = size = 0.0
    for difference, own in pairs:
        apart += norm(difference) ** 2
        size += norm(own) ** 2
    return over(math.sqrt(apart), math.sqrt(size))


def norm(tensor: Any) -> float:
    return float(torch.linalg.vector_norm(tensor.float(), dtype=torch.float64))


def over(apart: float, size: float) -> float:
    if apart == 0.0:
        return 0.0
    # Not a number compares as nothing: it is as far as can be.
    return apart / size if size > 0.0 and math.isfinite(apart) else math.inf


def tolerated(least: float, rounding: float, seeds: float) -> float:
    """How far from eager a mode may be: by what eager is off without autocast, and by `seeds`, what
    another seed makes of it."""
    return max(least, ROUNDING * rounding) + seeds


def is_nearest(n: int, count: int, distance: Callable[[int], float], margin: float = 1.0) -> bool:
    """Whether a result is the n-th of those that are expected, or less than `margin` times as far
    off that as off any other."""
    own = distance(n)
    return own == 0.0 or all(own < margin * distance(m) for m in range(count) if m != n)


def there_and_back(count: int) -> list[int]:
    return [*range(count), *reversed(range(count))]


def expect(bench: Bench, inputs: Sequence[Tensors]) -> Expected:
    """Run eager, and once more without autocast where the model has a switch for it."""
    model = bench.model
    outputs = [tuple(out.clone() for out in model(*each)) for each in inputs]
    eager_error = None
    if getattr(model, "autocast", False):
        model.autocast = False
        try:
            precise = tuple(out.clone() for out in model(*inputs[0]))
        finally:
            model.autocast = True
        eager_error = relative_error(_as_types(precise, outputs[0]), outputs[0])
    narrowest = torch.bfloat16 if getattr(model, "autocast", False) else outputs[0][0].dtype
    tolerance = TOLERANCE.get(narrowest, 1e-3)
    if eager_error is not None and eager_error < 1.0:
        tolerance = max(tolerance, ROUNDING * eager_error)
    distinct = len(outputs) > 1 and not any(
        same_bits(a, b) for n, a in enumerate(outputs) for b in outputs[:n]
    )
    return Expected(inputs, outputs, tolerance, eager_error, distinct)


def _as_types(tensors: Tensors, like: Tensors) -> Tensors:
    return tuple(a.to(b.dtype) for a, b in zip(tensors, like, strict=True))


def check(runner: Runner, expected: Expected) -> Verdict:
    """Compute every input of the check, in order and again in reverse, and judge all results."""
    order = there_and_back(len(expected.inputs))
    results = [(n, runner.compute(expected.inputs[n])) for n in order]
    error = max(relative_error(result, expected.outputs[n]) for n, result in results)
    # Replays of stale inputs give one result for all.
    stale = expected.distinct and all(same_bits(results[0][1], each) for _, each in results)
    fresh = not stale and all(_is_fresh(runner.mode, n, each, expected) for n, each in results)
    verdict = Verdict(correct=True, relative_error=error, fresh=fresh)
    if runner.mode == "default":
        _remember_default(results, expected)
    if expected.default and runner.mode not in ("eager", "default"):
        pairs = [(result, expected.default[n]) for n, result in results]
        verdict.bit_equal_to_default = all(same_bits(a, b) for a, b in pairs)
        verdict.max_difference_to_default = max(max_difference(a, b) for a, b in pairs)
    if error > expected.tolerance:
        verdict.reason = f"relative error {error:.2e} against eager, over {expected.tolerance:.2e}"
    elif not fresh:
        verdict.reason = "a result is that of other inputs"
    verdict.correct = verdict.reason is None
    return verdict


def _is_fresh(mode: str, n: int, result: Tensors, expected: Expected) -> bool:
    if not expected.distinct or mode in ("eager", "default"):
        return True
    # Against default nothing but the inputs can differ; against eager rounding differs as well.
    reference, margin = (expected.default, 1.0) if expected.default else (expected.outputs, 2.0)
    return is_nearest(n, len(reference), lambda m: relative_error(result, reference[m]), margin)


def _remember_default(results: list[tuple[int, Tensors]], expected: Expected) -> None:
    first: dict[int, Tensors] = {}
    for n, result in results:
        spread = max_difference(result, first.setdefault(n, result))
        expected.default_spread = max(expected.default_spread, spread)
    expected.default = [first[n] for n in range(len(expected.inputs))]
