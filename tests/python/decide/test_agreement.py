"""Sessions of ranks, each a thread, over a store in memory."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist

from pygraph.capturing.attempts import LADDER, Attempt, Setback
from pygraph.capturing.consent import ALONE, Dissent, Objection
from pygraph.decide import agreement
from pygraph.decide.agreement import Collectives, Session

ATTEMPT = Attempt(LADDER[0])
A = "c10d.a.default"


class Group:
    """What stands for a process group of two ranks."""

    def __init__(self, rank: int, store: Any, seconds: float = 4.0) -> None:
        self.group_name = "two"
        self.place, self.store, self.seconds = rank, store, seconds


@pytest.fixture(autouse=True)
def groups() -> Iterator[None]:
    """Groups that are no torch's, and ranks of one process that do not share what they know."""
    with (
        mock.patch.multiple(
            agreement.distributed,
            ranks_of=lambda group: [4, 5],
            own_rank=lambda group: group.place,
            store_of=lambda group: group.store,
            time_out=lambda group: datetime.timedelta(seconds=group.seconds),
            watch_ends=lambda tell: None,
        ),
        mock.patch.dict(agreement._groups, clear=True),
    ):
        yield


def on_both(
    work: Callable[[Session], Any], operators: tuple[tuple[str, ...], ...] = ((A,), (A,))
) -> list[Any]:
    """What `work` returns on each rank, or the Dissent that it raises."""
    store = dist.HashStore()
    groups = [Group(rank, store) for rank in range(2)]
    found: list[Any] = [None, None]
    collectives = [Collectives(own, (group,)) for own, group in zip(operators, groups, strict=True)]
    for each in collectives:
        agreement.note(each)

    def run(rank: int) -> None:
        try:
            session = agreement.open_session(collectives[rank])
            assert session is not None
            session.begin(ATTEMPT)
            found[rank] = work(session)
        except Dissent as dissent:
            found[rank] = dissent

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return found


def rank_of(session: Session) -> int:
    return session._group.rank


def test_whoever_needs_no_run_makes_those_that_others_need() -> None:
    def work(session: Session) -> int:
        made = []
        for _ in range(3 if rank_of(session) else 1):
            session.before_run()
            made.append("own")
        session.settle(lambda: made.append("favour"))
        return made

    assert on_both(work) == [["own", "favour", "favour"], ["own"] * 3]


def test_an_objection_is_one_on_all_ranks() -> None:
    said = Objection("no", Setback.PROOF_FAILED, memory_short=True, operator="aten.mm")

    def work(session: Session) -> Any:
        if rank_of(session):
            return session.object(said)
        session.before_run()

    other, own = on_both(work)
    assert own == said
    assert other.objection == Objection("rank 5: no", Setback.PROOF_FAILED, True, "aten.mm")
    assert other.operator == "aten.mm"


def test_the_first_rank_that_objects_counts() -> None:
    found = on_both(lambda session: session.object(Objection(f"mine {rank_of(session)}")))
    assert [each.reason for each in found] == ["mine 0", "rank 4: mine 0"]


def test_ranks_with_other_code_have_no_graph() -> None:
    found = on_both(lambda session: session.before_run(), ((A,), (A, "c10d.b.default")))
    assert ["different code" in str(each) for each in found] == [True, True]


def test_sending_and_getting_are_the_same_between_two() -> None:
    ranks = (("c10d.send.default", A), (A, "c10d.recv_.default"))
    assert on_both(lambda session: session.before_run(), ranks) == [None, None]


def test_other_attempts_are_other_code() -> None:
    def work(session: Session) -> None:
        session.begin(Attempt(LADDER[rank_of(session)]))
        session.before_run()

    assert ["different code" in str(each) for each in on_both(work)] == [True, True]


def test_the_slowest_rank_counts() -> None:
    def work(session: Session) -> list[float] | None:
        rank = rank_of(session)
        return session.slowest([1.0 + rank, 4.0 - rank])

    assert on_both(work) == [[2.0, 4.0], [2.0, 4.0]]


def test_who_is_not_heard_of_is_not_waited_for_twice() -> None:
    store = dist.HashStore()
    one, other = (Collectives((A,), (Group(rank, store, 0.4),)) for rank in range(2))
    agreement.note(one)
    agreement.note(other)
    with pytest.raises(Dissent, match=r"a rank of group 'two' was not heard of for 0\.2 s"):
        agreement.open_session(one)
    for late in (one, other):  # which comes to a session that is void, and is told why
        with pytest.raises(Dissent, match="not heard of"):
            agreement.open_session(late)


def test_a_round_that_was_given_up_stays_so() -> None:
    store = dist.HashStore()
    group = agreement._Group(Group(0, store))
    other = agreement._Group(Group(1, store))
    assert group.void(7, 0)
    assert other.exchange(7, 0, "here", 5.0) is None
    store.set("pygraph/0/8/0/1", "there")
    assert group.exchange(8, 0, "here", 5.0) == ["here", "there"]
    assert not other.void(8, 0)  # it is complete


def test_who_runs_no_graphs_is_not_waited_for() -> None:
    one = Collectives((A,), (Group(0, dist.HashStore(), 600.0),))
    agreement.note(one)
    with pytest.raises(Dissent, match="rank 5 runs no graph with the collectives of group 'two'"):
        agreement.open_session(one)


def test_a_store_that_is_gone_ends_it() -> None:
    store = mock.Mock(check=mock.Mock(side_effect=dist.DistNetworkError("gone")))
    one = Collectives((A,), (Group(0, store),))
    agreement.note(one)
    with pytest.raises(Dissent, match="the store of group 'two' does not answer: gone"):
        agreement.open_session(one)


def test_a_collective_of_nobody_knows_whom_is_refused() -> None:
    seen = agreement.found([("symm_mem.barrier.default", None)])
    with pytest.raises(Dissent, match="a collective of a group that is not known") as refused:
        agreement.open_session(seen)
    assert refused.value.operator == "symm_mem.barrier.default"


def test_a_group_of_one_name_does_not_read_what_an_earlier_one_has_said() -> None:
    store = dist.HashStore()
    first = Group(0, store)
    agreement.note(Collectives((A,), (first,)))
    assert store.check(["pygraph/0/here/0"])
    with mock.patch.object(agreement, "_ends", []), mock.patch.dict(agreement._ended, clear=True):
        agreement._end(first)
        agreement.note(Collectives((A,), (Group(0, store),)))
    assert store.check(["pygraph/1/here/0"])


def test_a_callable_without_collectives_asks_nobody() -> None:
    made: list[str] = []
    ALONE.begin(ATTEMPT)
    ALONE.before_run()
    ALONE.settle(lambda: made.append("favour"))
    ALONE.make_up(lambda: made.append("favour"))
    said = Objection("no")
    assert ALONE.object(said) is said and not made
    assert not agreement.found([]) and agreement.open_session(agreement.NONE) is None
    assert not agreement.among_ranks()
