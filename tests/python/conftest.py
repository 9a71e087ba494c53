"""--reduce-overhead: which tests of training torch's own CUDA graphs would pass."""

from __future__ import annotations

import pytest
import torch
import training_support


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--reduce-overhead",
        action="store_true",
        help="put torch.compile(mode='reduce-overhead') in the place of PyGraph where a test of "
        "training compares a program's values: one that it gets wrong fails, others are skipped",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--reduce-overhead"):
        if not torch.cuda.is_available():
            raise pytest.UsageError("--reduce-overhead needs a CUDA device")
        training_support.instead_of_pygraph = "reduce-overhead"
