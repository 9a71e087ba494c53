"""A server with 300 lengths: which of its calls are replays after a minute, and what links cost a
stream at most. The policy is the real one; calls, links and the clock are played. A link takes 60
to 100 ms, a call without a graph 2 ms and a replay 0.5, as for a small model on an H100."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pygraph.decide import budget, signatures
from pygraph.decide.signatures import SignatureRules, Signatures
from pygraph.runtime import bypass, devices

LENGTHS = 300
MINUTE = 60.0
CALLABLE, REPLAY = 2e-3, 0.5e-3


class Stream:
    """One compiled graph and its calls: what compiled_graph.py, bypass.py and the dispatcher do."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        link: float,
        nodes: int = 50,
        callable_s: float = CALLABLE,
        host_bound: bool = True,
    ) -> None:
        self.now = 1e4
        monkeypatch.setattr(budget.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(budget, "BUDGET", budget.Budget())
        self.rules = SignatureRules()
        self.found = Signatures(self.rules, devices.PLATFORMS["twin"].device(0))
        self.link, self.nodes, self.callable_s, self.host_bound = (
            link,
            nodes,
            callable_s,
            host_bound,
        )
        self.calls = self.replays = 0
        self.linking = 0.0  #: seconds that links have taken
        self.used: dict[int, int] = {}  #: by length: when its program was used last
        self.bypassed: dict[int, SimpleNamespace] = {}
        self.open_until, self.soon = 0.0, 0

    def call(self, length: int) -> bool:
        """Whether it was a replay."""
        self.calls += 1
        if length in self.used:
            self.used[length] = self.calls
            self.replays += 1
            self.now += REPLAY
            return True
        self.now += self.callable_s
        if not self._takes(length):
            self._serve(length)
        return False

    def _takes(self, length: int) -> bool:
        """src/torch/bypass.cpp"""
        new = SimpleNamespace(left=self.rules.capture_at - 1, taken=0, before=0, last=0)
        known = self.bypassed.setdefault(length, new)
        known.before, known.last = known.last, self.calls
        back_soon = known.before and self.calls - known.before <= self.soon
        if not known.left and (back_soon or self.now >= self.open_until):
            return False
        known.left = max(known.left - 1, 0)
        known.taken += 1
        return True

    def _serve(self, length: int) -> None:
        signature = self.found.of([length])
        known = self.bypassed[length]
        signature.count(self.calls, known.taken, known.before)
        known.taken = 0
        if signature.calls <= signature.warm_up_calls or self._must_wait(signature):
            known.left = signature.uneventful
            return
        assert signature.claim()
        self.now += self.link
        self.linking += self.link
        program: Any = SimpleNamespace(length=length)
        while self.found.full:
            oldest = min(self.used, key=lambda each: self.used[each])
            self.found.evict(self.found.of([oldest]))
            del self.used[oldest]
        self.found.adopt(signature, program, None, self.nodes)
        self.found.note_saving(self.callable_s - REPLAY, self.callable_s)
        self.found.note_link(self.link)
        self.used[length] = self.calls
        self._open_to_all(self.found.seconds_to_wait())

    def _must_wait(self, signature: Any) -> bool:
        if self.found.full and not signature.deserves_place(self.calls, min(self.used.values())):
            return True
        self.found.count_savings(self.replays, self.host_bound)
        seconds = self.found.seconds_to_wait(signature.gap)
        self._open_to_all(seconds)
        return seconds > 0

    def _open_to_all(self, seconds: float) -> None:
        self.open_until = self.now + min(seconds, bypass._ASKED_AGAIN)
        self.soon = self.found.soon

    def serve(self, lengths: Iterable[int], per_second: float, seconds: float) -> float:
        """Requests at their times, or behind each other; the share of replays among those of the
        last ten seconds."""
        began = self.now
        late = [0, 0]
        for number, length in enumerate(lengths):
            due = began + number / per_second
            if max(self.now, due) >= began + seconds:
                break
            self.now = max(self.now, due)
            replayed = self.call(length)
            if self.now > began + seconds - 10.0:
                late[0] += replayed
                late[1] += 1
        return late[0] / late[1]


def uniform() -> Iterator[int]:
    draw = random.Random(0)
    return iter(lambda: draw.randrange(LENGTHS), None)


def zipf() -> Iterator[int]:
    draw = random.Random(0)
    weights = list(itertools.accumulate(1 / (n + 1) for n in range(LENGTHS)))
    return iter(lambda: draw.choices(range(LENGTHS), cum_weights=weights)[0], None)


def twice_each() -> Iterator[int]:
    """Blocks of 300 lengths that come back once, and never again."""
    blocks = (range(n, n + LENGTHS) for n in itertools.count(0, LENGTHS))
    return (length for block in blocks for length in [*block] * 2)


@pytest.mark.parametrize(
    ("lengths", "per_second", "link"),
    [
        (uniform, 500, 0.06),
        (uniform, 500, 0.1),
        (uniform, 100, 0.06),
        (zipf, 500, 0.1),
        (zipf, 100, 0.06),
        (zipf, 100, 0.1),
    ],
)
def test_a_server_of_many_lengths_replays_most_of_them_after_a_minute(
    monkeypatch: pytest.MonkeyPatch, lengths: Any, per_second: float, link: float
) -> None:
    assert Stream(monkeypatch, link).serve(lengths(), per_second, MINUTE) > 0.5


@pytest.mark.parametrize("lengths", [uniform, zipf, twice_each])
@pytest.mark.parametrize(("callable_s", "host_bound"), [(2e-3, True), (2e-3, False), (6e-4, True)])
def test_links_never_take_more_than_is_promised(
    monkeypatch: pytest.MonkeyPatch, lengths: Any, callable_s: float, host_bound: bool
) -> None:
    """docs/design/runtime.md"""
    stream = Stream(monkeypatch, 0.06, callable_s=callable_s, host_bound=host_bound)
    began, times = stream.now, []
    for number, length in enumerate(lengths()):
        stream.call(length)
        if number % 100 == 0:
            saved = stream.replays * (callable_s - REPLAY) if host_bound else 0.0
            own = signatures.EAGER * stream.link + budget.REINVESTED * saved
            times.append((stream.now - began, stream.linking - own))
        if stream.now > began + 4 * MINUTE:
            break
    lent = budget.LENT if host_bound and callable_s == 2e-3 else 0.0
    for time, links in times:
        assert links <= min(lent, time / (1 + budget.PACE)) + time / budget.PATIENCE + stream.link
    assert stream.linking > 1.0


def test_lengths_that_never_come_back_cost_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(monkeypatch, 0.06)
    stream.serve(itertools.count(), 400, MINUTE)
    assert stream.linking == 0.0


def test_what_was_lent_is_there_again_when_it_has_been_paid_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(budget.time, "monotonic", lambda: now)
    time_left = budget.Budget()
    time_left.spend(1.0, on_top=True)
    assert time_left.seconds_to_wait() == budget.PATIENCE
    assert time_left.seconds_to_wait(lent=True) == budget.PACE
    now += budget.PACE
    time_left.spend(budget.LENT, on_top=True)
    now += budget.PACE * budget.LENT
    waits = time_left.seconds_to_wait(lent=True)
    assert waits > 0.0  # one second too much has been spent
    time_left.earn(waits / budget.PATIENCE / budget.REINVESTED)
    assert time_left.seconds_to_wait(lent=True) == pytest.approx(0.0)


def test_the_report_says_why_sizes_have_no_graph_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(monkeypatch, 0.06)
    stream.serve(uniform(), 500, 5.0)
    count = stream.found.count()
    assert 0 < count < LENGTHS
    assert stream.found.waiting(LENGTHS) == (
        f"{LENGTHS - count} of {LENGTHS} sizes have no graph yet: making one takes 60 ms, and "
        f"25.0% of the time may go into that; programs_at_once={LENGTHS} makes them at once"
    )
    assert stream.found.waiting(count) is None
