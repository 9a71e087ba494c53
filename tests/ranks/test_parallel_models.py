"""Models that torch splits among ranks compute what they do uncompiled, and are replayed."""

from __future__ import annotations

from tests.ranks.launch import ON_GPUS, launch

#: Calls of each scenario that are not replays, at most.
INFERENCE, TRAINING, WHOLE_STEPS = 2, 8, 1
SCENARIOS = {
    "tensor_parallel_inference": INFERENCE,
    "tensor_parallel_training": TRAINING,
    "sequence_parallel_training": TRAINING,
    "ddp": TRAINING,
    "ddp_accumulates": TRAINING,
    "fsdp": TRAINING,
    "whole_step": WHOLE_STEPS,
}


def test_parallel_models() -> None:
    ended = launch([*SCENARIOS, "whole_step_in_place"])
    for rank, each in enumerate(ended):
        for name, most in SCENARIOS.items():
            assert name in each.results, (rank, name, each.status, each.log)
            found = each.results[name]
            assert "error" not in found, (rank, name, found["error"])
            assert found["wrong"] == 0 and not found["reasons"], (rank, name, found)
            assert found["calls"] - found["replays"] <= most, (rank, name, found)
        last = each.results["whole_step_in_place"]
        assert last["wrong"] == 0, last
        if ON_GPUS:
            assert not last["reasons"] and last["replays"] >= 6, last
        else:
            assert "the twin does not run" in last["reasons"][0], last
        assert each.status == 0, (rank, each.status, each.log)
