"""`pygraph explain`: the program's arguments and exit status are its own, and the page is printed
whatever comes of it. On the twin."""

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
import helper_of_this_script

def main():
    fast = torch.compile(torch.sin, backend="pygraph", options={"device": "twin"})
    with torch.no_grad():
        for _ in range(int(sys.argv[2])):
            fast(torch.randn(8))

if __name__ == "__main__":
    assert sys.modules["__main__"].main is main
    main()
    print("arguments", sys.argv[1:])
    HOW
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper_of_this_script.py").write_text("")
    return tmp_path


def written(folder: Path, how: str) -> Path:
    path = folder / "program.py"
    path.write_text(PROGRAM.replace("HOW", how))
    return path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pygraph.cli", "explain", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_script_is_run_with_its_arguments_and_explained(here: Path) -> None:
    path = written(here, "pass")
    done = run(
        "--html", "page.html", "--out", "out.json", str(path), "--json", "5", "-m", "--", "x"
    )
    assert done.returncode == 0, done.stderr
    printed, _, page = done.stdout.partition("\n")
    assert printed == "arguments ['--json', '5', '-m', '--', 'x']"
    assert page.startswith("program.py: 3 of 5 calls of graphs inside of graphs (60.0%)")
    assert "graph 0 (inference): graphed; 3 of 5 calls replayed" in page  # it is gone by now
    found = json.loads((here / "out.json").read_text())
    assert found["coverage"] == 0.6 and found["error"] is None
    assert "program.py" in (here / "page.html").read_text()


@pytest.mark.parametrize(
    ("how", "status", "error"),
    [
        ("sys.exit(3)", 3, "SystemExit: 3"),
        ("sys.exit(0)", 0, None),
        ("sys.exit('no more')", 1, "SystemExit: no more"),
        ("raise KeyError('lost')", 1, "KeyError: 'lost'"),
    ],
)
def test_the_page_is_printed_however_it_ends(
    here: Path, how: str, status: int, error: str | None
) -> None:
    done = run("--json", str(written(here, how)), "--", "4")
    assert done.returncode == status
    _, _, page = done.stdout.partition("\n")
    found = json.loads(page)
    assert found["error"] == error and found["report"]["graphs"][0]["replays"] == 2
    assert ("no more" in done.stderr) is ("no more" in how)
    if "lost" in how:
        (shown,) = [line for line in done.stderr.splitlines() if line.startswith("  File")]
        assert "program.py" in shown


def test_a_module_takes_what_follows_it(here: Path) -> None:
    (here / "packed").mkdir()
    (here / "packed" / "__init__.py").write_text("")
    written(here, "pass").rename(here / "packed" / "__main__.py")
    done = run("--json", "-m", "packed", "--html", "3")
    assert done.returncode == 0, done.stderr
    printed, _, page = done.stdout.partition("\n")
    assert printed == "arguments ['--html', '3']"
    assert json.loads(page)["name"] == "packed"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "needed is a script"),
        (["nowhere.py"], "cannot be read"),
        (["-m", "no_such_module_here"], "no module"),
        (["--out", "page.pdf", "nowhere.py"], "needed is a name"),
        (["--html", "page.txt", "nowhere.py"], "needed is a name"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    here: Path, arguments: list[str], said: str
) -> None:
    result = CliRunner().invoke(app, ["explain", *arguments])
    assert result.exit_code == 2 and said in " ".join(result.output.split()), result.output
