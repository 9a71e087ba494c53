"""record.py: what it writes, and that nothing that goes wrong in one workload hides the others."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from training import harness, record
from training.models import WORKLOADS
from training.workload import Setup, Training


def _broken(setup: Setup) -> Training:
    raise RuntimeError("planted\nin two lines")


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    broken = dataclasses.replace(WORKLOADS["mlp"], name="broken", build=_broken)
    monkeypatch.setitem(WORKLOADS, "broken", broken)
    return tmp_path / "record.json"


def _record(monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> tuple[int, Any]:
    given = ["record.py", "--device", "twin", "--steps", "2", "--out", str(out), *words]
    monkeypatch.setattr(sys, "argv", given)
    status = record.main()
    return status, json.loads(out.read_text()) if out.exists() else None


def test_a_workload_that_raises_is_recorded_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, out: Path
) -> None:
    status, found = _record(monkeypatch, out, "--workloads", "broken,rl")
    assert status == 1
    assert found["summary"]["wrong"] == ["broken"]
    broken, rl = found["workloads"]
    assert broken["verdict"] == record.ERROR
    assert broken["error"] == "RuntimeError: planted"
    assert rl["verdict"] == harness.BIT_EQUAL
    assert rl["reference_runs"] == 2 and rl["reference_deterministic"]
    assert str(out.parent) not in found["command"]
    assert {"torch", "gpu", "driver"} <= found["env"].keys()


def test_no_workload_is_started_when_the_budget_is_spent(
    monkeypatch: pytest.MonkeyPatch, out: Path
) -> None:
    status, found = _record(monkeypatch, out, "--workloads", "rl,mlp", "--budget", "0.001")
    assert status == 0
    assert [done["workload"] for done in found["workloads"]] == ["rl"]
    assert found["summary"]["not_run"] == ["mlp"]


def test_after_the_device_broke_another_process_goes_on(
    monkeypatch: pytest.MonkeyPatch, out: Path
) -> None:
    class Replaced(Exception):
        pass

    def replace(program: str, words: list[str]) -> None:
        assert words[-1] == "--resume"
        raise Replaced

    with monkeypatch.context() as patched, pytest.raises(Replaced):
        patched.setattr(record, "_device_is_broken", lambda device: True)
        patched.setattr("os.execv", replace)
        _record(patched, out, "--workloads", "broken,rl")
    status, found = _record(monkeypatch, out, "--workloads", "broken,rl", "--resume")
    assert status == 1
    assert [done["workload"] for done in found["workloads"]] == ["broken", "rl"]
    with pytest.raises(SystemExit, match="of another run: seed"):
        _record(monkeypatch, out, "--resume", "--seed", "1")
