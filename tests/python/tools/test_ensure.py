"""tools/ensure.py: which build of torch is installed, and what is said before. pip is replaced by a
list of what it would be asked for."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "ensure.py"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="no checkout")


@pytest.fixture
def ensure(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, on a machine where no package is installed."""
    spec = importlib.util.spec_from_file_location("ensure", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "found_version", lambda name: None)
    return module


class Pip:
    """Keeps what it is asked to install; refuses what does not fit `offered`."""

    def __init__(self, *refused: str) -> None:
        self.asked: list[list[str]] = []
        self.refused = refused

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-m", "pip", "install"]
        wanted = [word for word in command[4:] if "==" in word]
        self.asked.append(wanted)
        failed = any(word.endswith(ending) for word in wanted for ending in self.refused)
        return subprocess.CompletedProcess(command, int(failed))


def run(
    ensure: Any, monkeypatch: pytest.MonkeyPatch, pip: Pip, *groups: str, driver: bool = False
) -> int:
    monkeypatch.setattr(ensure.subprocess, "run", pip)
    monkeypatch.setattr(ensure, "has_driver", lambda: driver)
    code: int = ensure.main(list(groups))
    return code


def test_without_a_driver_the_cpu_build_is_taken(ensure, monkeypatch, capsys):
    pip = Pip()
    assert run(ensure, monkeypatch, pip, "torch", "runtime") == 0
    pin = ensure.pins()["torch"]
    assert pip.asked[0] == [f"{pin}+cpu"] and pin not in pip.asked[1]
    said = capsys.readouterr().err
    assert "no NVIDIA driver" in said and ensure.CPU_COST in said and "CUDA" not in said


def test_where_there_is_no_cpu_build_the_default_is_taken_and_said(ensure, monkeypatch, capsys):
    pip = Pip("+cpu")
    assert run(ensure, monkeypatch, pip, "torch") == 0
    pin = ensure.pins()["torch"]
    assert pip.asked == [[f"{pin}+cpu"], [pin]]
    said = capsys.readouterr().err
    assert ensure.CUDA_COST in said and "pytorch.org/get-started" in said


def test_with_a_driver_the_default_is_taken_at_once(ensure, monkeypatch, capsys):
    pip = Pip()
    assert run(ensure, monkeypatch, pip, "torch", driver=True) == 0
    assert pip.asked == [[ensure.pins()["torch"]]]
    assert ensure.CUDA_COST in capsys.readouterr().err


def test_what_pip_cannot_install_is_named(ensure, monkeypatch, capsys):
    pip = Pip("+cpu", ensure.pins()["torch"])
    assert run(ensure, monkeypatch, pip, "torch", "runtime") == 1
    assert "could not install torch" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["2.12.1+cu130", "1.0", "99.0"])
def test_an_installed_torch_is_left_alone(ensure, monkeypatch, capsys, version):
    pip = Pip()
    monkeypatch.setattr(ensure, "found_version", lambda name: version if name == "torch" else None)
    assert run(ensure, monkeypatch, pip, "torch") == 0
    assert pip.asked == []
    assert "disk" not in capsys.readouterr().err
