"""Records compared by ratios within a run: what counts as slower, and what as lost."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import typer
from click.testing import Result
from typer.testing import CliRunner

from benchmarks.first_light import regress
from benchmarks.harness.regress import Compared, Rule

TIMES = {
    "eager": 300.0,
    "default": 200.0,
    "reduce-overhead": 150.0,
    "pygraph": 100.0,
    "floor": 80.0,
}


def records(model: str = "alexnet", host: float = 1.0, **changed: float | None) -> list[dict]:
    """One model in all modes on a machine that is `host` times as slow; `changed` are factors, or
    None for a mode that failed."""
    made = []
    for mode, us in TIMES.items():
        factor = changed.get(mode.replace("-", "_"), 1.0)
        made.append(
            {
                "workload": model,
                "mode": mode,
                "correct": factor is not None,
                "latency_us": None if factor is None else us * host * factor,
                "host_us": us * host,
                "bit_equal_to_default": True if mode == "pygraph" else None,
            }
        )
    return made


def only(old: list[dict], new: list[dict], limit: float = regress.LIMIT) -> Compared:
    rows = regress.compare(old, new, Rule(limit=limit))
    assert len(rows) == 1
    return rows[0]


def test_a_slower_machine_is_no_regression():
    row = only(records(), records(host=1.4))
    assert row.slower == [] and row.lost == ()
    old, new = (
        {name: getattr(change, which) for name, change in row.changes.items()}
        for which in ("old", "new")
    )
    assert old == new == pytest.approx({"default": 0.5, "reduce-overhead": 2 / 3, "floor": 1.25})


def test_slower_against_both_incumbents():
    row = only(records(), records(host=0.7, pygraph=1.06))
    assert row.slower == ["default", "reduce-overhead"]
    assert row.changes["default"].growth == pytest.approx(0.06)
    assert only(records(), records(pygraph=1.04)).slower == []
    assert only(records(), records(host=0.7, pygraph=1.06), limit=0.10).slower == []


def test_the_floor_does_not_count_and_faster_is_fine():
    assert only(records(), records(floor=0.5)).slower == []
    assert only(records(), records(pygraph=0.5)).slower == []
    assert only(records(), records(reduce_overhead=0.9)).slower == ["reduce-overhead"]


def test_lost_models():
    assert regress.compare(records(), [])[0].lost == ("not in the new record",)
    lost = only(records(), records(pygraph=None)).lost[0]
    assert "no ratio to default, reduce-overhead, floor" in lost
    assert "no ratio to floor" in only(records(), records(floor=None)).lost[0]
    other = records()
    next(each for each in other if each["mode"] == "pygraph")["bit_equal_to_default"] = False
    assert "bit-equal" in only(records(), other).lost[0]
    assert only(other, records()).lost == ()


def test_a_new_model_and_one_that_never_ran_are_no_regressions():
    rows = regress.compare(records(), records() + records("densenet121"))
    assert [row.name for row in rows] == ["alexnet", "densenet121"]
    assert not any(row.lost or row.slower for row in rows)
    assert only(records(pygraph=None), records(pygraph=None)).lost == ()


def compared(*arguments: Path | str) -> Result:
    app = typer.Typer()
    app.command()(regress.main)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.2, 1), (None, 1)])
def test_exit_status(tmp_path: Path, factor: float | None, code: int):
    paths = [tmp_path / "old.json", tmp_path / "new.json"]
    for path, content in zip(paths, (records(), records(pygraph=factor)), strict=True):
        path.write_text(json.dumps({"records": content}))
    result = compared(*paths)
    assert result.exit_code == code, result.output
    assert ("slower or lost: alexnet" in result.output) == bool(code)
    # By another clock nothing changed but the failure.
    result = compared(*paths, "--metric", "host_us")
    assert result.exit_code == (1 if factor is None else 0)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "No such file or directory"),
        ("{", "found no JSON"),
        ("[1]", 'found no list "records"'),
        ('{"plans": []}', 'found no list "records"'),
        ('{"records": {}}', 'found no list "records"'),
        ('{"records": [{"mode": "pygraph"}]}', 'without "workload"'),
    ],
)
def test_a_file_that_is_no_record_is_named(tmp_path: Path, content: str | None, found: str):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps({"records": records()}))
    if content is not None:
        bad.write_text(content)
    for paths in ((good, bad), (bad, good)):
        result = compared(*paths)
        assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
        assert f"{bad}: " in result.output and found in result.output
        assert "`./run demo`" in result.output
