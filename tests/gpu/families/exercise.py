"""Calls a case again and again with everything moved and the old memory poisoned, and compares each
call with the uncaptured callable on copies of the same arguments.

Every set of inputs stays alive, so that each stands at addresses of its own. Before a call the
inputs of the one before are spoilt: floating ones become NaN, integer ones (indices, lengths) get
other valid values, with which a stale read gives a wrong result rather than a crash. The reference
runs after the call, so that its freed memory cannot lend the call right values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from families.registry import Case
from pygraph.capturing import tensors
from pygraph.capturing.distance import distances

#: Calls until a graph is deployed, calls with moved inputs after that, and how often a callable
#: that is not deterministic is repeated to learn its spread.
WARMING, MOVED, REPEATS = 2, 3, 8
#: A result may differ by this much of the callable's own spread, as in the proof.
SPREAD_FACTOR = 4.0

Call = Callable[[list[Any]], Sequence[Any]]


@dataclasses.dataclass
class Outcome:
    calls: int = 0
    bit_equal: bool = True
    spread: float = 0.0  #: the largest run-to-run difference of the uncaptured callable
    constants_moved: bool = False
    problems: list[str] = dataclasses.field(default_factory=list)


def as_list(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (list, tuple)) else [results]


def exercise(case: Case, call: Call, reference: Call) -> Outcome:
    """Nothing is raised for a wrong result; it is noted in the outcome's problems."""
    outcome = Outcome()
    constants = case.constants()
    past: list[list[Any]] = []
    seen = _addresses(constants)
    kept: list[tuple[int, Any, Any]] = []
    for number in range(WARMING + MOVED + bool(constants)):
        if past:
            poison(past[-1], case.inputs())
        if number == WARMING + MOVED:
            old, constants = constants, case.constants()
            poison(old, case.constants())
            past.append(old)
            _require_new(seen, constants, number, outcome)
            outcome.constants_moved = True
        inputs = case.inputs()
        _require_new(seen, inputs, number, outcome)
        arguments = [*inputs, *constants]
        before = [_copy(argument) for argument in arguments]
        found = _seeded(number, call, arguments)
        # What the callable leaves in its arguments is compared as well.
        _compare(number, [*found, *arguments], reference, before, outcome)
        kept += [(number, each, _copy(each)) for each in found]
        past.append(inputs)
        outcome.calls += 1
    outcome.problems += [
        f"a result of call {number} changed after it"
        for number, each, snapshot in kept
        if not tensors.same_bits(each, snapshot)
    ]
    return outcome


def poison(old: Sequence[Any], others: Sequence[Any]) -> None:
    """Spoils `old`; `others` are valid arguments of the same kinds."""
    for tensor, other in zip(old, others, strict=True):
        if not isinstance(tensor, torch.Tensor) or not tensor.numel():
            continue
        if tensor.layout != torch.strided:
            tensor.values().fill_(float("nan"))
        elif tensor.is_floating_point() or tensor.is_complex():
            tensors.bytes_of(tensor).fill_(0xFF)
        else:
            tensor.copy_(other)


def _seeded(number: int, call: Call, arguments: Sequence[Any]) -> list[Any]:
    torch.manual_seed(number)
    return as_list(call(list(arguments)))


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return tensors.static_copy(value) if value.layout == torch.strided else value.clone()


def _addresses(arguments: Sequence[Any]) -> set[int]:
    return {
        each.data_ptr()
        for each in arguments
        if isinstance(each, torch.Tensor) and each.layout == torch.strided and each.numel()
    }


def _require_new(seen: set[int], arguments: Sequence[Any], number: int, outcome: Outcome) -> None:
    here = _addresses(arguments)
    if here & seen:
        outcome.problems.append(f"call {number} has an argument where an earlier one stood")
    seen |= here


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) and left.layout != torch.strided:
        return _same(left.values(), right.values())
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return tensors.same_bits(left, right) and left.stride() == right.stride()
    return tensors.same_bits(left, right)


def _compare(
    number: int, found: list[Any], reference: Call, before: list[Any], outcome: Outcome
) -> None:
    def run() -> list[Any]:
        arguments = [_copy(argument) for argument in before]
        return [*_seeded(number, reference, arguments), *arguments]

    expected = run()
    if len(found) != len(expected):
        outcome.problems.append(f"call {number}: {len(found)} results, not {len(expected)}")
        return
    wrong = [i for i, pair in enumerate(zip(found, expected, strict=True)) if not _same(*pair)]
    if not wrong:
        return
    outcome.bit_equal = False
    repeats = [run() for _ in range(REPEATS)]
    for i in wrong:
        gap = _distance(found[i], expected[i])
        spread = max(_distance(expected[i], repeat[i]) for repeat in repeats)
        outcome.spread = max(outcome.spread, spread)
        varies = not all(_same(expected[i], repeat[i]) for repeat in repeats)
        if not varies or gap > SPREAD_FACTOR * spread:
            outcome.problems.append(
                f"call {number}: result {i} differs by {gap:.3g}, the uncaptured callable from "
                f"itself by {spread:.3g}"
            )


def _distance(left: Any, right: Any) -> float:
    alike = (
        isinstance(left, torch.Tensor)
        and isinstance(right, torch.Tensor)
        and left.layout == torch.strided
        and (left.shape, left.dtype, left.stride()) == (right.shape, right.dtype, right.stride())
    )
    return distances([left], [right])[0] if alike else float("inf")
