"""`pygraph trace`: a file for Perfetto, the program's exit status, and what is said where there is
no call to trace. On the twin."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pygraph.cli import app

PROGRAM = """
import sys
import torch
import pygraph

fast = torch.compile(torch.sin, backend="pygraph", options={"device": "twin"})
for _ in range(int(sys.argv[1])):
    with torch.no_grad():
        fast(torch.randn(8))
print("done")
HOW
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trace(folder: Path, how: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM.replace("HOW", how))
    command = [sys.executable, "-m", "pygraph.cli", "trace", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_script_is_run_and_one_call_written(here: Path) -> None:
    done = trace(here, "sys.exit(3)", "program.py", "12")
    assert done.returncode == 3, done.stderr
    first, second, *_, last = done.stdout.splitlines()
    assert first == "done" and second.startswith("call 8 of sin: ")
    assert last == "written: trace.json; open it in https://ui.perfetto.dev"
    events = json.loads((here / "trace.json").read_text())["traceEvents"]
    names = [event["name"] for event in events if event["ph"] == "X"]
    assert names[0] == "sin" and names[-1] == "aten.sin.default"
    assert {"guards", "entry", "bind", "allocation", "launch", "results"} <= set(names)


@pytest.mark.parametrize(
    ("how", "status", "arguments", "said"),
    [
        ("", 1, ["program.py", "2"], "there was none: sin: 0 of 2 calls were steady"),
        ("", 1, ["--call", "30", "program.py", "9"], "steady call 30 of a function is to be"),
        ("sys.exit(4)", 4, ["program.py", "0"], "sin: 0 of 0 calls were steady"),
        ("raise KeyError('lost')", 1, ["program.py", "0"], "KeyError: 'lost'"),
    ],
)
def test_a_program_without_such_a_call_is_told_what_was_found(
    here: Path, how: str, status: int, arguments: list[str], said: str
) -> None:
    done = trace(here, how, "--out", "out.json", *arguments)
    assert done.returncode == status and said in done.stderr
    assert not (here / "out.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "needed is a script"),
        (["nowhere.py"], "cannot be read"),
        (["--out", "trace.txt", "nowhere.py"], "needed is a name that ends in .json"),
        (["--call", "0", "nowhere.py"], "0 is not in the range"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    here: Path, arguments: list[str], said: str
) -> None:
    result = CliRunner().invoke(app, ["trace", *arguments])
    assert result.exit_code == 2 and said in " ".join(result.output.split()), result.output
