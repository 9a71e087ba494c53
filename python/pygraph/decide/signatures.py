"""The sets of sizes that one compiled graph is called with, and which of them have a program.

A signature is the integer arguments of a call (dynamic sizes) and its numbers on the host; sizes,
strides and dtypes of tensors follow from it, which Dynamo's guards see to. Which get a program:

* one that is seen for the second time (`SignatureRules.capture_at`): a size that does not come
  back is not worth 50 ms; or, if there is a list of sizes, those in it, at once, and no others;
* but at its second sight at the earliest if its sizes came with other numbers on the host before:
  those may differ from call to call;
* up to EAGER of those that come back within SOON calls at once, and of a backward as many as its
  forward has, or `at_once`; others when the time for it is there (budget.py), which comes sooner
  where replays save much. After an attempt that failed any other of the graph waits for that, too;
* up to `SignatureRules.programs`, and NODES nodes in all of them, but `at_once` of them however
  many nodes they have. A further one then evicts the one used longest ago if it has come up four
  times since that was used (and twice as often each time that it has waited in vain): sizes that
  all come equally often would only take each other's place. One that was evicted must be seen
  four times as often before it gets another.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

from pygraph.capturing import numbers
from pygraph.capturing.device import Device
from pygraph.decide import budget

#: Programs of one compiled graph.
PROGRAMS = 512
#: Nodes of all of them: 2 to 5 KiB of device memory each (seen on an H200), 160 MiB at most. 300
#: lengths of a model of 12 layers have so many.
NODES = 1 << 15
#: Programs that are linked without regard to the time it takes, of signatures that come back
#: within so many calls of the graph.
EAGER = 8
SOON = 8
#: The sight of a signature at which it is captured.
CAPTURE_AT = 2
#: Signatures that are remembered besides those with a program.
_REMEMBERED = 512
_BACK_OFF = 4
#: Sights of a signature without any use of a program that it takes the place of.
_SIGHTS_FOR_A_PLACE = 4
#: How often linking is tried again after memory was short, or constants have moved.
MAXIMUM_FAILURES = 4
#: How many times as long a signature waits at most that has waited in vain.
_LONGEST_WAIT = 4
#: What part of the callable's time replays must save for links to be lent time (budget.py).
_MUCH = 0.25
#: Sights of new numbers on the host, with sizes that are not new, until they count as restless.
_SIGHTS = 16

#: The integers of a call, and the dtypes and bits of its numbers on the host.
Integers = tuple[int, ...]
Key = tuple[Integers, tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class SignatureRules:
    """Which signatures get a program."""

    programs: int = PROGRAMS  #: at most
    capture_at: int = CAPTURE_AT  #: sights
    #: Sizes that are captured at their first sight, and nothing else; empty: any. A signature has
    #: such a size when all numbers of it are among its own.
    sizes: tuple[frozenset[int], ...] = ()
    at_once: int = 0  #: programs that are linked whatever time and nodes that takes

    def wants(self, sizes: Integers) -> bool:
        """Whether a signature may get a program at all."""
        return not self.sizes or not sizes or any(size <= set(sizes) for size in self.sizes)

    def warm_up_calls(self, sizes: Integers) -> int:
        """Calls of a signature that run uncaptured before it is captured."""
        return 0 if self.sizes and sizes else self.capture_at - 1


@dataclasses.dataclass
class Signature:
    """One set of sizes."""

    warm_up_calls: int = CAPTURE_AT - 1
    calls: int = 0  #: without a program
    seen: int = 0  #: which of the graph's calls was its last; 0: none
    gap: int | None = None  #: calls of the graph from that to this one; None: not known
    settled: bool = False  #: linked, or given up: the slow path only runs the callable
    program: Any = None  #: once there is one
    keep: Any = None  #: memory that the program needs
    nodes: int = 0  #: of the program
    failures: int = 0  #: links that came to nothing
    against: str | None = None  #: why the last of them did
    relinks: int = 0  #: for arguments that are less aligned (alignment.py)
    evictions: int = 0
    #: It waits for a place: calls of the graph when that began, and its own until it asks again.
    waits_since: int | None = None
    waits_until: int = 0
    waits: int = 0  #: how often it has waited in vain

    @property
    def uneventful(self) -> int:
        """How many more calls of it only warm up, or wait for a place."""
        until = self.warm_up_calls if self.waits_since is None else self.waits_until - 1
        return max(until - self.calls, 0)

    def deserves_place(self, calls: int, oldest_used: int) -> bool:
        """Whether the program last used `oldest_used` calls of the graph into its life should make
        room for one of this signature, now that there were `calls`."""
        if self.waits_since is not None:
            if self.calls < self.waits_until:
                return False
            if oldest_used < self.waits_since:
                return True
            self.waits += 1
        sights = _SIGHTS_FOR_A_PLACE * min(2**self.waits, _LONGEST_WAIT)
        self.waits_since, self.waits_until = calls, self.calls + sights - 1
        return False

    def count(self, now: int, unheard: int, last: int) -> None:
        """Counts a call of it, the graph's number `now`, and `unheard` ones before that nobody has
        heard of; `last`: the number of the last of these, or 0."""
        before = max(self.seen, last)
        self.calls += unheard + 1
        self.seen = now
        self.gap = now - before if before else None

    def adopt(self, program: Any, keep: Any, nodes: int) -> None:
        """It has a program, which needs the memory `keep`."""
        self.program, self.keep, self.nodes = program, keep, nodes

    def relink(self) -> None:
        """It may be linked anew, for arguments that are less aligned."""
        self.relinks += 1
        self.settled = False

    def settle(self) -> None:
        """It is linked, or given up."""
        self.settled = True

    def claim(self) -> bool:
        """Settles it for the caller to link; False when somebody else has."""
        first, self.settled = not self.settled, True
        return first

    def forget(self) -> None:
        """Drops the program and its memory."""
        self.program = self.keep = None
        self.nodes = 0

    def postpone(self) -> None:
        """Tries again after four times as many calls as the last time, a few times."""
        self.failures += 1
        self.settled = self.failures >= MAXIMUM_FAILURES
        self.calls = self.warm_up_calls - _BACK_OFF**self.failures + 1

    def hurry(self) -> None:
        """What it was postponed for has come: it is linked in its next call."""
        if self.program is None:
            self.settled, self.calls = False, self.warm_up_calls

    def evict(self) -> None:
        """Its program made room for another one's."""
        self.forget()
        self.evictions += 1
        self.waits_since, self.waits = None, 0
        self.settled = False
        self.calls = self.warm_up_calls - _BACK_OFF**self.evictions


