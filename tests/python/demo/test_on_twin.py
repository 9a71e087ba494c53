"""The demonstration on the twin: what it shows, and that each of its checks can fail."""

import contextlib
import dataclasses
import json
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402

from pygraph.decide import culprits  # noqa: E402
from pygraph.demo import on_twin, small_models, without_gpu  # noqa: E402
from pygraph.demo.models import WORKLOADS, Unavailable  # noqa: E402


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
        proven=True,
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
    monkeypatch.setattr(culprits, "MOST_COMPILATIONS", 0)
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
