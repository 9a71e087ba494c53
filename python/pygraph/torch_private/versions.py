"""Which torch we run on. The range is stated here and in pyproject.toml; a test compares them."""

from __future__ import annotations

import re

import torch

MINIMUM = (2, 11)
MAXIMUM = (2, 15)
RANGE = f"{MINIMUM[0]}.{MINIMUM[1]} to {MAXIMUM[0]}.{MAXIMUM[1]}"


def parse(version: str) -> tuple[int, int]:
    """(major, minor) of a version string like '2.11.0+cu130'."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise ValueError(f"not a torch version: {version!r}")
    return int(match[1]), int(match[2])


def torch_problem(version: str) -> str | None:
    """Why this torch cannot be used; None when it can."""
    if MINIMUM <= parse(version) <= MAXIMUM:
        return None
    return f"torch {version} found, PyGraph needs torch {RANGE}"


def states_per_capture() -> bool:
    """Whether a generator has a state of its own for each capture of a torch.cuda.CUDAGraph."""
    return parse(torch.__version__) >= (2, 12)
