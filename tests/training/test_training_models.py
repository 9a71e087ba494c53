"""Small real models train with PyGraph as they do with torch's own compilation, to the bit.

On the twin in CI; on a GPU in full size, where record.py makes the record.
"""

from __future__ import annotations

import pytest

from training import harness
from training.models import WORKLOADS
from training.workload import Workload

#: To be set once training is captured: graphs must then have served calls, as many as the workload
#: expects. Until then forward and backward passes run without graphs.
REQUIRE_GRAPHS = True

#: Long enough for every graph to be proven and replayed a few times.
TWIN_STEPS = 12
STEPS = 50
#: The ones that take a second.
TRAINED_LONG_ON_THE_TWIN = ("mlp", "rl", "vae", "dlrm")

#: Runs of torch.compile's default: if two have the same bits, all should.
GPU_REPEATS = (2, 3)

pytestmark = pytest.mark.filterwarnings("ignore:RNN module weights", "ignore:Online softmax")


def _assert_sound(workload: Workload, outcome: harness.Outcome) -> None:
    assert not outcome.problems
    if REQUIRE_GRAPHS:
        assert harness.missing_graphs(workload, outcome.candidate) is None


@pytest.mark.parametrize("name", WORKLOADS)
def test_trains_on_the_twin_bit_for_bit(name: str) -> None:
    steps = STEPS if name in TRAINED_LONG_ON_THE_TWIN else TWIN_STEPS
    workload = WORKLOADS[name]
    outcome = harness.check(workload, harness.TARGETS["twin"], steps)
    assert outcome.comparison.verdict == harness.BIT_EQUAL, str(outcome.comparison)
    _assert_sound(workload, outcome)


@pytest.mark.gpu
@pytest.mark.parametrize("name", WORKLOADS)
def test_trains_on_a_gpu_as_the_default_does(name: str) -> None:
    workload = WORKLOADS[name]
    outcome = harness.check(workload, harness.TARGETS["cuda"], STEPS, repeats=GPU_REPEATS)
    assert outcome.comparison.verdict != harness.DIFFERENT, str(outcome.comparison)
    _assert_sound(workload, outcome)
