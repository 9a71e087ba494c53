"""The demonstration without a GPU: a model on the twin, plans, stand-ins, and the exit code. With
one: what is shown first, and in which order the rest is kept."""

import contextlib
import dataclasses
import io
import json
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from benchmarks.__main__ import app  # noqa: E402
from benchmarks.first_light import demo  # noqa: E402
from benchmarks.first_light.record import Record  # noqa: E402
from benchmarks.harness.environment import command_line, environment  # noqa: E402
from pygraph.demo import on_twin, small_models, without_gpu  # noqa: E402
from pygraph.demo.models import MEASURED, WORKLOADS, Unavailable  # noqa: E402


class Tiny(torch.nn.Module):
    """Two tied weights, a buffer that is used, and one that counts."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.second = torch.nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.norm = torch.nn.BatchNorm1d(6)

    def forward(self, x):
        return self.second(self.norm(self.first(x)).relu())


@pytest.fixture
def tiny(monkeypatch):
    """A small model of the name "tiny"."""
    monkeypatch.setitem(small_models._MODELS, "tiny", (Tiny, lambda: torch.randn(3, 6)))
    return "tiny"


@pytest.fixture
def twin(monkeypatch):
    """What the engine's own demonstration returns."""
    result = types.SimpleNamespace(
        nodes=3,
        relocations=11,
        arena_bytes=5,
        lower_bound_bytes=4,
        proof="passed",
        moved_equal=True,
    )
    monkeypatch.setattr(without_gpu, "demonstrate", lambda: result)
    return result


def show(tmp_path: Path, model: str, *names: str) -> tuple[int, str, dict]:
    console = Console(width=160, record=True, file=open(tmp_path / "out", "w"))  # noqa: SIM115
    code = without_gpu.show_without_gpu(
        [WORKLOADS[name] for name in names], tmp_path, console, model
    )
    return code, console.export_text(), json.loads((tmp_path / "plan.json").read_text())


def checks(shown: on_twin.Shown) -> dict[str, bool]:
    return {check.name: check.passed for check in shown.checks}


ALL = ("proof", "inputs moved", "weights moved", "outputs kept", "fault planted")


def test_a_model_on_the_twin_then_plans_then_what_is_next(tmp_path, tiny):
    code, text, data = show(tmp_path, tiny, "mlp-1")
    assert code == 0
    order = (
        "tiny (0.0 million parameters)",
        "The engine alone",
        "1 graph, runs as CUDA graphs: wholly",
        "What next",
        'torch.compile(model, backend="pygraph")',
    )
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert [each["name"] for each in data["plans"]] == ["mlp-1"]
    assert data["engine"]["passed"] and data["engine"]["relocations"] > data["engine"]["nodes"]
    twin = data["twin"]
    assert twin["passed"] and {check["name"] for check in twin["checks"]} == set(ALL)
    graph = twin["graph"]
    assert graph["nodes"] == graph["kernels"] + graph["copy_nodes"] + graph["fill_nodes"]
    assert 0 < graph["arena_lower_bound"] <= graph["arena_bytes"]
    assert graph["scratch_bytes"] > graph["arena_lower_bound"]
    assert (graph["calls"], graph["replays"], graph["bytes_copied"]) == (10, 8, 0)
    for part in (f"{graph['relocations']}", "8 of 10 replayed", "1 direct, 0 copied"):
        assert part in text


def test_a_recurrent_model_moves_in_place(monkeypatch):
    small = (lambda: small_models.LSTMClassifier(9, 4, 2), lambda: torch.randint(0, 9, (2, 3)))
    monkeypatch.setitem(small_models._MODELS, "tiny", small)
    shown = on_twin.run("tiny")
    assert shown.passed, shown.checks


def test_weights_move_and_tied_ones_stay_tied():
    torch.manual_seed(0)
    model = Tiny()
    before = dict(model.state_dict(keep_vars=True))
    moved, _ = on_twin.move_weights(model)
    after = dict(model.state_dict(keep_vars=True))
    assert moved == len({id(tensor) for tensor in before.values()}) == len(before) - 1
    assert model.second.weight is model.first.weight
    assert not {t.data_ptr() for t in before.values()} & {t.data_ptr() for t in after.values()}
    assert before["first.bias"].isnan().all() and not after["first.bias"].isnan().any()
    assert isinstance(model.first.weight, torch.nn.Parameter)


