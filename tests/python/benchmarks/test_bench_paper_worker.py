"""A job of the paper's benchmark that another one starts."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from paper_nets import CPU, with_other_padding
from torch._inductor import config

from benchmarks.harness.device import Device
from benchmarks.harness.worker import Given
from benchmarks.paper.worker import cold, compile_elsewhere
from benchmarks.paper.workloads.catalogue import WORKLOADS


def test_a_mode_is_compiled_in_another_process(tmp_path: Path) -> None:
    given = Given(WORKLOADS["MBERT"], "all", Device("cpu"), True, 1.0, turns=tmp_path)
    whole = compile_elsewhere(given, "default")
    wrong = compile_elsewhere(given, "no such mode")
    seconds = whole()
    assert seconds is not None and 0.0 < seconds < 500.0
    assert wrong() is None


def test_compiling_without_caches_has_the_settings_of_the_workload() -> None:
    seen: list[bool] = []
    workload, other = with_other_padding(seen)
    assert cold(Given(workload, "default", CPU, False, 1.0)) > 0.0
    assert seen and set(seen) == {other} and config.comprehensive_padding != other
