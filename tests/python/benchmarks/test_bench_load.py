"""Who kept the CPUs busy while something was timed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.harness import load

BUSY = "import time\nend = time.perf_counter() + 1.5\nwhile time.perf_counter() < end: pass"


def work(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_own_work_is_told_from_that_of_others() -> None:
    started = time.perf_counter()
    with load.watch() as mine:
        work(0.5)
    assert mine.own == pytest.approx(0.5 / (time.perf_counter() - started), rel=0.3)
    with load.watch() as idle:
        time.sleep(0.5)
    assert idle.own < 0.2
    with load.watch() as shared:
        subprocess.run([sys.executable, "-c", BUSY], check=True)
    assert shared.own < 0.2 and shared.others is not None and shared.others > 0.2


def stat(tmp_path: Path, line: str) -> Path:
    path = tmp_path / "stat"
    path.write_text(line + "\ncpu0 1 2 3\n")
    return path


def test_stolen_time_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "STAT", stat(tmp_path, "cpu  100 0 100 1000 0 0 0 0 0 0"))
    with load.watch() as seen:
        time.sleep(0.2)
        stat(tmp_path, "cpu  150 0 100 1000 0 0 0 4000 0 0")
    assert seen.stolen is not None and 20.0 < seen.stolen <= 200.0
    assert seen.others is not None and 0.0 < seen.others <= 2.5


@pytest.mark.parametrize("line", ["", "cpu 1 2 3", "cpu a b c d e f g h"])
def test_a_machine_that_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(load, "STAT", stat(tmp_path, line))
    with load.watch() as seen:
        pass
    assert seen.to_dict()["others"] is None and seen.to_dict()["stolen"] is None
    monkeypatch.setattr(load, "STAT", tmp_path / "none")
    with load.watch() as seen:
        pass
    assert seen.others is None
