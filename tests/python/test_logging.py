"""PyGraph's loggers: one for each module, under one name, and no handler of its own."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pygraph

PACKAGE = Path(pygraph.__file__).parent


def named(code: str) -> list[str]:
    """What a module calls its loggers."""
    calls = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call))
    return [
        ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func) == "logging.getLogger"
    ]


def test_a_module_logs_under_its_own_name() -> None:
    assert named("log = logging.getLogger('pygraph')") == ["'pygraph'"]
    paths = [
        path for path in PACKAGE.rglob("*.py") if "log = logging.getLogger" in path.read_text()
    ]
    assert len(paths) > 5
    for path in paths:
        if "demo" not in path.parts:  # which quiets all of PyGraph
            assert "'pygraph'" not in named(path.read_text()), path


@pytest.mark.usefixtures("fresh_dynamo", "without_gradients", "one_thread")
def test_a_link_is_information_and_its_attempts_are_details(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pygraph.reset()
    fast = torch.compile(torch.sin, backend="pygraph", options={"device": "twin"})
    with caplog.at_level(logging.DEBUG, logger="pygraph"):
        for _ in range(3):
            fast(torch.randn(8))
    found = {(each.name, each.levelname) for each in caplog.records}
    assert ("pygraph.runtime.compiled_graph", "INFO") in found
    assert ("pygraph.capturing.pipeline", "DEBUG") in found
    assert {name.split(".")[0] for name, _ in found if name.startswith("pygraph")} == {"pygraph"}
    assert not any(level == "WARNING" for name, level in found if name.startswith("pygraph"))


def test_a_warning_is_seen_where_nobody_has_set_up_logging() -> None:
    code = (
        "import logging\n"
        "from pygraph.runtime.warn import no_graphs\n"
        "no_graphs('of this test')\n"
        "names = [each for each in logging.root.manager.loggerDict if each.startswith('pygraph')]\n"
        "assert names and not any(logging.getLogger(each).handlers for each in names), names\n"
        "assert not logging.root.handlers\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "runs without CUDA graphs: of this test" in done.stderr
