"""The proof: a linked graph is deployed only after it has computed what the uncaptured callable
computes, at other addresses, with everything it must not read poisoned.

The captured addresses are phantom; the poisoned phantom block stands behind all of them, so a word
that was missed reads poison, and a stray write changes the block. Arena and outputs are filled
before each run. Three runs, each on addresses of its own: one with NaN patterns on the caller's own
tensors, then two with bytes that look like valid numbers, with the changing inputs on fresh
addresses and the arena displaced. NaNs come first: as an index they are -1, and what a missed word
would make of the other patterns as an index is never run.

Runs leave no trace (design, rule 8): arguments that the callable writes end up as one run of it
leaves them (reference.py).
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import torch

from pygraph import _engine
from pygraph.capture import tensors
from pygraph.capture.device import Device, Function
from pygraph.capture.distance import distances
from pygraph.capture.reference import Reference, candidates

#: A graph whose callable is not deterministic may differ by this much of the callable's own spread.
_SPREAD_FACTOR = 4.0
#: Runs of the callable that its spread is taken from, and more where those do not explain it.
_REPEATS = 4
_MORE_REPEATS = 12

BIT_EQUAL = "bit-equal"
WITHIN_SPREAD = "within run-to-run spread"
FAILED = "failed"


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a proof."""

    poison: int  #: the byte that fills arena, outputs and phantom block
    move: bool  #: changing inputs stand on fresh addresses
    displace: int  #: bytes by which the arena stands further on


RUNS = (
    Run(0xFF, False, 0),  # a NaN in every floating type
    Run(0x3C, True, 4096),  # 0.0115 in fp32 and bf16, 1.06 in fp16
    Run(0x00, True, 3 * 4096),
)


@dataclasses.dataclass
class Spread:
    """How far runs of the callable are apart from each other in one result. They can differ without
    any distance, in the signs of zeros and the bits of NaNs: where noise is multiplied by 0."""

    gap: float = 0.0
    repeats_itself: bool = True  #: bit by bit

    def covers(self, gap: float) -> bool:
        """Whether a graph that has other bits may be that far off."""
        return not self.repeats_itself and gap <= _SPREAD_FACTOR * self.gap


class Repeats:
    """Further runs of the callable, made when somebody wants to know how far they are from the
    first one. All runs of the graph are judged by the same."""

    def __init__(
        self,
        function: Function,
        reference: Reference,
        device: Device,
        unwritten: Collection[int] = frozenset(),
    ) -> None:
        self.expected = [*reference.expected, *reference.after.values()]
        #: The results that anything is asked of. The others hold what their memory held before.
        self.asked = [index for index in range(len(self.expected)) if index not in unwritten]
        self._function = function
        self._reference = reference
        self._device = device
        self._spread = {index: Spread() for index in self.asked}
        self._made = 0

    def spread(self, repeats: int) -> Mapping[int, Spread]:
        """Of the results that are asked for, by at least so many runs."""
        while self._made < repeats:
            if self._made % 2:  # as close behind each other as in a graph: so do atomics vary
                self._device.delay()
            self._made += 1
            self._note(self._reference.again(self._function))
        return self._spread

    def _note(self, again: list[Any]) -> None:
        wrong = _differing(self.expected, again, self.asked)
        alike = [index for index in wrong if _alike(self.expected[index], again[index])]
        for index, gap in zip(alike, _distances(self.expected, again, alike), strict=True):
            spread = self._spread[index]
            spread.gap = max(spread.gap, gap)
            spread.repeats_itself = False


def prove(
    call: _engine.TensorProgram,
    function: Function,
    reference: Reference,
    changing: Sequence[int],
    device: Device,
    timings_ms: dict[str, float] | None = None,
) -> str:
    """Runs the graph and compares. Returns BIT_EQUAL, WITHIN_SPREAD, or 'failed: …'. `changing`
    are the arguments that differ from call to call. The time of the runs alone, until the device
    is idle, is added to `timings_ms["proof_runs"]`."""
    timings_ms = {} if timings_ms is None else timings_ms
    fronts = dict(enumerate(call.fronts))
    movable = _movable(reference.arguments, changing, device, fronts)
    copies = functools.partial(tensors.moved, movable, fronts)
    repeats = Repeats(function, reference, device, call.unwritten)
    verdicts = []
    try:
        for run in RUNS:
            # What a run made is gone before the next one needs memory.
            verdict = _compare(
                _run_graph(call, reference, copies, run, device, timings_ms), repeats
            )
            if verdict.startswith(FAILED):
                return verdict
            verdicts.append(verdict)
    finally:
        reference.finish()
    return WITHIN_SPREAD if WITHIN_SPREAD in verdicts else BIT_EQUAL


