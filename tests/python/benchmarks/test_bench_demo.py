"""The demo of nine models: which are planned without a GPU; with one, what is shown first, and in
which order the rest is kept."""

import io
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from benchmarks.__main__ import app  # noqa: E402
from benchmarks.first_light import demo  # noqa: E402
from benchmarks.first_light.models import MEASURED  # noqa: E402
from benchmarks.first_light.record import Record  # noqa: E402
from benchmarks.harness.environment import command_line, environment  # noqa: E402
from pygraph.demo import without_gpu  # noqa: E402


def test_without_a_gpu_few_models_are_planned_unless_others_are_named(monkeypatch):
    planned: list[list[str]] = []

    def show(workloads, *_):
        planned.append([each.name for each in workloads])
        return 0

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(without_gpu, "show_without_gpu", show)
    demo.demo(demo.Request())
    demo.demo(demo.Request(models=("mlp-1", "XLNetLMHeadModel")))
    assert planned == [list(without_gpu.PLANNED), ["mlp-1", "XLNetLMHeadModel"]]


TIMES = {"eager": 30.0, "default": 20.0, "reduce-overhead": 15.0, "pygraph": 10.0, "floor": 9.0}


def measured(
    monkeypatch: pytest.MonkeyPatch, *names: str, breaks_at: str = ""
) -> tuple[list[str], list[str], str]:
    """The order in which models are measured, that in which they are kept, and what is shown."""
    reached: list[str] = []
    saved: list[list[Record]] = []

    def run_workload(workload, *_):
        reached.append(workload.name)
        return [
            Record(workload.name, workload.batch, mode, correct=True, latency_us=us)
            for mode, us in TIMES.items()
        ]

    monkeypatch.setattr(demo, "run_workload", run_workload)
    device = types.SimpleNamespace(broken=lambda: "lost" if reached[-1] == breaks_at else None)
    console = Console(width=160, record=True, file=io.StringIO())
    request = demo.Request(models=names or None, modes=tuple(TIMES))
    records = demo._run_all(request, device, console, saved.append, {})
    assert records == saved[-1] and len(saved) == len(reached)
    kept = list(dict.fromkeys(each.workload for each in records))
    return reached, kept, console.export_text()


def test_the_speed_up_is_shown_soon_and_the_order_of_the_record_stays(monkeypatch):
    reached, kept, text = measured(monkeypatch)
    assert reached[: len(demo.EARLY)] == list(demo.EARLY) and sorted(reached) == sorted(MEASURED)
    assert kept == list(MEASURED)
    line = "pygraph 10.0 us, 3.00x over eager, 2.00x over default, 1.50x over reduce-overhead"
    lines = [line for line in text.splitlines() if "us, " in line]
    assert lines[0].startswith(f"{demo.EARLY[0]}: {line}") and len(lines) == len(MEASURED)


def test_models_behind_a_gpu_that_broke_are_kept_as_failed(monkeypatch):
    reached, kept, text = measured(monkeypatch, "densenet121", "mlp-8", breaks_at="mlp-8")
    assert reached == ["mlp-8"] and kept == ["densenet121", "mlp-8"]
    assert "densenet121" not in text


def test_nothing_of_this_machine_is_written(monkeypatch):
    started = ["/somewhere/benchmarks/__main__.py", "training", "--out", "/tmp/secret/out"]
    monkeypatch.setattr(sys, "argv", started)
    assert command_line() == "./run bench-training --out out"
    monkeypatch.setattr(sys, "argv", ["/somewhere/pygraph", "demo", "--out", "/tmp/secret/out"])
    assert command_line() == "pygraph demo --out out"
    found = environment()
    assert {"torch", "cuda", "driver", "gpu", "cpu", "python", "date"} <= set(found)
    assert not any("/" in str(value) and Path(str(value)).exists() for value in found.values())


@pytest.mark.parametrize("option", ["--models", "--modes", "--twin-model"])
def test_an_unknown_name_lists_the_known_ones(option: str):
    result = CliRunner().invoke(app, ["demo", option, "nonsense"])
    assert result.exit_code == 2
    assert any(known in result.output for known in ("mlp-8", "reduce-overhead", "unet"))
