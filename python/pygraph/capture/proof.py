"""The proof: a linked graph is deployed only after it has computed what the uncaptured callable
computes, at other addresses, with everything it must not read poisoned.

The captured addresses are phantom; the poisoned phantom block stands behind all of them, so a word
that was missed reads poison, and a stray write changes the block. Arena and outputs are filled
before each run. Two runs: one with NaN patterns on the caller's own tensors, one with bytes that
look like valid numbers and with the changing inputs moved to fresh addresses.

Runs leave no trace (design, rule 8): arguments that the callable writes end up as one run of it
leaves them (reference.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from pygraph import _engine
from pygraph.capture import tensors
from pygraph.capture.reference import Function, Reference

_NAN_BYTE = 0xFF  #: a NaN in every floating type when repeated
_PLAUSIBLE_BYTE = 0x3C  #: 0.0115 in fp32 and bf16, 1.06 in fp16
#: A graph whose callable is not deterministic may differ by this much of the callable's own spread.
_SPREAD_FACTOR = 4.0

BIT_EQUAL = "bit-equal"
WITHIN_SPREAD = "within run-to-run spread"


def prove(
    call: _engine.GraphCall,
    function: Function,
    reference: Reference,
    changing: Sequence[int],
    phantom: _engine.PhantomSpace,
) -> str:
    """Runs the graph twice and compares. Returns BIT_EQUAL, WITHIN_SPREAD, or 'failed: …'.
    `changing` are the arguments that differ from call to call: the second run moves them."""
    verdict = BIT_EQUAL
    try:
        for poison, move in ((_NAN_BYTE, ()), (_PLAUSIBLE_BYTE, changing)):
            found = _run_graph(call, reference, move, poison, phantom)
            if isinstance(found, str):
                return found
            expected = [*reference.expected, *reference.after.values()]
            if len(expected) != len(found):
                return f"failed: {len(found)} results instead of {len(expected)}"
            pairs = list(zip(expected, found, strict=True))
            wrong = [i for i, pair in enumerate(pairs) if not tensors.same_bits(*pair)]
            if wrong:
                verdict = _within_spread(wrong, expected, found, _again(function, reference))
                if verdict != WITHIN_SPREAD:
                    return verdict
    finally:
        reference.finish()
    return verdict


def _run_graph(
    call: _engine.GraphCall,
    reference: Reference,
    move: Sequence[int],
    poison: int,
    phantom: _engine.PhantomSpace,
) -> list[Any] | str:
    """The graph's results and the arguments it wrote, copied; or what it did wrong."""
    reference.rewind()
    inputs = list(reference.arguments)
    for index in move:
        if isinstance(inputs[index], torch.Tensor) and inputs[index].numel():
            inputs[index] = tensors.static_copy(inputs[index])
    phantom.poison(poison)
    results = cast(Sequence[Any], call.run(inputs, poison))
    found = [*results, *(inputs[index] for index in reference.after)]
    if not _intact(phantom, poison, reference.arguments):
        return "failed: the graph wrote to memory that it does not own"
    return found


def _again(function: Function, reference: Reference) -> list[Any]:
    """Another run of the uncaptured callable, to see how much it differs from itself."""
    reference.rewind()
    arguments = [
        tensors.static_copy(argument) if index in reference.mutated else argument
        for index, argument in enumerate(reference.arguments)
    ]
    outputs = list(function(list(arguments)))
    return [*outputs, *(arguments[index] for index in reference.after)]


def _intact(phantom: _engine.PhantomSpace, poison: int, arguments: Sequence[Any]) -> bool:
    """PhantomSpace.intact, on the GPU: the block need not travel to the host."""
    device = next((a.device for a in arguments if torch.is_tensor(a) and a.is_cuda), None)
    if device is None:
        return bool(phantom.intact(poison))
    words = torch.empty(phantom.physical_bytes // 8, dtype=torch.int64, device="meta")
    block = tensors.at_address(words, phantom.base, phantom.physical_bytes, device)
    pattern = int.from_bytes(bytes([poison]) * 8, "little", signed=True)
    return bool((block == pattern).all())


def _within_spread(
    wrong: Sequence[int], expected: Sequence[Any], found: Sequence[Any], again: Sequence[Any]
) -> str:
    for index in wrong:
        left, right, repeat = expected[index], found[index], again[index]
        if not torch.is_tensor(left) or not torch.is_tensor(right) or left.shape != right.shape:
            return f"failed: result {index} is not what the uncaptured callable returns"
        gap = tensors.distance(left, right)
        spread = tensors.distance(left, repeat)
        if not 0 < gap <= _SPREAD_FACTOR * spread:
            return (
                f"failed: result {index} differs by {gap:.3g} from the uncaptured callable, whose "
                f"own run-to-run spread is {spread:.3g}"
            )
    return WITHIN_SPREAD
