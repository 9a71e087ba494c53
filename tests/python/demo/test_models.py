"""The demo's models: they are made anywhere, and their results hang on their inputs."""

import pytest

torch = pytest.importorskip("torch")

from pygraph.demo import small_models  # noqa: E402
from pygraph.demo.models import WORKLOADS, find  # noqa: E402


def test_a_deep_mlp_does_not_forget_its_input():
    own = WORKLOADS["mlp-32"]
    model = own.make_model().float()
    a, b = (model(own.make_inputs(seed, "cpu")[0].float())[0] for seed in (0, 1))
    assert torch.isfinite(a).all()
    assert torch.dist(a, b) > 0.1 * torch.linalg.vector_norm(b)


def test_names():
    assert [each.name for each in find("alexnet, mlp-1")] == ["alexnet", "mlp-1"]
    with pytest.raises(KeyError, match="mlp-8"):
        find("nonsense")


def test_unet_keeps_sizes():
    model = small_models.UNet(classes=3, width=4, depth=2).eval()
    with torch.no_grad():
        assert model(torch.randn(1, 3, 16, 24)).shape == (1, 3, 16, 24)
