"""The versions of torch and Python that are supported, and tests with another torch."""

from __future__ import annotations

import importlib
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

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


# --------------------------------------------------------------------- another torch (tools)


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("other_torch")


def test_two_torches_are_pinned(tool: Any) -> None:
    assert tool.pins()["torch"] in (ROOT / "requirements" / "torch.txt").read_text()
    assert tool.pins(newest_torch=True) == {"torch": f"torch=={tool.release('newest')}"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("2.10.0", r"torch 2\.10\.0: needed torch.*>=2\.11"),
        ("2.15", "'2.15' is no release of torch; name one like"),
        ("nightly", "'nightly' is no release of torch; name one like"),
    ],
)
def test_a_torch_that_is_of_no_use_is_named(tool: Any, name: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        tool.release(name)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'", 75),
        ("ERROR: No matching distribution found for torch==2.15.9 (from versions: 2.15.0)", 1),
    ],
)
def test_without_an_index_it_is_told_apart(
    tool: Any, monkeypatch: pytest.MonkeyPatch, said: str, status: int
) -> None:
    failed = subprocess.CompletedProcess([], 1, stderr=said)
    monkeypatch.setattr(tool.subprocess, "run", lambda *_, **__: failed)
    assert tool.pip(Path("nowhere"), ["torch==2.15.9"]) == status
    assert status in (1, tool.UNREACHABLE)
    assert f"NO_INDEX={tool.UNREACHABLE} " in (ROOT / "run").read_text()
