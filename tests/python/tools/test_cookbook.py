"""docs/cookbook.md: its programs run, and what it shows stands in them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import training_support

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = sorted((ROOT / "examples" / "cookbook").glob("*.py"))
PAGE = (ROOT / "docs" / "cookbook.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [block for its, block in found if its == language]


def recipe(program: Path) -> str:
    """The section that shows a program."""
    link = f"\n[{program.name}](../examples/cookbook/{program.name})"
    (found,) = [each for each in PAGE.split("\n## ")[1:] if link in each]
    return found


def masked(text: str) -> set[str]:
    """Lines without numbers, which differ from run to run."""
    return {re.sub(r"\d+", "#", line) for line in text.splitlines()}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_runs(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And checks its own results. Without a GPU the page shows what it prints."""
    on_gpu = torch.cuda.is_available()
    with training_support.fresh("cuda" if on_gpu else "twin"):
        runpy.run_path(str(program), run_name="__main__")
    printed = masked(capsys.readouterr().out)
    for shown in blocks(recipe(program), ""):
        assert on_gpu or masked(shown) <= printed, (shown, printed)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_the_page_shows_what_stands_in_a_program(program: Path) -> None:
    code = program.read_text()
    shown = blocks(recipe(program), "python")
    assert shown and [each for each in shown if each not in code] == []
    (beginning,) = blocks(PAGE.partition("\n## ")[0], "python")
    assert beginning in code


def test_every_recipe_has_a_program() -> None:
    assert len(PROGRAMS) == PAGE.count("\n## ") == 5
    assert len(PAGE.splitlines()) <= 350
