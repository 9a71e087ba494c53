"""The engine's microbenchmarks: targets stand next to the figures, and a miss is called one."""

from __future__ import annotations

from typing import Any

from benchmarks.engine.micro import records

REAL = "real driver, CUDA 13.0"
TWIN = "CPU twin"


def records_of(*benchmarks: tuple[str, float, str]) -> dict[str, dict[str, Any]]:
    raw = {
        "context": {"date": "2026-01-01"},
        "benchmarks": [
            {"run_name": name, "real_time": us, "time_unit": "us", "label": label}
            for name, us, label in benchmarks
        ],
    }
    return {record["workload"]: record for record in records(raw)}


def test_a_target_grows_with_the_argument() -> None:
    found = records_of(("bind_unchanged/8", 0.38, REAL), ("bind_unchanged/400", 4.31, REAL))
    assert (found["bind_unchanged/8"]["target_us"], found["bind_unchanged/8"]["met"]) == (
        0.38,
        True,
    )
    assert found["bind_unchanged/400"]["target_us"] == 4.3
    assert found["bind_unchanged/400"]["met"] is False


def test_the_difference_of_two_benchmarks_is_a_figure() -> None:
    found = records_of(
        ("call_with_moved_inputs/10", 20.5, REAL),
        ("call_with_unmoved_inputs/10", 2.5, REAL),
        ("call_with_moved_inputs/1", 3.0, REAL),
    )
    assert found["moved_minus_unmoved/10"]["host_us"] == 18
    assert found["moved_minus_unmoved/10"]["met"] is False
    assert "moved_minus_unmoved/1" not in found


def test_the_twin_is_held_against_the_engines_own_targets_only() -> None:
    found = records_of(
        ("bind_and_update/256", 1.0, TWIN),
        ("lay_out_arena/1000", 600.0, TWIN),
        ("launch/1", 1.0, REAL),
    )
    assert "met" not in found["bind_and_update/256"]
    assert found["lay_out_arena/1000"]["met"] is False
    assert "target_us" not in found["launch/1"]
