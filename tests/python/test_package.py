"""What a user sees of the package: its names, and their types."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pygraph

USE = """
import pygraph
reveal_type(pygraph.report())
reveal_type(pygraph.__version__)
reveal_type(pygraph.plan(print).graphs)
pygraph.backends
"""


def test_the_names_are_those_of_the_api() -> None:
    assert dir(pygraph) == sorted(pygraph.__all__)
    for name in pygraph.__all__:
        assert getattr(pygraph, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'backends'"):
        pygraph.backends  # type: ignore[attr-defined]  # noqa: B018


def test_a_type_checker_knows_them(tmp_path: Path) -> None:
    """As those of an installed package: without py.typed each would be Any."""
    pytest.importorskip("mypy")
    (tmp_path / "use.py").write_text(USE)
    # Reading torch takes minutes.
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", "--cache-dir", os.devnull, "use.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    found = [line.partition(" ")[2] for line in done.stdout.splitlines()]
    assert found[:4] == [
        'note: Revealed type is "pygraph.reporting.model.Report"',
        'note: Revealed type is "str"',
        'note: Revealed type is "list[pygraph.planning.model.GraphPlan]"',
        'error: Module has no attribute "backends"; maybe "backend"?  [attr-defined]',
    ], done.stdout + done.stderr
