"""The training benchmark on the CPU: tiny programs through all of it, crashes and missing floors
are recorded, and a file is gone on with."""

import importlib
import io
import json
import math
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402

from benchmarks.harness import floor  # noqa: E402
from benchmarks.harness.device import Device, Memory  # noqa: E402
from benchmarks.harness.jobs import Job  # noqa: E402
from benchmarks.harness.measure import Effort  # noqa: E402
from benchmarks.harness.modes import WARM_UP_CALLS, Bench  # noqa: E402
from benchmarks.harness.profile import Launched  # noqa: E402
from benchmarks.training import command as script  # noqa: E402
from benchmarks.training import run  # noqa: E402
from benchmarks.training.compiling import untold_choices, untuned  # noqa: E402
from benchmarks.training.memory import note, weigh_training  # noqa: E402
from benchmarks.training.models import MODELS, TINY, find  # noqa: E402
from benchmarks.training.modes import MODES, Trainer, trained  # noqa: E402
from benchmarks.training.record import Document, Result, Weight  # noqa: E402
from benchmarks.training.run import run_training  # noqa: E402
from benchmarks.training.suite import PARTS, STEPS, Plan, Suite  # noqa: E402
from benchmarks.training.worker import Turns  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
CPU = Device("cpu")
QUICK = Effort(0.05, rounds=2, least=3, most=5)


pytestmark = pytest.mark.usefixtures("one_thread", "fresh_dynamo")


def by_mode(results: list[Result]) -> dict[str, Result]:
    return {each.mode: each for each in results}


def test_a_mode_that_raises_costs_only_itself(monkeypatch: pytest.MonkeyPatch):
    def broken(bench: Bench) -> Trainer:
        raise OSError(f"no {__file__}")

    monkeypatch.setitem(MODES, "default", broken)
    results, _ = run_training(TINY["ResNet-50"], CPU, QUICK, modes=["eager", "default"])
    found = by_mode(results)
    assert found["eager"].timed and not found["default"].timed
    assert found["default"].error == "OSError: no test_bench_training.py"