class Signatures:
    """Those of one compiled graph."""

    def __init__(
        self,
        rules: SignatureRules,
        device: Device,
        at_once: Callable[[], int] = lambda: 0,
    ) -> None:
        """`at_once`: how many programs it may have without regard to the budget, if more than
        the rules say."""
        self.rules = rules
        self._at_once = at_once
        #: Why none gets a program, as far as can be told from the calls so far.
        self.against: str | None = None
        self.device = device
        self._known: collections.OrderedDict[Key, Signature] = collections.OrderedDict()
        self._integers: list[int] | None = None  #: where arguments are integers
        self._numbers: list[int] = []  #: where they are numbers on the host
        self._new = 0  #: sights of new numbers since one recurred
        self._with_program: list[Signature] = []
        self._link_failed = False
        self._had_numbers = False  #: among the arguments of some call
        #: Of each proof of a program: seconds that a replay saves, and that the callable takes.
        self._savings: list[tuple[float, float]] = []
        self._replays = 0  #: whose savings have been counted
        self._host_bound = False  #: when it was asked last

    def of(self, arguments: list[Any], elsewhere: Collection[int] = ()) -> Signature:
        """The signature of a call. Those without a program are forgotten, oldest first, when there
        are too many. `elsewhere`: arguments that a graph has on the device wherever they are."""
        if self._integers is None:
            self._integers = [
                i
                for i, argument in enumerate(arguments)
                if type(argument) is int and i not in elsewhere
            ]
            self._numbers = list(numbers.among(arguments, self.device))
            self._had_numbers = bool(self._numbers)
        if any(index in elsewhere for index in self._numbers):
            self._leave_out(elsewhere)
        sizes = tuple([arguments[i] for i in self._integers])
        key = sizes, tuple([self._number(arguments[i]) for i in self._numbers])
        signature = self._known.get(key)
        if signature is None:
            signature = self._known[key] = self._first_sight(key)
            self._shrink(key)
        elif signature.calls:
            self._new, self.against = 0, None
        self._known.move_to_end(key)
        return signature

    def sizes(self, arguments: Sequence[Any]) -> Integers:
        """The dynamic sizes of a call."""
        return tuple(arguments[i] for i in self._integers or ())

    def _number(self, argument: Any) -> tuple[torch.dtype, int] | None:
        if not numbers.is_number(argument, self.device):
            return None
        return argument.dtype, numbers.bits(argument)

    def _leave_out(self, elsewhere: Collection[int]) -> None:
        """Takes arguments out of what signatures consist of. One with a program keeps what it has:
        it is not found any more, and its program serves the calls that it accepts."""
        kept = [n for n, index in enumerate(self._numbers) if index not in elsewhere]
        self._numbers = [self._numbers[n] for n in kept]
        known, self._known = self._known, collections.OrderedDict()
        for key, signature in known.items():
            shorter = key[0], tuple(key[1][n] for n in kept)
            self._known.setdefault(key if signature.program is not None else shorter, signature)

    def _first_sight(self, key: Key) -> Signature:
        sizes = key[0]
        warm_up_calls = self.rules.warm_up_calls(sizes)
        seen = [] if self.against else self._numbers_with(sizes)
        if seen or self.against:
            warm_up_calls = max(warm_up_calls, 1)
            self._new += 1
        if seen and self._new >= _SIGHTS:
            distinct = [len(set(values)) for values in zip(*seen, strict=True)]
            restless = self._numbers[distinct.index(max(distinct))]
            self.against = (
                f"argument {restless} is a number on the host that differs from call to call"
            )
        return Signature(warm_up_calls, settled=not self.rules.wants(sizes))

    def _numbers_with(self, sizes: Integers) -> list[tuple[Any, ...]]:
        """The numbers on the host that came with some sizes."""
        count = len(self._numbers)
        if not count:
            return []
        return [key[1] for key in self._known if count == len(key[1]) and key[0] == sizes]

    def _shrink(self, new: Key) -> None:
        excess = len(self._known) - len(self._with_program) - _REMEMBERED
        if excess > 0:
            without = (k for k, known in self._known.items() if known.program is None and k != new)
            for key in list(itertools.islice(without, excess)):
                del self._known[key]

    @property
    def with_program(self) -> list[Signature]:
        """Those that have a program."""
        return list(self._with_program)

    def adopt(self, signature: Signature, program: Any, keep: Any, nodes: int) -> None:
        """`signature` has a program."""
        signature.adopt(program, keep, nodes)
        self._with_program.append(signature)

    def share_arena(self) -> None:
        """All programs ask for as much as the largest: what one gives back fits the next."""
        programs = [signature.program for signature in self._with_program]
        largest = max(program.arena_in_one_piece for program in programs)
        for program in programs:
            program.set_least_arena(largest)

    def drop(self, signature: Signature) -> None:
        """It has none any more."""
        signature.forget()
        self._with_program.remove(signature)

    def evict(self, signature: Signature) -> None:
        """Its program made room for another one's."""
        signature.evict()
        self._with_program.remove(signature)

    @property
    def known(self) -> int:
        """How many there are, as far as they are remembered."""
        return len(self._known)

    def count(self) -> int:
        """How many have a program."""
        return len(self._with_program)

    @property
    def limit(self) -> str | None:
        """Why one more program needs another one's room; None if it does not."""
        count = len(self._with_program)
        if count >= self.rules.programs:
            return f"max_programs is {self.rules.programs}"
        nodes = sum(signature.nodes for signature in self._with_program)
        if nodes >= NODES and count >= self.rules.at_once:
            return f"they have {nodes} nodes, {NODES} are for any but programs_at_once"
        return None

    @property
    def full(self) -> bool:
        return self.limit is not None

    @property
    def soon(self) -> int:
        """A signature that came so many calls ago, or fewer, need not wait."""
        return SOON if self.count() < EAGER and not self._must_wait else 0

    @property
    def _must_wait(self) -> bool:
        return self.full or self._link_failed

    def seconds_to_wait(self, gap: int | None = None) -> float:
        """Until a program may be linked for a signature that came `gap` calls ago."""
        soon = gap is not None and gap <= self.soon
        many = max(self._at_once(), self.rules.at_once)
        wanted = self.count() < many or bool(self.rules.sizes)
        at_once = soon or (wanted and not self._must_wait)
        return 0.0 if at_once else budget.BUDGET.seconds_to_wait(lent=self._save_much)

    def note_link(self, seconds: float, failed: bool = False) -> None:
        """An attempt to link that took so long has just ended."""
        budget.BUDGET.spend(seconds, on_top=self.count() > EAGER)
        self._link_failed = failed

    def note_saving(self, seconds: float, of: float) -> None:
        """What a replay of a program takes less than the callable, or more, which takes `of`."""
        self._savings.append((seconds, of))

    @property
    def _saving(self) -> float:
        """Of a replay. A program in the middle counts: of many clocks one has stood still."""
        return max(statistics.median(saved for saved, _ in self._savings or [(0.0, 0.0)]), 0.0)

    @property
    def _save_much(self) -> bool:
        taken = statistics.median(taken for _, taken in self._savings or [(0.0, 0.0)])
        return self._host_bound and not self._link_failed and self._saving > _MUCH * taken

    def count_savings(self, replays: int, host_bound: bool) -> None:
        """There were so many replays by now. What they saved counts where the device waits for the
        host: elsewhere nobody has noticed it."""
        if host_bound:
            budget.BUDGET.earn((replays - self._replays) * self._saving)
        self._replays, self._host_bound = replays, host_bound

    def waiting(self, sizes: int) -> str | None:
        """Why some of so many sizes have no program yet; None if not for want of time."""
        missing = sizes - self.count()
        if missing <= 0 or self.full or not budget.BUDGET.link or self.rules.sizes:
            return None
        share = 1 / (1 + (budget.PACE if self._save_much else budget.PATIENCE))
        return (
            f"{missing} of {sizes} sizes have no graph yet: making one takes "
            f"{1e3 * budget.BUDGET.link:.0f} ms, and {100 * share:.1f}% of the time may go into "
            f"that; programs_at_once={sizes} makes them at once"
        )

    @property
    def integers(self) -> list[int] | None:
        """Where a call's arguments are integers, if that is all that signatures differ in; None if
        not, or not known yet."""
        return None if self._had_numbers else self._integers

    def owner(self, program: Any) -> Signature | None:
        """Whose program that is."""
        return next((known for known in self._with_program if known.program is program), None)


def sizes_of(listed: Iterable[Any]) -> tuple[frozenset[int], ...]:
    """The option `capture_sizes`: integers, or tuples of integers, as SignatureRules.sizes. Raises
    ValueError for anything else."""
    if not isinstance(listed, Iterable):
        raise _no_sizes(listed)
    found = []
    for size in listed:
        numbers = (size,) if type(size) is int else tuple(size) if isinstance(size, tuple) else ()
        if not numbers or any(type(number) is not int or number < 0 for number in numbers):
            raise _no_sizes(size)
        found.append(frozenset(numbers))
    return tuple(found)


def _no_sizes(value: Any) -> ValueError:
    return ValueError(
        f"option 'capture_sizes' has {value!r}; it must be a list of sizes, each an integer of 0 "
        "or more, or a tuple of them"
    )
