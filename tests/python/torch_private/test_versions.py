"""The versions of torch and Python that are supported."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from pygraph.torch_private import versions

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    ("version", "fits"),
    [("2.10.1", False), ("2.11.0+cu130", True), ("2.15.0", True), ("2.16.0a0", False)],
)
def test_torch_out_of_range_is_named(version: str, fits: bool) -> None:
    problem = versions.torch_problem(version)
    assert (problem is None) == fits
    if not fits:
        assert problem is not None and version in problem and "2.11 to 2.15" in problem


def test_pip_is_told_the_same_range_of_torch() -> None:
    (low_major, low), (high_major, high) = versions.MINIMUM, versions.MAXIMUM
    wanted = f"torch>={low_major}.{low},<{high_major}.{high + 1}"
    assert wanted in PROJECT["dependencies"]


@pytest.mark.parametrize("name", ["torch", "torch-newest"])
def test_pinned_torches_are_in_the_range(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    (version,) = re.findall(r"(?m)^torch==(\S+)$", text)
    assert versions.torch_problem(version) is None
    if name == "torch-newest":
        assert versions.parse(version) == versions.MAXIMUM


def test_pip_is_told_the_same_range_of_python() -> None:
    run = (ROOT / "run").read_text()
    low, high = (
        int(re.findall(rf"(?m)^PYTHON_{which}=3\.(\d+)$", run)[0])
        for which in ("MINIMUM", "MAXIMUM")
    )
    assert PROJECT["requires-python"] == f">=3.{low},<3.{high + 1}"
    prefix = "Programming Language :: Python :: 3."
    found = [text for text in PROJECT["classifiers"] if text.startswith(prefix)]
    assert found == [f"{prefix}{minor}" for minor in range(low, high + 1)]
