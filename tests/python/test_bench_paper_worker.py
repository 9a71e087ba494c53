"""A job of the paper's benchmark that another one starts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from paper_nets import CPU, NET

from pygraph.bench.device import Device
from pygraph.bench.paper.turns import Turn
from pygraph.bench.paper.worker import Given, cold, compile_elsewhere
from pygraph.bench.paper.workloads.catalogue import WORKLOADS


def test_a_mode_is_compiled_in_another_process(tmp_path: Path) -> None:
    turn = Turn(tmp_path, "MBERT")
    given = Given(WORKLOADS["MBERT"], "all", Device("cpu"), True, 1.0, 1, turn, {})
    whole = compile_elsewhere(given, "default")
    wrong = compile_elsewhere(given, "no such mode")
    seconds = whole()
    assert seconds is not None and 0.0 < seconds < 500.0
    assert wrong() is None


def test_compiling_without_caches_has_the_settings_of_the_workload() -> None:
    from torch._inductor import config

    seen: list[bool] = []

    def asking(model: Any, x: Any) -> Any:
        seen.append(config.comprehensive_padding)
        return (model(x),)

    before = config.comprehensive_padding
    workload = dataclasses.replace(NET, call=asking, inductor={"comprehensive_padding": not before})
    assert cold(Given(workload, "default", CPU, False, 1.0, 1, None, {})) > 0.0
    assert seen and set(seen) == {not before} and config.comprehensive_padding == before