def _compare(found: list[Any] | str, repeats: Repeats) -> str:
    """The verdict on what one run of the graph made."""
    if isinstance(found, str):
        return found
    expected = repeats.expected
    if len(expected) != len(found):
        return f"{FAILED}: {len(found)} results instead of {len(expected)}"
    wrong = _differing(expected, found, repeats.asked)
    if not wrong:
        return BIT_EQUAL
    for index in wrong:
        if not _alike(expected[index], found[index]):
            return f"{FAILED}: result {index} is not what the uncaptured callable returns"
    gaps = dict(zip(wrong, _distances(expected, found, wrong), strict=True))
    verdict = _within_spread(gaps, repeats.spread(_REPEATS))
    if verdict.startswith(FAILED):
        verdict = _within_spread(gaps, repeats.spread(_REPEATS + _MORE_REPEATS))
    return verdict


def _differing(lefts: Sequence[Any], rights: Sequence[Any], asked: Sequence[int]) -> list[int]:
    """Those of the results `asked` for that have not the same bits."""
    lists = ([values[index] for index in asked] for values in (lefts, rights))
    return [asked[number] for number in tensors.differing(*lists)]


def _distances(lefts: Sequence[Any], rights: Sequence[Any], indices: Sequence[int]) -> list[float]:
    return distances([lefts[index] for index in indices], [rights[index] for index in indices])


def _alike(left: Any, right: Any) -> bool:
    """Whether there is a distance between two results."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return False
    return (left.shape, left.dtype, left.device) == (right.shape, right.dtype, right.device)


def _movable(
    arguments: Sequence[Any], changing: Sequence[int], device: Device, fronts: tensors.Fronts
) -> list[tensors.Group]:
    """The arguments that runs of the graph are given elsewhere."""
    moving = {
        index: arguments[index]
        for index in candidates(arguments, changing, (), device)
        if arguments[index].numel()
    }
    staying = (
        value
        for index, value in enumerate(arguments)
        if index not in moving
        and isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and value.numel()
    )
    return tensors.groups(moving, staying, fronts)


def _run_graph(
    call: _engine.TensorProgram,
    reference: Reference,
    copies: Callable[[], Mapping[int, torch.Tensor]],
    run: Run,
    device: Device,
    timings_ms: dict[str, float],
) -> list[Any] | str:
    """The graph's results and the arguments it wrote, copied; or what it did wrong. `copies` makes
    the arguments that a run is given elsewhere."""
    reference.rewind()
    inputs = list(reference.arguments)
    if run.move:
        for index, copy in copies().items():
            inputs[index] = copy
    device.space().poison(run.poison)
    device.synchronize()
    started = time.perf_counter()
    try:
        results = cast(Sequence[Any], call.run(inputs, run.poison, run.displace))
        device.synchronize()
    except (_engine.DriverError, torch.OutOfMemoryError):
        raise
    except RuntimeError as error:  # a kernel stumbled over what it read
        return f"{FAILED}: the graph did not run to its end: {error}"
    elapsed = 1e3 * (time.perf_counter() - started)
    astray = reference.astray()
    if astray is not None:
        return f"{FAILED}: the graph left {astray} in another state than the uncaptured callable"
    timings_ms["proof_runs"] = timings_ms.get("proof_runs", 0.0) + elapsed
    found = [
        result.cpu() if index in reference.on_host else result
        for index, result in enumerate(results)
    ]
    found += [inputs[index] for index in reference.after]
    if not device.intact(run.poison):
        return f"{FAILED}: the graph wrote to memory that it does not own"
    return found


def _within_spread(gaps: Mapping[int, float], spread: Mapping[int, Spread]) -> str:
    """The verdict on results that are so far from the expected ones, and have not their bits;
    `spread` is the callable's own."""
    for index, gap in gaps.items():
        own = spread[index]
        if not own.covers(gap):
            how = f"by {gap:.3g}" if gap else "in signs of zeros or bits of NaNs"
            return (
                f"{FAILED}: result {index} differs {how} from the uncaptured callable, "
                f"whose own run-to-run spread is {own.gap:.3g}"
            )
    return WITHIN_SPREAD
