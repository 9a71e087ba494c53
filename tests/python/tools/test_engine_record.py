"""tools/engine_record.py: targets stand next to the figures, and a miss is called one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

TOOL = Path(__file__).parents[3] / "tools" / "engine_record.py"
REAL = "real driver, CUDA 13.0"
TWIN = "CPU twin"


def records_of(tmp_path: Path, *benchmarks: tuple[str, float, str]) -> dict[str, dict[str, Any]]:
    raw = {
        "context": {"date": "2026-01-01"},
        "benchmarks": [
            {"run_name": name, "real_time": us, "time_unit": "us", "label": label}
            for name, us, label in benchmarks
        ],
    }
    (tmp_path / "raw.json").write_text(json.dumps(raw))
    command = [sys.executable, str(TOOL), str(tmp_path / "raw.json"), str(tmp_path / "out.json")]
    subprocess.run(command, check=True, capture_output=True)
    document = json.loads((tmp_path / "out.json").read_text())
    return {record["workload"]: record for record in document["records"]}


def test_a_target_grows_with_the_argument(tmp_path: Path) -> None:
    found = records_of(
        tmp_path, ("bind_unchanged/8", 0.38, REAL), ("bind_unchanged/400", 4.31, REAL)
    )
    assert (found["bind_unchanged/8"]["target_us"], found["bind_unchanged/8"]["met"]) == (
        0.38,
        True,
    )
    assert found["bind_unchanged/400"]["target_us"] == 4.3
    assert found["bind_unchanged/400"]["met"] is False


def test_the_difference_of_two_benchmarks_is_a_figure(tmp_path: Path) -> None:
    found = records_of(
        tmp_path,
        ("call_with_moved_inputs/10", 20.5, REAL),
        ("call_with_unmoved_inputs/10", 2.5, REAL),
        ("call_with_moved_inputs/1", 3.0, REAL),
    )
    assert found["moved_minus_unmoved/10"]["host_us"] == 18
    assert found["moved_minus_unmoved/10"]["met"] is False
    assert "moved_minus_unmoved/1" not in found


def test_the_twin_is_held_against_the_engines_own_targets_only(tmp_path: Path) -> None:
    found = records_of(
        tmp_path,
        ("bind_and_update/256", 1.0, TWIN),
        ("lay_out_arena/1000", 600.0, TWIN),
        ("launch/1", 1.0, REAL),
    )
    assert "met" not in found["bind_and_update/256"]
    assert found["lay_out_arena/1000"]["met"] is False
    assert "target_us" not in found["launch/1"]
