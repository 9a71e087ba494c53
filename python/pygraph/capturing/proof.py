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
import enum
import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, cast

import torch

from pygraph import _engine
from pygraph.capturing import tensors
from pygraph.capturing.consent import ALONE, Consent
from pygraph.capturing.device import Device
from pygraph.capturing.distance import distances
from pygraph.capturing.host_numbers import Number
from pygraph.capturing.reference import Reference, candidates, take

#: A graph whose callable is not deterministic may differ by this much of the callable's own spread.
_SPREAD_FACTOR = 4.0
#: Runs of the callable that its spread is taken from, and more where those do not explain it.
_REPEATS = 4
_MORE_REPEATS = 12
#: Runs in place of one in which a rare rounding may have gone another way. A graph that is wrong is
#: wrong in all of them.
_AGAIN = 2
#: The largest such rounding, as a share of a result's largest value: one step of bf16, in which
#: results of any type may have been computed, to either side.
_ROUNDING = 2.0**-7


class Match(enum.Enum):
    BIT_EQUAL = "bit-equal"
    WITHIN_SPREAD = "within run-to-run spread"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a proof found. As text it is what the report says."""

    match: Match
    fault: str = ""  #: of a failed proof: what the graph did wrong
    #: what the graph's runs took in milliseconds, until the device was idle; no part of the verdict
    runs_ms: float = dataclasses.field(default=0.0, compare=False)
    fastest_ms: float = dataclasses.field(default=0.0, compare=False)  #: of those
    #: of a failed proof: results that the callable itself does not repeat differ by no more than
    #: one rounding may
    perhaps_rounding: bool = dataclasses.field(default=False, compare=False)

    @property
    def passed(self) -> bool:
        return self.match is not Match.FAILED

    def __str__(self) -> str:
        return f"{self.match.value}: {self.fault}" if self.fault else self.match.value


BIT_EQUAL = Verdict(Match.BIT_EQUAL)
WITHIN_SPREAD = Verdict(Match.WITHIN_SPREAD)


def failed(fault: str, perhaps_rounding: bool = False) -> Verdict:
    """The verdict on a graph that did `fault`."""
    return Verdict(Match.FAILED, fault, perhaps_rounding=perhaps_rounding)


class CapturedMemory(Protocol):
    """The memory that a graph was captured with, and that its runs elsewhere must not touch."""

    def poison(self, byte: int) -> None:
        """Fills it, on the current stream."""

    def intact(self, byte: int) -> bool:
        """Whether it still holds nothing but that."""


class _Phantom:
    def __init__(self, device: Device) -> None:
        self._device = device

    def poison(self, byte: int) -> None:
        self._device.space().poison(byte)

    def intact(self, byte: int) -> bool:
        return self._device.intact(byte)


class _GraphFailedError(Exception):
    """A run of a graph did not do what the callable does; the text says what."""


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


@dataclasses.dataclass(frozen=True)
class Spread:
    """How far runs of the callable are apart from each other in one result. They can differ without
    any distance, in the signs of zeros and the bits of NaNs: where noise is multiplied by 0."""

    gap: float = 0.0
    repeats_itself: bool = True  #: bit by bit

    def covers(self, gap: float) -> bool:
        """Whether a graph that has other bits may be that far off."""
        return not self.repeats_itself and gap <= _SPREAD_FACTOR * self.gap

    def widened(self, gap: float) -> Spread:
        """With one more run, that far off."""
        return Spread(max(self.gap, gap), repeats_itself=False)


class Repeats:
    """Further runs of the callable, made when somebody wants to know how far they are from the
    first one. All runs of the graph are judged by the same."""

    def __init__(
        self,
        reference: Reference,
        unwritten: Collection[int] = frozenset(),
        consent: Consent = ALONE,
    ) -> None:
        self.consent = consent
        self.expected = [*reference.expected, *reference.after.values()]
        #: The results that anything is asked of. The others hold what their memory held before.
        self.asked = [index for index in range(len(self.expected)) if index not in unwritten]
        self.reference = reference
        self._spread = {index: Spread() for index in self.asked}
        self._made = 0

    def spread(self, repeats: int) -> Mapping[int, Spread]:
        """Of the results that are asked for, by at least so many runs."""
        while self._made < repeats:
            if self._made % 2:  # as close behind each other as in a graph: so do atomics vary
                self.reference.device.delay()
            self._made += 1
            self.consent.before_run()
            self._note(self.reference.again())
        return self._spread

    def beyond(self, gaps: Mapping[int, float]) -> tuple[list[int], float]:
        """Those of some results, so far off, that further runs of the callable do not explain, and
        how far these are from the first one."""
        own = self.spread(_REPEATS)
        if any(not own[index].repeats_itself for index in gaps):
            own = self.spread(_REPEATS + _MORE_REPEATS)
        found = [index for index, gap in gaps.items() if not own[index].covers(gap)]
        return found, max(own[index].gap for index in gaps)

    def _note(self, again: list[Any]) -> None:
        wrong = _differing(self.expected, again, self.asked)
        alike = [index for index in wrong if _alike(self.expected[index], again[index])]
        for index, gap in zip(alike, _distances(self.expected, again, alike), strict=True):
            self._spread[index] = self._spread[index].widened(gap)


def prove(
    program: _engine.TensorProgram,
    reference: Reference,
    captured: CapturedMemory | None = None,
    consent: Consent = ALONE,
) -> Verdict:
    """Runs the graph and compares. `captured`: the memory that it was captured with, where that is
    not phantom. All ranks that give their `consent` prove at the same time; raises Dissent where
    this one passes and another one does not."""
    captured = captured or _Phantom(reference.device)
    fronts = dict(enumerate(program.fronts))
    copies = functools.partial(tensors.moved, _movable(reference, fronts), fronts)
    repeats = Repeats(reference, program.unwritten, consent)
    all_ms: list[float] = []

    def judge(run: Run) -> Verdict:
        # What a run made is gone before the next one needs memory.
        found, took = _judge(program, repeats, copies, run, captured)
        all_ms.append(took)
        return found

    try:
        verdict = in_turn(judge)
        if verdict.passed:
            consent.settle(reference.again)
    finally:
        reference.finish()
    return dataclasses.replace(verdict, runs_ms=sum(all_ms), fastest_ms=min(all_ms))


def in_turn(judge: Callable[[Run], Verdict]) -> Verdict:
    """The verdict on all runs, each judged by itself. One of them may be made again, where all that
    speaks against it may be a rounding."""
    verdict, doubted = BIT_EQUAL, False
    for run in RUNS:
        found = judge(run)
        if found.perhaps_rounding and not doubted:
            doubted = True
            if all(judge(run).passed for _ in range(_AGAIN)):
                found = WITHIN_SPREAD
        if found != BIT_EQUAL:
            verdict = found
        if not found.passed:
            break
    return verdict


def prove_with_others(
    program: _engine.TensorProgram,
    reference: Reference,
    numbers: Mapping[int, Number],
    consent: Consent = ALONE,
) -> Verdict:
    """The same for a call with other `numbers` among its arguments, from the same state."""
    arguments = [numbers.get(n, each) for n, each in enumerate(reference.arguments)]
    reference.rewind()
    try:
        consent.before_run()
        other = take(
            reference.function,
            arguments,
            reference.changing,
            reference.mutated,
            reference.device,
            watched=range(len(arguments)),
        )
        if other.mutated == reference.mutated:
            return prove(program, other, consent=consent)
        other.rewind()
        return failed("the uncaptured callable writes other arguments")
    finally:
        reference.finish()


def _judge(
    program: _engine.TensorProgram,
    repeats: Repeats,
    copies: Callable[[], Mapping[int, torch.Tensor]],
    run: Run,
    captured: CapturedMemory,
) -> tuple[Verdict, float]:
    """The verdict on one run, and what the run took in milliseconds; 0 if it came to no end."""
    try:
        found, took = _run_graph(program, repeats, copies, run, captured)
    except _GraphFailedError as error:
        return failed(str(error)), 0.0
    if not captured.intact(run.poison):
        return failed("the graph wrote to memory that it does not own"), took
    return _compare(found, repeats), took


def _compare(found: list[Any], repeats: Repeats) -> Verdict:
    """The verdict on what one run of the graph made."""
    expected = repeats.expected
    if len(expected) != len(found):
        return failed(f"{len(found)} results instead of {len(expected)}")
    wrong = _differing(expected, found, repeats.asked)
    if not wrong:
        return BIT_EQUAL
    for index in wrong:
        if not _alike(expected[index], found[index]):
            return failed(f"result {index} is not what the uncaptured callable returns")
    gaps = dict(zip(wrong, _distances(expected, found, wrong), strict=True))
    verdict = _within_spread(gaps, repeats.spread(_REPEATS), expected)
    return (
        verdict
        if verdict.passed
        else _within_spread(gaps, repeats.spread(_REPEATS + _MORE_REPEATS), expected)
    )


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


def _movable(reference: Reference, fronts: tensors.Fronts) -> list[tensors.Group]:
    """The arguments that runs of the graph are given elsewhere."""
    arguments = reference.arguments
    moving = {
        index: arguments[index]
        for index in candidates(arguments, reference.changing, (), reference.device)
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
    program: _engine.TensorProgram,
    repeats: Repeats,
    copies: Callable[[], Mapping[int, torch.Tensor]],
    run: Run,
    captured: CapturedMemory,
) -> tuple[list[Any], float]:
    """The graph's results and the arguments it wrote, copied, and the milliseconds that it took.
    `copies` makes the arguments that a run is given elsewhere. Raises _GraphFailedError."""
    reference = repeats.reference
    device = reference.device
    reference.rewind()
    inputs = list(reference.arguments)
    if run.move:
        for index, copy in copies().items():
            inputs[index] = copy
    captured.poison(run.poison)
    device.synchronize()
    repeats.consent.before_run()
    started = time.perf_counter()
    try:
        results = cast(Sequence[Any], program.run(inputs, run.poison, run.displace))
        device.synchronize()
    except (_engine.DriverError, torch.OutOfMemoryError):
        # Nothing was launched: both come before. Other ranks are in their run by now.
        repeats.consent.make_up(reference.again)
        raise
    except RuntimeError as error:  # a kernel stumbled over what it read
        raise _GraphFailedError(f"the graph did not run to its end: {error}") from error
    took = 1e3 * (time.perf_counter() - started)
    astray = reference.astray()
    if astray is not None:
        raise _GraphFailedError(
            f"the graph left {astray} in another state than the uncaptured callable"
        )
    found = [
        result.cpu() if index in reference.on_host else result
        for index, result in enumerate(results)
    ]
    return [*found, *(inputs[index] for index in reference.after)], took


def _within_spread(
    gaps: Mapping[int, float], spread: Mapping[int, Spread], expected: Sequence[Any]
) -> Verdict:
    """The verdict on results that are so far from the expected ones, and have not their bits;
    `spread` is the callable's own."""
    beyond = [index for index, gap in gaps.items() if not spread[index].covers(gap)]
    if not beyond:
        return WITHIN_SPREAD
    first, gap = beyond[0], gaps[beyond[0]]
    how = f"by {gap:.3g}" if gap else "in signs of zeros or bits of NaNs"
    return failed(
        f"result {first} differs {how} from the uncaptured callable, "
        f"whose own run-to-run spread is {spread[first].gap:.3g}",
        perhaps_rounding=all(
            not spread[index].repeats_itself and _is_a_rounding(expected[index], gaps[index])
            for index in beyond
        ),
    )


def _is_a_rounding(expected: torch.Tensor, gap: float) -> bool:
    if not expected.is_floating_point() and not expected.is_complex():
        return False
    largest = expected.abs().max().item() if expected.numel() else 0.0
    return gap <= _ROUNDING * largest  # not where either is a NaN
