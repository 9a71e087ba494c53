"""The proof: a linked graph is deployed only after it has computed what the uncaptured callable
computes, at other addresses, with everything it must not read poisoned.

The captured addresses are phantom; the poisoned phantom block stands behind all of them, so a word
that was missed reads poison, and a stray write changes the block. Arena and outputs are filled
before each run. Two runs: one with NaN patterns on the caller's own tensors, one with bytes that
look like valid numbers and with the changing inputs moved to fresh addresses.

Runs leave no trace (design, rule 8): inputs that the graph writes are restored to what one run of
the uncaptured callable makes of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.capture import tensors

_NAN_BYTE = 0xFF  #: a NaN in every floating type when repeated
_PLAUSIBLE_BYTE = 0x3C  #: 0.0115 in fp32 and bf16, 1.06 in fp16
#: A graph whose callable is not deterministic may differ by this much of the callable's own spread.
_SPREAD_FACTOR = 4.0


@dataclasses.dataclass
class Proof:
    """What the proof found. `outputs` are the uncaptured callable's: give them to the caller."""

    holds: bool
    verdict: str
    outputs: Sequence[Any]


class _Restore:
    """Remembers tensors that a run writes, to put them back."""

    def __init__(self, arguments: Sequence[Any], mutated: frozenset[int]) -> None:
        self.tensors = [arguments[i] for i in sorted(mutated) if torch.is_tensor(arguments[i])]
        self.values = [tensor.clone() for tensor in self.tensors]

    def __call__(self) -> None:
        for tensor, value in zip(self.tensors, self.values, strict=True):
            tensor.copy_(value)


def prove(
    call: _engine.GraphCall,
    function: Callable[[list[Any]], Any],
    arguments: Sequence[Any],
    changing: Sequence[int],
    mutated: frozenset[int],
    phantom: _engine.PhantomSpace,
) -> Proof:
    """Runs `function` once for real and the graph twice, and compares. `changing` are the
    arguments that differ from call to call: the second run moves them."""
    before = _Restore(arguments, mutated)
    reference = _run(function, arguments)
    after = _Restore(arguments, mutated)
    try:
        verdict = _compare_runs(
            call, function, arguments, changing, phantom, before, after, reference
        )
    finally:
        after()
    return Proof(not verdict.startswith("failed"), verdict, reference)


def _compare_runs(
    call: _engine.GraphCall,
    function: Callable[[list[Any]], Any],
    arguments: Sequence[Any],
    changing: Sequence[int],
    phantom: _engine.PhantomSpace,
    before: _Restore,
    after: _Restore,
    reference: list[Any],
) -> str:
    verdict = "bit-equal"
    for poison, move in ((_NAN_BYTE, False), (_PLAUSIBLE_BYTE, True)):
        before()
        inputs = _moved(arguments, changing) if move else list(arguments)
        phantom.poison(poison)
        got = call.run(inputs, poison)
        torch.cuda.synchronize()
        if not phantom.intact(poison):
            return "failed: the graph wrote to memory that it does not own"
        written = before.tensors if not move else _same_places(arguments, inputs, before.tensors)
        expected = [*reference, *after.values]
        found = [*got, *written]
        if len(expected) != len(found):
            return f"failed: {len(found)} results instead of {len(expected)}"
        wrong = [i for i, pair in enumerate(zip(expected, found, strict=True))
                 if not tensors.same_bits(*pair)]
        if wrong:
            before()
            again = [*_run(function, arguments), *before.tensors]
            verdict = _within_spread(wrong, expected, found, again)
            if verdict.startswith("failed"):
                return verdict
    return verdict


def _run(function: Callable[[list[Any]], Any], arguments: Sequence[Any]) -> list[Any]:
    return list(function(list(arguments)))


def _moved(arguments: Sequence[Any], changing: Sequence[int]) -> list[Any]:
    inputs = list(arguments)
    for index in changing:
        argument = inputs[index]
        if isinstance(argument, torch.Tensor) and argument.numel():
            inputs[index] = tensors.static_copy(argument)
    return inputs


def _same_places(
    arguments: Sequence[Any], inputs: Sequence[Any], written: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """For each tensor of `written`, the one that stood in its place in a moved call."""
    place = {id(argument): index for index, argument in enumerate(arguments)}
    return [inputs[place[id(tensor)]] for tensor in written]


def _within_spread(
    wrong: Sequence[int], expected: Sequence[Any], found: Sequence[Any], again: Sequence[Any]
) -> str:
    for index in wrong:
        left, right, repeat = expected[index], found[index], again[index]
        if not torch.is_tensor(left) or not torch.is_tensor(right) or left.shape != right.shape:
            return f"failed: result {index} is not what the uncaptured callable returns"
        gap = tensors.distance(left, right)
        spread = tensors.distance(left, repeat)
        if not gap <= _SPREAD_FACTOR * spread:
            return (
                f"failed: result {index} differs by {gap:.3g} from the uncaptured callable, whose "
                f"own run-to-run spread is {spread:.3g}"
            )
    return "within run-to-run spread"
