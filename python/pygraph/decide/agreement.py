"""What the ranks of a group decide together about a graph with collectives.

Each rank links and proves for itself, in the same call of its program: the one that signatures.py
says, which counts calls and asks no clock. What it takes of runs and outcomes is agreed upon in
rounds. In a round each rank says what it wants: to make a run, nothing, or to object. All hear the
same, so all come to the same end: an objection ends the attempt for everybody, a run that somebody
wants is made by everybody, and else the attempt is over and its program deployed.

The rounds are kept in the store of the group, on the host; nothing is created for them, and no GPU
is asked. A round is closed by the first rank that says so in one atomic step: that it is complete,
or that it is void. So no rank goes on with a round that another has given up. A rank that hears
nothing for half of the group's time-out gives a round up, which leaves the other half to the
collective that comes next; from then on the group has no further graphs.

Ranks need not run the same code. One that runs nothing of PyGraph's with a group has never greeted
it: nobody waits for it. And the first round is short, in which those who link meet: a call is
linked behind a run of it, whose collectives have brought all ranks there at the same time.

Threads: a session belongs to the thread that links, which is alone (runtime/call_lock.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import itertools
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pygraph.capturing.attempts import Attempt, Setback
from pygraph.capturing.consent import Dissent, Favour, Objection
from pygraph.operators.collectives import is_between_two
from pygraph.torch_private import distributed

log = logging.getLogger(__name__)

_COMPLETE, _VOID = "complete", "void"
#: Between two looks into the store, at first and in the end: as long as a request takes, and as
#: nobody notices beside what a rank does that is late.
_SHORTEST_S, _LONGEST_S = 1e-4, 2e-2
#: How long ranks wait for each other where their collectives have just matched: what a system under
#: load may take to let all of them go on.
_MEET_S = 10.0


@dataclasses.dataclass(frozen=True)
class Collectives:
    """Those of one callable, as its first call made them."""

    operators: tuple[str, ...]  #: in their order
    groups: tuple[Any, ...]  #: each once
    unknown: str | None = None  #: an operator whose group is not known

    def __bool__(self) -> bool:
        return bool(self.operators)

    def __str__(self) -> str:
        counts = Counter(self.operators)
        listed = ", ".join(f"{count} x {name}" for name, count in counts.items())
        names = ", ".join(repr(distributed.name_of(each)) for each in self.groups)
        return f"{listed} of group {names}" if names else listed


NONE = Collectives((), ())


def found(seen: Sequence[tuple[str, Any]]) -> Collectives:
    """The collectives that were seen, each with what it was given for its group."""
    groups: dict[int, Any] = {}
    unknown: str | None = None
    for operator, given in seen:
        group = distributed.group_named(given)
        if group is None:
            unknown = unknown or operator
        else:
            groups[id(group)] = group
    return Collectives(tuple(name for name, _ in seen), tuple(groups.values()), unknown)


_groups: dict[int, _Group] = {}
_ends: list[Callable[[Any], None]] = []
#: By name, how many groups have ended: a later one of that name must not read what they have said.
_ended: Counter[str] = Counter()
_lock = threading.Lock()


class _Group:
    """A group of ranks, and its part of the store."""

    def __init__(self, group: Any) -> None:
        self.group = group  # what its identity stands for must live
        self.name = distributed.name_of(group)
        self.rank, self.ranks = distributed.own_rank(group), distributed.ranks_of(group)
        self.limit_s = distributed.time_out(group).total_seconds() / 2
        self.lost: str | None = None  #: why it has no further graphs
        self.sessions = 0
        self.greeted = False
        self._store = distributed.store_of(group)
        self._prefix = f"pygraph/{_ended[self.name]}"

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(len(self.ranks)) if rank != self.rank]

    def greet(self) -> None:
        """Tells the others that this rank runs graphs with the group, before it makes a call."""
        if not self.greeted:
            self.greeted = True
            with self._losing():
                self._store.set(f"{self._prefix}/here/{self.rank}", "1")

    def look_around(self) -> None:
        """Finds out whether there can be an agreement: nobody has given up, and all have greeted,
        as those did whose collectives have matched ours."""
        with self._losing():
            if self._store.check([f"{self._prefix}/lost"]):
                self.lost = self._store.get(f"{self._prefix}/lost").decode()
                return
            for rank in self.others:
                if not self._store.check([f"{self._prefix}/here/{rank}"]):
                    who = f"rank {self.ranks[rank]}"
                    self.lose(f"{who} runs no graph with the collectives of group {self.name!r}")
                    return

    def lose(self, reason: str) -> None:
        """No rank has further graphs with the group."""
        self.lost = reason
        with self._losing():
            self._store.set(f"{self._prefix}/lost", reason)

    def void(self, session: int, number: int) -> bool:
        """Gives a round up, for all; False if it was complete before."""
        place = self._place(session, number, "end")
        return bool(self._store.compare_set(place, "", _VOID).decode() == _VOID)

    def exchange(self, session: int, number: int, message: str, limit_s: float) -> list[str] | None:
        """What all ranks say in a round, in their order; None if it is void."""
        places = [self._place(session, number, rank) for rank in range(len(self.ranks))]
        said: list[str] | None = None
        with self._losing():
            self._store.set(places[self.rank], message)
            if not self._wait(places, limit_s) and self.void(session, number):
                self.lose(f"a rank of group {self.name!r} was not heard of for {limit_s:g} s")
                return None
            end = self._place(session, number, "end")
            if self._store.compare_set(end, "", _COMPLETE).decode() == _COMPLETE:
                said = [self._store.get(place).decode() for place in places]
                if number:  # the round before, which all have read
                    self._store.delete_key(self._place(session, number - 1, self.rank))
        return said

    def _wait(self, places: list[str], limit_s: float) -> bool:
        """Not by the store's own wait, which does not hear of the interpreter's signals."""
        until, pause_s = time.monotonic() + limit_s, _SHORTEST_S
        end = places[0].rpartition("/")[0] + "/end"
        while not self._store.check(places):
            if self._store.check([end]):  # given up by another: compare_set() says so
                return True
            if time.monotonic() > until:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_S)
        return True

    def _place(self, session: int, number: int, what: int | str) -> str:
        return f"{self._prefix}/{session}/{number}/{what}"

    @contextlib.contextmanager
    def _losing(self) -> Iterator[None]:
        """A store that is gone took its rank with it."""
        try:
            yield
        except RuntimeError as error:
            self.lost = f"the store of group {self.name!r} does not answer: {error}"


class Session:
    """The agreement on one graph (consent.Consent), once all ranks link. Raises Dissent where they
    do not."""

    def __init__(self, group: _Group, about: str) -> None:
        self._group = group
        self._about = about
        self._number = group.sessions
        self._rounds = itertools.count()
        self._attempt = ""
        group.sessions += 1
        if group.lost is None:
            group.look_around()
        self._round({"run": False}, min(_MEET_S, group.limit_s))

    def begin(self, attempt: Attempt) -> None:
        self._attempt = str(attempt)

    def before_run(self) -> None:
        self._round({"run": True})

    def settle(self, favour: Favour) -> None:
        while self._round({"run": False}):
            favour()

    def make_up(self, favour: Favour) -> None:
        favour()

    def object(self, objection: Objection) -> Objection:
        setback = None if objection.setback is None else objection.setback.name
        said = dataclasses.asdict(objection) | {"setback": setback}
        try:
            self._round({"run": False, "objection": said})
        except Dissent as dissent:
            return dissent.objection
        raise AssertionError("a round with an objection has passed")

    def slowest(self, seconds: Sequence[float]) -> list[float] | None:
        """What each of these takes on the rank that takes longest; None if it is not known, on any
        rank."""
        said = self._say({"seconds": list(seconds)})
        if said is None or not all("seconds" in each for each in said):
            return None
        return [max(values) for values in zip(*(each["seconds"] for each in said), strict=True)]

    def _round(self, wish: dict[str, Any], limit_s: float | None = None) -> bool:
        """Whether somebody makes a run now. Raises Dissent."""
        said = self._say(wish | {"about": f"{self._about} {self._attempt}"}, limit_s)
        if said is None:
            because = self._group.lost or "another rank of the group links at another call"
            raise Dissent(Objection(because))
        for rank, each in enumerate(said):
            if "objection" in each:
                raise Dissent(self._heard(rank, each["objection"]))
        if len({each.get("about") for each in said}) > 1:
            raise Dissent(Objection("the ranks of the group have different code to link"))
        return any(each["run"] for each in said)

    def _heard(self, rank: int, said: dict[str, Any]) -> Objection:
        setback = None if said["setback"] is None else Setback[said["setback"]]
        whose = "" if rank == self._group.rank else f"rank {self._group.ranks[rank]}: "
        return Objection(**(said | {"setback": setback, "reason": whose + said["reason"]}))

    def _say(
        self, message: dict[str, Any], limit_s: float | None = None
    ) -> list[dict[str, Any]] | None:
        if self._group.lost is not None:
            return None
        number, limit_s = next(self._rounds), limit_s or self._group.limit_s
        said = self._group.exchange(self._number, number, json.dumps(message), limit_s)
        log.debug(
            "group %r: session %d, round %d: %s", self._group.name, self._number, number, said
        )
        return None if said is None else [json.loads(each) for each in said]


def among_ranks() -> bool:
    """Whether this process is one of several ranks: its clocks then say how long others take, too,
    and what one rank gains or loses by a choice, all do."""
    return distributed.in_use() and len(distributed.ranks_of(distributed.world())) > 1


def note(collectives: Collectives) -> None:
    """A callable with these is about to make calls that may get a graph."""
    distributed.forbid_registration()
    group = _group_for(collectives)
    if group is not None:
        group.greet()


def open_session(collectives: Collectives) -> Session | None:
    """For a graph that this rank links in this call; None: it has nobody to agree with. Raises
    Dissent where not all ranks link."""
    if collectives.unknown is not None:
        raise Dissent(
            Objection(
                f"{collectives.unknown} is a collective of a group that is not known",
                operator=collectives.unknown,
            )
        )
    group = _group_for(collectives)
    if group is None:
        return None
    common = [each for each in collectives.operators if not is_between_two(each)]
    key = hashlib.sha256("\n".join(common).encode()).hexdigest()[:16]
    return Session(group, key)


def when_a_group_ends(tell: Callable[[Any], None]) -> None:
    """Has `tell` called with each process group that is about to end, from the first graph with
    collectives on."""
    _ends.append(tell)


def _group_for(collectives: Collectives) -> _Group | None:
    """Whose ranks agree: those of the group, and of several groups all ranks that there are. None
    where this rank is alone."""
    if not collectives.groups:
        return None
    found = collectives.groups[0] if len(collectives.groups) == 1 else distributed.world()
    with _lock:
        group = _groups.get(id(found))
        if group is None:
            distributed.watch_ends(_end)
            group = _groups[id(found)] = _Group(found)
    return group if len(group.ranks) > 1 else None


def _end(group: Any) -> None:
    _ended[distributed.name_of(group)] += 1
    for tell in _ends:
        tell(group)
    gc.collect()  # captures that failed may be in a cycle with the error that says why
    with _lock:
        _groups.pop(id(group), None)
