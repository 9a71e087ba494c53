"""The demo's models: they are made anywhere, and their results hang on their inputs."""

import pytest

torch = pytest.importorskip("torch")

from pygraph.demo.models import MEASURED, WORKLOADS, Workload, find  # noqa: E402


def test_a_deep_mlp_does_not_forget_its_input():
    own = WORKLOADS["mlp-32"]
    model = own.make_model().float()
    a, b = (model(own.make_inputs(seed, "cpu")[0].float())[0] for seed in (0, 1))
    assert torch.isfinite(a).all()
    assert torch.dist(a, b) > 0.1 * torch.linalg.vector_norm(b)


def test_a_model_that_cannot_be_built_on_its_device_is_moved_there():
    """And what is neither a parameter nor a buffer stays behind, as with any program."""

    class Unwilling(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)
            self.scale = torch.ones(2)
            self.count = int(self.linear.weight.sum())  # raises for meta tensors

    model = Workload("x", 1, Unwilling, lambda generator: (), "torch").make_model("meta")
    assert model.linear.weight.is_meta and model.scale.device.type == "cpu"


def test_names():
    assert [each.name for each in find(None)] == list(MEASURED)
    with pytest.raises(KeyError, match="mlp-8"):
        find("nonsense")