def test_a_replay_that_reads_old_weights_is_seen(tiny, monkeypatch):
    class Stale(Tiny):
        def forward(self, x):
            return super().forward(x) * (1 if torch.compiler.is_compiling() else self.scale())

        def scale(self):
            return 1 if self.first.bias is self.original[0] else 2

    def build():
        model = Stale()
        model.original = (model.first.bias,)
        return model

    monkeypatch.setitem(small_models._MODELS, tiny, (build, lambda: torch.randn(3, 6)))
    passed = checks(on_twin.run(tiny))
    assert passed["inputs moved"] and not passed["weights moved"]


def test_outputs_that_change_later_are_seen(tiny, monkeypatch):
    shared = torch.zeros(3, 6)
    original = on_twin._compiled

    def compiled(model):
        graph = original(model)
        return lambda x: shared.copy_(graph(x))

    monkeypatch.setattr(on_twin, "_compiled", compiled)
    passed = checks(on_twin.run(tiny))
    assert passed["inputs moved"] and not passed["outputs kept"]


def test_a_graph_that_serves_nothing_is_seen(tiny, monkeypatch):
    original = on_twin._compiled

    def unsafe(model):
        return original(lambda x: model(x) + 0 * torch.linalg.eigh(torch.eye(2))[0][0])

    monkeypatch.setattr(on_twin, "_compiled", unsafe)
    shown = on_twin.run(tiny)
    assert not any(checks(shown)[name] for name in ("proof", "inputs moved", "weights moved"))


def test_a_fault_that_passes_is_seen(tiny, monkeypatch):
    monkeypatch.setattr(on_twin.faults, "hidden_pointers", lambda *_: contextlib.nullcontext())
    assert not checks(on_twin.run(tiny))["fault planted"]


def test_an_engine_that_computes_something_else_fails(tmp_path, tiny, twin):
    twin.moved_equal = False
    code, text, data = show(tmp_path, tiny, "mlp-1")
    assert code == 1 and "other bits" in text and not data["engine"]["passed"]


def test_an_engine_that_raises_fails_and_says_so(tmp_path, tiny, monkeypatch):
    def demonstrate():
        raise RuntimeError("no [twin]")

    monkeypatch.setattr(without_gpu, "demonstrate", demonstrate)
    code, text, _ = show(tmp_path, tiny, "mlp-1")
    assert code == 1 and "RuntimeError: no [twin]" in text


def test_a_model_that_fails_a_check_fails_the_demonstration(tmp_path, twin, monkeypatch):
    bad = on_twin.Shown(
        "bad",
        1,
        on_twin.GraphReport("bad", "fallback"),
        [on_twin.Check("proof", False, "[x]")],
        0.1,
    )
    monkeypatch.setattr(on_twin, "run", lambda name: bad)
    code, text, data = show(tmp_path, "bad", "mlp-1")
    assert code == 1 and "FAILED" in text and not data["twin"]["passed"]
    good = dataclasses.replace(bad, checks=[on_twin.Check("proof", True, "[x]")])
    monkeypatch.setattr(on_twin, "run", lambda name: good)
    assert show(tmp_path, "bad", "mlp-1")[0] == 0


def test_a_model_that_cannot_run_fails_and_says_so(tmp_path, twin, monkeypatch):
    def run(name):
        raise ModuleNotFoundError("No module named 'transformers'")

    monkeypatch.setattr(on_twin, "run", run)
    code, text, data = show(tmp_path, "gpt2", "mlp-1")
    assert code == 1 and "No module named 'transformers'" in text
    assert data["twin"]["checks"][0]["name"] == "run"


def test_a_missing_library_is_told_and_stood_in_for(tmp_path, tiny, twin, monkeypatch):
    def plan_workload(workload):
        if workload.name == "alexnet":
            raise Unavailable("torchvision: not here")
        return without_gpu.Plan(workload.name, device="meta")

    monkeypatch.setattr(without_gpu, "plan_workload", plan_workload)
    code, text, data = show(tmp_path, tiny, "alexnet", "densenet121")
    assert code == 0
    assert "torchvision: not here" in text and "resnet50 stands in" in text
    assert data["missing"] == {"alexnet": "torchvision: not here"}
    assert [each["name"] for each in data["plans"]] == ["densenet121", "resnet50"]


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
