"""A job of the paper's benchmark that another one starts."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from pygraph.bench.device import Device
from pygraph.bench.paper.turns import Turn
from pygraph.bench.paper.worker import Given, compile_elsewhere
from pygraph.bench.paper.workloads.catalogue import WORKLOADS


def test_a_mode_is_compiled_in_another_process(tmp_path: Path) -> None:
    turn = Turn(tmp_path, "MBERT")
    given = Given(WORKLOADS["MBERT"], "all", Device("cpu"), True, 1.0, 1, turn, {})
    whole = compile_elsewhere(given, "default")
    wrong = compile_elsewhere(given, "no such mode")
    seconds = whole()
    assert seconds is not None and 0.0 < seconds < 500.0
    assert wrong() is None
