"""Models are built where they run, or moved there; which of the demo's are measured."""

import torch

from benchmarks.first_light.models import MEASURED, NOT_REAL
from benchmarks.harness.build import make_model
from pygraph.demo.models import WORKLOADS, Workload


def test_a_model_that_cannot_be_built_on_its_device_is_moved_there():
    """And what is neither a parameter nor a buffer stays behind, as with any program."""

    class Unwilling(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)
            self.scale = torch.ones(2)
            self.count = int(self.linear.weight.sum())  # raises for meta tensors

    model = make_model(Workload("x", 1, Unwilling, lambda generator: (), "torch"), "meta")
    assert model.linear.weight.is_meta and model.scale.device.type == "cpu"


def test_nine_models_are_measured():
    assert len(MEASURED) == 9 and set(NOT_REAL) < set(MEASURED) < set(WORKLOADS)
