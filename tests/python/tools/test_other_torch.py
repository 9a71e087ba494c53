"""tools/other_torch.py: tests with another torch."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


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
