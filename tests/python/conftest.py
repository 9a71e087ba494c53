"""--reduce-overhead: which tests of training torch's own CUDA graphs would pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import training_support

from pygraph import _engine
from pygraph.adapter import versions


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


@pytest.fixture
def calibrated() -> Iterator[None]:
    """Torch's functions are found, and the twin's kernels reach the memory of CPU tensors."""
    assert versions.tensor_access() == "direct"
    _engine.twin_pageable_memory_access(True)
    yield
    _engine.twin_pageable_memory_access(False)
    _engine.twin_reset_faults()
