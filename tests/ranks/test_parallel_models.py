"""Models that torch splits among ranks compute what they do uncompiled, and are replayed."""

from __future__ import annotations

from collections.abc import Mapping

from tests.ranks.launch import ON_GPUS, Ended, launch

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
    "whole_step_compared": WHOLE_STEPS,
    "fsdp_whole_step": WHOLE_STEPS,
    "fsdp_whole_step_gradients_stay": WHOLE_STEPS,
    "fsdp_whole_step_in_halves": WHOLE_STEPS,
    "fsdp_whole_step_mixed_precision": WHOLE_STEPS,
    "tensor_parallel_whole_step": WHOLE_STEPS,
}

#: Of four ranks.
IN_TWO_DIMENSIONS = {"two_dimensions": TRAINING, "two_dimensions_whole_step": WHOLE_STEPS}

#: The twin knows functional collectives, and refuses others.
ON_GPUS_ALONE = ("whole_step_in_place", "pipeline_stage")


def require_right(rank: int, each: Ended, scenarios: Mapping[str, int]) -> None:
    """Of each of the scenarios, and that no more calls than said are no replays."""
    for name, most in scenarios.items():
        assert name in each.results, (rank, name, each.status, each.log)
        found = each.results[name]
        assert "error" not in found, (rank, name, found["error"])
        assert found["wrong"] == 0 and not found["reasons"], (rank, name, found)
        assert found["calls"] - found["replays"] <= most, (rank, name, found)


def test_two_dimensions() -> None:
    """Tensor parallel by one, FSDP2 by the other."""
    for rank, each in enumerate(launch(list(IN_TWO_DIMENSIONS), ranks=4)):
        require_right(rank, each, IN_TWO_DIMENSIONS)
        assert each.status == 0, (rank, each.status, each.log)


def test_parallel_models() -> None:
    ended = launch([*SCENARIOS, *ON_GPUS_ALONE])
    for rank, each in enumerate(ended):
        require_right(rank, each, SCENARIOS)
        assert each.results["tensor_parallel_inference"]["past"]
        for name in ON_GPUS_ALONE:
            found = each.results[name]
            assert "error" not in found, (rank, name, found["error"])
            assert found["wrong"] == 0, (rank, name, found)
            if ON_GPUS:
                assert not found["reasons"] and found["replays"] >= 6, (rank, name, found)
            else:
                assert "the twin does not run" in found["reasons"][0], (rank, name, found)
        assert each.status == 0, (rank, each.status, each.log)
