"""Ranks agree: in order, with faults on one of them, and when one dies."""

from __future__ import annotations

import pytest

from tests.ranks.launch import ON_GPUS, RANKS, TIME_OUT_S, Ended, launch

#: Seconds that starting a rank and compiling may take.
START_S = 90.0
GRAPHED = {"states": ["graphed"]}
FALLBACK = {"states": ["fallback"], "replays": 0}
ENDED = {
    "before": ["graphed"],
    "states": ["fallback"],
    "reasons": ["the process group of its collectives has ended"],
}
#: What each rank finds.
IN_ORDER = {
    "sums": [GRAPHED | {"replays": 10}] * 2,
    "several_sizes": [{"states": ["graphed"] * 3, "replays": 6}] * 2,
    "measured": [GRAPHED] * 2,
    "proven_again": [GRAPHED | {"replays": 10}] * 2,
    "group_of_one": [GRAPHED | {"replays": 10}] * 2,
    "two_groups": [GRAPHED | {"replays": 10}] * 2,
    "group_ends": [ENDED] * 2,
}
WITH_FAULTS = {
    "capture_refused": [FALLBACK | {"reasons": ["rank 1: planted"]}, FALLBACK],
    "proof_failed": [FALLBACK | {"reasons": ["rank 1: failed: planted"]}, FALLBACK],
    "proof_failed_at_first": [GRAPHED | {"replays": 10}] * 2,
    "memory_runs_out_while_linking": [GRAPHED | {"replays": 18}] * 2,
    "memory_runs_out_in_a_run": [GRAPHED | {"replays": 18}] * 2,
    "no_memory_for_copies": [GRAPHED | {"replays": 18}] * 2,
    "more_repeats": [GRAPHED | {"replays": 10}] * 2,
}
NOT_HEARD = "was not heard of"
APART = {
    "other_times": [{}, GRAPHED | {"replays": 10}],
    "other_calls": [FALLBACK] * 2,
    "one_without": [FALLBACK, {"states": []}],
}
DEATHS = (
    "dies_while_capturing",
    "dies_before_the_proof",
    "dies_between_runs",
    "dies_while_served",
)


def check(ended: list[Ended], expected: dict[str, list[dict[str, object]]]) -> None:
    for rank, each in enumerate(ended):
        for name, found in expected.items():
            assert name in each.results, (rank, name, each.status, each.log)
            result = each.results[name]
            assert "error" not in result, (rank, name, result["error"])
            assert result["wrong"] == 0, (rank, name, result)
            for key, value in found[rank].items():
                assert result[key] == value, (rank, name, result)
        assert each.status == 0, (rank, each.status, each.log)


def test_all_ranks_have_a_graph() -> None:
    ended = launch(list(IN_ORDER))
    check(ended, IN_ORDER)
    # Whatever their own clocks said, they decided by the same times.
    assert ended[0].results["measured"]["times"] == ended[1].results["measured"]["times"]
    assert "all_reduce" in ended[0].results["sums"]["collectives"][0]


def test_a_fault_on_one_rank_is_one_on_all() -> None:
    ended = launch(list(WITH_FAULTS))
    check(ended, WITH_FAULTS)
    # Rank 0 has made the runs that rank 1 wanted: it is there.
    assert ended[1].results["more_repeats"]["made"] > 0


def test_ranks_that_do_other_things_go_on() -> None:
    ended = launch(list(APART), time_out_s=10)
    check(ended, APART)
    # The first of two sizes is served on both ranks; the second comes on one alone.
    states = ended[0].results["other_times"]["states"]
    assert states[0] == "graphed" and "fallback" in states
    for rank in range(RANKS):
        assert NOT_HEARD in ended[rank].results["other_calls"]["reasons"][0]
    assert "rank 1 runs no graph" in ended[0].results["one_without"]["reasons"][0]


@pytest.mark.parametrize("how", DEATHS)
def test_a_rank_that_dies_leaves_nobody_waiting(how: str) -> None:
    survivor, dead = launch([how], limit_s=START_S + 6 * TIME_OUT_S, time_out_s=10)
    assert dead.status == -9 and not dead.results
    if ON_GPUS and not survivor.results:  # NCCL's watchdog has ended it
        assert survivor.status == -6 and "Watchdog caught collective" in survivor.log
        return
    found = survivor.results[how]
    assert found["wrong"] == 0 and found["raised"] and found["states"] == ["fallback"]
    if how != "dies_while_served":
        assert NOT_HEARD in found["reasons"][0] and found["made"] == 1