def test_without_a_graph_of_the_step_kernels_are_summed(monkeypatch: pytest.MonkeyPatch):
    def no_capture(*_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(floor, "capture", no_capture)
    monkeypatch.setattr(run, "profile", lambda step, inputs: Launched(12.5, 12.5, 1, 0, 0))
    results, _ = run_training(TINY["ResNet-50"], CPU, QUICK, modes=["eager", "default", "floor"])
    found = by_mode(results)["floor"]
    assert found.timed and found.is_bound and found.latency_us == 12.5 and not found.correct
    assert found.error == "RuntimeError: operation not permitted when stream is capturing"


def test_memory_is_of_the_steady_state():
    found = weigh_training(TINY["recommender"], "pygraph", CPU, shared=True)
    assert found.peak_mib == 0.0 and found.driver_mib is None and found.own_mib > 0
    found = Weight("m", "pygraph")
    note(found, Memory(in_use=50), Memory(1, 2, 30, 40, 170, 5, 4), False)
    assert (found.peak_mib, found.torch_reserved_mib, found.driver_mib) == (34, 40, 120)
    found = Weight("m", "reduce-overhead")
    note(found, Memory(), Memory(1, 2, 30, 40, 170, 5, 4), False)
    assert found.peak_mib == 30


def test_every_tiny_program_trains():
    pytest.importorskip("transformers")
    for training in TINY.values():
        program = training.make_program(CPU.torch)
        inputs = training.make_inputs(0, CPU.torch)
        again, other = (training.make_inputs(seed, CPU.torch) for seed in (0, 1))
        assert all(map(torch.equal, inputs, again)), training.name
        assert not all(map(torch.equal, inputs, other)), training.name
        assert program.training
        loss = program(*inputs)
        loss.backward()
        assert loss.shape == () and math.isfinite(float(loss.detach())), training.name
        assert all(each.grad is not None for each in trained(program))
        # What TINY says of random numbers decides how torch's own modes are judged.
        torch.manual_seed(1)
        first = program(*inputs)
        assert torch.equal(first, program(*inputs)) is not training.random, training.name


WORKER = """
import json, sys
out = sys.argv[sys.argv.index("--out") + 1]
assert sys.stdin.readline() == "go\\n"
kind, model, mode = sys.argv[1:4]
if model == "recommender" and {crash}:
    raise SystemExit("no luck at /some/where/else")
env = dict(gpu="G", torch="{torch}")
if kind == "environment":
    result = env
elif kind == "memory":
    result = dict(workload=model, mode=mode, peak_mib=1.0)
else:
    one = dict(workload=model, batch=1, mode="eager", correct=True, latency_us=1.0)
    result = dict(env=env, results=[one], about=dict(batch=1))
json.dump(dict(result=result), open(out, "w"))
"""


def played(monkeypatch: pytest.MonkeyPatch, crash: bool, torch: str = "1") -> list[str]:
    """Jobs are a script that knows what to answer; returns what was asked of it."""
    asked: list[str] = []

    def command(job: Job) -> list[str]:
        asked.append(job.name)
        code = WORKER.format(crash=crash, torch=torch)
        return [sys.executable, "-c", code, job.kind, job.model, job.mode]

    monkeypatch.setattr(Job, "command", command)
    return asked


def suite(out: Path, *parts: str) -> Suite:
    plan = Plan(("dcgan", "recommender"), parts, device="cpu", tiny=True, budget_s=30.0)
    return Suite(plan, Document(out, "command"), Console(file=io.StringIO()))


def test_a_crash_is_recorded_and_the_file_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "new" / "training.json"
    played(monkeypatch, crash=True)
    first = suite(out, "time", "memory")
    first.run()
    content = json.loads(out.read_text())
    assert [each["workload"] for each in content["records"]] == ["dcgan"]
    assert {each["job"].split()[1] for each in content["errors"]} == {"recommender"}
    assert content["errors"][0]["error"] == "exit status 1: no luck at else"
    assert len(content["memory"]["records"]) == 2
    assert "recommender: not timed" in first.problems()
    assert set(content["seconds"]) == {"time", "memory"}

    asked = played(monkeypatch, crash=False)
    again = suite(out, "time", "memory")
    again.run()
    assert sorted(asked) == [
        "environment dcgan default",
        "memory recommender default",
        "memory recommender pygraph",
        "time recommender default",
    ]
    content = json.loads(out.read_text())
    assert [each["workload"] for each in content["records"]] == ["dcgan", "recommender"]
    assert content["errors"] == [] and again.problems() == []


def test_what_was_never_tried_comes_first_and_models_are_measured_again_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "training.json"
    played(monkeypatch, crash=True)

    def run(models: str, *parts: str, again: str = "") -> None:
        names, anew = (tuple(each.split()) for each in (models, again))
        plan = Plan(names, parts, "cpu", True, 30.0, preparing=1, weighing=1, again=anew)
        Suite(plan, Document(out, "command"), Console(file=io.StringIO())).run()

    def asked_of(*arguments: str, again: str = "") -> list[str]:
        asked = played(monkeypatch, crash=False)
        run(*arguments, again=again)
        jobs = [job.removesuffix(" default") for job in asked if "environment" not in job]
        return list(dict.fromkeys(jobs))  # in_turn() asks ahead

    run("recommender", "time")  # which fails
    assert Document(out, "").failed == {"recommender"}
    jobs = asked_of("recommender dcgan ResNet-50", "time", "memory")
    weighed = [f"memory {name}" for name in ("dcgan", "ResNet-50", "recommender")]
    assert [job for job in jobs if "pygraph" not in job] == [
        "time dcgan",
        "time ResNet-50",
        *weighed,
        "time recommender",
    ]
    in_turn = [*weighed, *(f"{job} pygraph" for job in weighed)]
    assert [job for job in jobs if job.startswith("memory")] == in_turn
    assert asked_of("recommender dcgan ResNet-50", "time", "memory") == []
    content = json.loads(out.read_text())
    content["records"][0] |= {"latency_us": 7.0, "correct": False, "error": "wrong"}
    out.write_text(json.dumps(content))
    assert asked_of("recommender dcgan", "time", again="dcgan") == ["time dcgan"]
    found = json.loads(out.read_text())
    assert sorted(each["workload"] for each in found["records"]) == [
        "ResNet-50",
        "dcgan",
        "recommender",
    ]
    assert {each["latency_us"] for each in found["records"]} == {1.0}
    assert found["memory"] == content["memory"] and set(found["models"]) == set(content["models"])
    jobs = asked_of("dcgan recommender", "time", "memory", again="dcgan")
    assert jobs == ["memory dcgan", "memory dcgan pygraph", "time dcgan"]


def test_what_is_tuned_in_a_crowd_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    kinds = {}
    for module, kind, method in (
        ("autotune_cache", "AutotuneCache", "save"),
        ("triton_heuristics", "CachingAutotuner", "benchmark_all_configs"),
    ):
        kinds[kind] = type(kind, (), {method: lambda self: f"real {self.launchers}"})
        kinds[kind].launchers = ["a", "b"]
        place = importlib.import_module(f"torch._inductor.runtime.{module}")
        monkeypatch.setattr(place, kind, kinds[kind])
    cache, tuner = kinds["AutotuneCache"](), kinds["CachingAutotuner"]()
    with untold_choices() as forgotten:
        assert forgotten and cache.save() is None
        assert tuner.benchmark_all_configs() == "real ['a', 'b']"
    with untuned():
        assert cache.save() is None and tuner.benchmark_all_configs() == {"a": 0.0, "b": 1.0}
    assert cache.save() == tuner.benchmark_all_configs() == "real ['a', 'b']"
    del kinds["AutotuneCache"].save  # then what is not tuned would be kept
    with untuned():
        assert tuner.benchmark_all_configs() == "real ['a', 'b']"


def test_a_file_of_another_machine_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "training.json"
    played(monkeypatch, crash=True)
    suite(out, "time").run()
    played(monkeypatch, crash=False, torch="2")
    with pytest.raises(ValueError, match="measured with torch 1: take another file"):
        suite(out, "time").run()
    assert json.loads(out.read_text())["env"]["torch"] == "1"


def test_one_is_alone_when_nobody_prepares(tmp_path: Path):
    lock = tmp_path / "turns"
    first, second = Turns(lock), Turns(lock)
    alone: list[float] = []

    def wait() -> None:
        with second.alone():
            alone.append(time.monotonic())

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    assert not alone
    first._file.close()  # as when its process ends
    thread.join(10)
    assert alone


def test_the_script_on_two_tiny_programs(tmp_path: Path):
    import typer
    from typer.testing import CliRunner

    out = tmp_path / "training.json"
    app = typer.Typer()
    app.command()(script.main)
    arguments = ["--tiny", "--device", "cpu", "--models", "recommender,ResNet-50"]
    arguments += ["--seconds", "0.1", "--preparing", "2", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    content = json.loads(out.read_text())
    found = {(each["workload"], each["mode"]): each for each in content["records"]}
    models, modes = ("recommender", "ResNet-50"), ("eager", "default", "pygraph")
    assert set(found) == {(model, mode) for model in models for mode in modes}
    for each in found.values():
        assert each["correct"] and each["error"] is None and each["samples"] >= 40, each
        assert each["latency_p10_us"] <= each["latency_us"] <= each["latency_worst_us"]
        assert each["host_us"] and each["pipelined_us"]
        assert len(each["first_steps_s"]) >= WARM_UP_CALLS
        assert sum(each["first_steps_s"]) <= each["compile_s"]
    for model in models:
        assert content["models"][model]["graph_breaks"] == []
        assert content["models"][model]["check"]["default_repeats_its_bits"]
        own = found[model, "pygraph"]
        assert own["verdict"]["bit_equal_to_default"] is True and own["bytes_copied"] == 0
        assert own["verdict"]["bit_equal_to_uncaptured"] is True
        assert own["verdict"]["served"]["replays"] and own["graphs"] == 2
        assert own["extra"]["compiling"]["seconds"]
    assert content["errors"] == [] and content["targets"] == []
    assert content["env"]["torch"] == torch.__version__ and content["settings"]["step"]
    assert str(tmp_path) not in out.read_text() and str(ROOT) not in out.read_text()
    assert "recommender (4)" in result.output


def test_parts_and_models_are_checked():
    assert script.chosen_parts(None, "cuda", True) == ("precompile", "time", "memory")
    assert script.chosen_parts(None, "cpu", False) == ("time",)
    with pytest.raises(KeyError, match="nonsense"):
        script.chosen_parts("nonsense", "cuda", False)
    assert script.chosen_again("a, b", ("b", "c", "a")) == ("a", "b")
    assert script.chosen_again(None, ("b",)) == ()
    with pytest.raises(KeyError, match="nonsense"):
        script.chosen_again("nonsense", ("b",))
    with pytest.raises(KeyError, match="nonsense"):
        find("dcgan, nonsense")
    assert [each.batch for each in find("dcgan,recommender")] == [32, 256]
    assert set(MODELS) == set(TINY) and len(TINY) == 7
    assert set(STEPS) == set(PARTS)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_all_modes_on_a_gpu():
    results, about = run_training(TINY["recommender"], Device(), QUICK)
    assert [each.mode for each in results] == list(MODES)
    for each in results:
        assert each.correct and each.timed and not each.is_bound, (each, about)
    weight = weigh_training(TINY["recommender"], "default", Device(), False)
    assert weight.peak_mib and weight.driver_mib is not None
