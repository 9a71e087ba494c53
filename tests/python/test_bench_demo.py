"""The demonstration without a GPU: plans, stand-ins, the twin's story, and the exit code."""

import json
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402

from pygraph.bench import without_gpu  # noqa: E402
from pygraph.bench.environment import command_line, environment  # noqa: E402
from pygraph.bench.models import WORKLOADS, Unavailable  # noqa: E402


@pytest.fixture
def twin(monkeypatch):
    module = types.ModuleType("pygraph.twin")
    result = types.SimpleNamespace(
        lines=["captured [3] nodes"], nodes=3, relocations=11, moved_equal=True
    )
    module.demonstrate = lambda: result
    monkeypatch.setitem(sys.modules, "pygraph.twin", module)
    return result


def show(tmp_path: Path, *names: str) -> tuple[int, str, dict]:
    console = Console(width=160, record=True, file=open(tmp_path / "out", "w"))  # noqa: SIM115
    code = without_gpu.show_without_gpu([WORKLOADS[name] for name in names], tmp_path, console)
    return code, console.export_text(), json.loads((tmp_path / "plan.json").read_text())


def test_plans_then_twin(tmp_path, twin):
    code, text, data = show(tmp_path, "mlp-1")
    assert code == 0
    assert text.index("one graph, nothing in its way") < text.index("captured [3] nodes")
    assert data["twin"]["relocations"] == 11
    assert [each["name"] for each in data["plans"]] == ["mlp-1"]


def test_a_twin_that_computes_something_else_fails(tmp_path, twin):
    twin.moved_equal = False
    assert show(tmp_path, "mlp-1")[0] == 1


def test_a_twin_that_raises_fails_and_says_so(tmp_path, monkeypatch):
    module = types.ModuleType("pygraph.twin")
    monkeypatch.setitem(sys.modules, "pygraph.twin", module)
    code, text, _ = show(tmp_path, "mlp-1")
    assert code == 1 and "demonstrate" in text


def test_a_missing_library_is_told_and_stood_in_for(tmp_path, twin, monkeypatch):
    def plan_workload(workload):
        if workload.name == "alexnet":
            raise Unavailable("torchvision: not here")
        return without_gpu.Plan(workload.name, device="meta")

    monkeypatch.setattr(without_gpu, "plan_workload", plan_workload)
    code, text, data = show(tmp_path, "alexnet", "densenet121")
    assert code == 0
    assert "torchvision: not here" in text and "resnet50 stands in" in text
    assert data["missing"] == {"alexnet": "torchvision: not here"}
    assert [each["name"] for each in data["plans"]] == ["densenet121", "resnet50"]


def test_nothing_of_this_machine_is_written(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/pygraph", "demo", "--out", "/tmp/secret/out"])
    assert command_line() == "pygraph demo --out out"
    found = environment()
    assert {"torch", "cuda", "driver", "gpu", "cpu", "python", "date"} <= set(found)
    assert not any("/" in str(value) and Path(str(value)).exists() for value in found.values())
