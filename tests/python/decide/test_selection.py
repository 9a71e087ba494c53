"""What pairs of clocked calls say."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import nan

import pytest

from pygraph.decide import cost_model, selection
from pygraph.decide.selection import Clocked, ClockedPair, Decision

LOOKS = (12, 16, 24, 32, 48, 64)  # Contest::kLooks

Call = Callable[[], Clocked]


def clocked(
    host: float, device: float, period: float, *, idle: bool = True, noise: float = 0.02
) -> Call:
    """A way to serve calls, whose clocks show about this."""

    def call() -> Clocked:
        scale = [1 + noise * random.random() for _ in range(3)]
        return Clocked(host * scale[0], device * scale[1], period * scale[2], idle)

    return call


def decided(graph: Call, other: Call) -> Decision:
    """What a contest of these ends with."""
    random.seed(0)
    pairs: list[ClockedPair] = []
    for look in LOOKS:
        while len(pairs) < look:
            pairs.append((graph(), other()))
        decision = selection.judge(pairs, over=look == LOOKS[-1])
        if decision is not None:
            return decision
    raise AssertionError("the last look must decide")


def test_what_is_faster_by_all_clocks_serves_after_the_first_look() -> None:
    faster, slower = clocked(10, 12, 20), clocked(20, 22, 30)
    decision = decided(faster, slower)
    assert (decision.graph, decision.pairs, decision.idle) == (True, 12, None)
    decision = decided(slower, faster)
    assert (decision.graph, decision.pairs, decision.idle) == (False, 12, None)


def test_two_percent_are_told_apart_in_noise_of_two_percent() -> None:
    decision = decided(clocked(10.2, 12.24, 20.4), clocked(10, 12, 20))
    assert not decision.graph
    assert decision.pairs < 64


def test_slow_calls_now_and_then_do_not_count_more_than_others() -> None:
    def seldom_slow() -> Clocked:
        slow = 1000 if random.random() < 0.1 else 0
        return Clocked(10 + slow, 12 + slow, 20 + slow, True)

    decision = decided(seldom_slow, clocked(11, 13, 21))
    assert decision.graph
    assert decision.with_us == {"host": 10, "device": 12, "caller": 20}


def test_a_caller_behind_the_device_pays_the_period() -> None:
    """The host's clock is for the graph, and the device's against it: who waits pays the latter,
    who does not the former, and either period shows it."""
    waits = decided(clocked(6, 14, 24), clocked(8, 11, 21))
    assert (waits.graph, waits.clock, waits.idle) == (False, "caller", True)
    goes_on = decided(clocked(6, 14, 16), clocked(8, 11, 18))
    assert (goes_on.graph, goes_on.clock, goes_on.idle) == (True, "caller", True)


def test_a_caller_ahead_of_the_device_pays_the_device() -> None:
    decision = decided(clocked(6, 105, 9, idle=False), clocked(8, 100, 11, idle=False))
    assert (decision.graph, decision.clock, decision.idle) == (False, "caller", False)


def test_a_stream_with_work_does_not_make_a_caller_ahead_of_the_device() -> None:
    """Its last call was launched when that ended, and runs when the next one begins."""
    decision = decided(clocked(1090, 906, 1093, idle=False), clocked(1040, 908, 1046, idle=False))
    assert (decision.graph, decision.clock) == (False, "caller")


def test_a_period_full_of_the_callers_own_time_leaves_it_to_host_and_device() -> None:
    def served(host: float, device: float) -> Call:
        return lambda: Clocked(host, device, 1000 * random.random(), True)

    decision = decided(served(12, 14), served(8, 10))
    assert not decision.graph
    assert decision.clock == "device"


def test_equal_ways_mostly_leave_the_graph() -> None:
    random.seed(1)
    wrong = 0
    for _ in range(200):
        one = clocked(10, 12, 20, noise=0.2)
        pairs = [(one(), one()) for _ in range(64)]
        found = next(
            each
            for look in LOOKS
            if (each := selection.judge(pairs[:look], over=look == 64)) is not None
        )
        wrong += not found.graph
    assert wrong < 20


def test_clocks_that_have_not_run_say_nothing() -> None:
    decision = decided(clocked(10, nan, nan), clocked(8, nan, nan))
    assert (decision.graph, decision.clock, decision.pairs) == (False, "host", 64)
    assert set(decision.with_us) == {"host"}


@pytest.mark.parametrize(
    ("callable_s", "graph_s", "won"),
    [(20e-3, 5e-3, True), (20e-3, 15e-3, False), (60e-6, 20e-6, False)],
)
def test_a_proof_decides_where_it_is_clear(callable_s: float, graph_s: float, won: bool) -> None:
    assert selection.won_when_proven(callable_s, graph_s) == won


def test_the_model_counts_launches_against_patches() -> None:
    tiny = cost_model.Contents(nodes=1, patched=2, arguments=1, results=1)
    assert cost_model.with_graph(tiny) < cost_model.without_graph(tiny)
    wide = cost_model.Contents(nodes=3, patched=600, arguments=600, results=1)
    assert cost_model.with_graph(wide) > cost_model.without_graph(wide)


def test_a_launch_before_the_guards_is_judged_by_the_caller_alone() -> None:
    """The device's clock begins with the launch, and so is for it whatever that costs."""
    random.seed(0)
    ahead, behind = clocked(30, 32, 73), clocked(26, 45, 65)
    pairs = [(ahead(), behind()) for _ in range(64)]
    decision = selection.judge(pairs, True, "early")
    assert decision is not None
    assert (decision.graph, decision.clock) == (False, "caller")
    pairs = [(ahead(), ahead()._replace(device=45.0)) for _ in range(64)]
    decision = selection.judge(pairs, True, "early")
    assert decision is not None
    assert decision.clock is None
