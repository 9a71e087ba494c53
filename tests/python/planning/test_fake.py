"""Tensors without memory: where they are said to be, and how questions about values end."""

import torch

from pygraph.planning.fake import StandInMode, stand_in_device


def test_training_is_planned_by_a_torch_for_cuda_without_a_gpu(monkeypatch):
    """Autograd asks the driver about the device of a gradient, an inference asks nobody."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (stand_in_device(training=False), stand_in_device(training=True)) == ("cuda:0", "meta")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert stand_in_device(training=True) == "cuda:0"


def test_questions_about_values_end():
    with StandInMode() as mode:
        flag, rounds = torch.ones((), dtype=torch.bool), 0
        while flag and rounds < 1000:
            rounds += 1
        assert 0 < rounds < 1000
        assert torch.randn(3, 2).nonzero().shape == (6, 2)
        assert torch.randn(3, 2)[torch.ones(3, 2) > 0].shape == (6,)
        assert torch.randn(3, 2).masked_select(torch.ones(3, 1) > 0).shape == (6,)
    assert sum(mode.guesses.values()) >= rounds
