"""What driver calls cost this machine, and the file that keeps it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pygraph import _engine
from pygraph.capturing.twin import Twin
from pygraph.decide.cost_model import REFERENCE, Costs
from pygraph.runtime import machine, notes

MEASURED = Costs(launch=2.5, graph=3.5, patch=0.25, copy=1.5, bytes_per_us=2e6)


@pytest.fixture(autouse=True)
def anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine.torch.cuda, "get_device_name", lambda index: "a GPU")
    monkeypatch.setattr(notes, "events", [])
    machine.of_gpu.cache_clear()
    yield
    machine.of_gpu.cache_clear()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Costs]:
    """As often as it was."""
    times: list[Costs] = []

    def measure() -> dict[str, float]:
        times.append(MEASURED)
        return dataclasses.asdict(MEASURED)

    monkeypatch.setattr(_engine, "measure_machine", measure)
    return times


def ask() -> Costs:
    """As another process would."""
    machine.of_gpu.cache_clear()
    return machine.of_gpu(0)


def the_file(folder: Path) -> Path:
    (file,) = (folder / "pygraph").iterdir()
    return file


def test_the_twin_has_the_costs_of_the_reference(measured: list[Costs]) -> None:
    assert machine.costs(Twin()) == REFERENCE
    assert measured == []


def test_it_is_measured_once_and_kept(tmp_path: Path, measured: list[Costs]) -> None:
    assert ask() == MEASURED
    assert ask() == MEASURED
    assert len(measured) == 1
    assert json.loads(the_file(tmp_path).read_text())["machine"]["gpu"] == "a GPU"
    assert notes.events == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"machine": {}, "costs": {}}',
        "\x00\x01",
    ],
)
def test_a_corrupted_file_is_measured_anew_with_a_note(
    tmp_path: Path, measured: list[Costs], text: str
) -> None:
    ask()
    file = the_file(tmp_path)
    file.write_text(text)
    assert ask() == MEASURED
    assert len(measured) == 2
    assert any("is measured anew: it is not what was written" in each for each in notes.events)
    assert ask() == MEASURED
    assert len(measured) == 2  # the file is whole again


@pytest.mark.parametrize(
    ("name", "value"),
    [("patch", -1.0), ("patch", 0.0), ("launch", "3"), ("copy", float("nan")), ("graph", 1e12)],
)
def test_values_that_cannot_be_are_not_believed(
    tmp_path: Path, measured: list[Costs], name: str, value: object
) -> None:
    ask()
    file = the_file(tmp_path)
    document = json.loads(file.read_text())
    document["costs"][name] = value
    file.write_text(json.dumps(document))
    assert ask() == MEASURED
    assert len(measured) == 2


@pytest.mark.parametrize("what", ["gpu", "driver", "cpu", "torch", "pygraph"])
def test_another_machines_file_is_not_read(
    tmp_path: Path, measured: list[Costs], what: str
) -> None:
    ask()
    file = the_file(tmp_path)
    document = json.loads(file.read_text())
    document["machine"][what] = "another"
    file.write_text(json.dumps(document))
    ask()
    assert len(measured) == 2


def test_a_folder_that_cannot_be_written_is_noted(tmp_path: Path, measured: list[Costs]) -> None:
    (tmp_path / "pygraph").write_text("a file where the folder should be")
    assert ask() == MEASURED
    assert any("cannot be written" in each for each in notes.events)


def test_a_driver_that_refuses_leaves_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> dict[str, float]:
        raise _engine.DriverError("cuModuleLoadData: no such target")

    monkeypatch.setattr(_engine, "measure_machine", refuse)
    assert ask() == REFERENCE
    assert any("an H100's costs are assumed: cuModuleLoadData" in each for each in notes.events)


_WRITES = """
import sys
from pathlib import Path
from pygraph.decide.cost_model import Costs
from pygraph.runtime import machine
for n in range(50):
    machine._write(Path(sys.argv[1]), {"gpu": "g"}, Costs(1.0, 1.0, 1.0, 1.0, float(n + 1)))
"""


def test_processes_that_write_at_once_leave_a_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    writers = [subprocess.Popen([sys.executable, "-c", _WRITES, str(file)]) for _ in range(3)]
    while any(each.poll() is None for each in writers):
        if file.exists():
            assert machine._read(file, {"gpu": "g"}) is not None
    assert [each.returncode for each in writers] == [0, 0, 0]
    assert notes.events == []
    assert os.listdir(tmp_path) == ["costs.json"]
