"""The engine's record: targets and their arithmetic, readings, the script on the CPU."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.engine import command as script  # noqa: E402
from benchmarks.engine import large, linktime, memory, targets, tight, worker  # noqa: E402
from benchmarks.engine.memory import Figures  # noqa: E402
from benchmarks.engine.tight import Tight  # noqa: E402
from benchmarks.harness import modes  # noqa: E402
from benchmarks.harness.device import MIB, Device, Memory  # noqa: E402
from benchmarks.harness.worker import outcome  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
EMPTY = torch.empty
GRAPH = {
    "state": "graphed",
    "capture_bytes": 2 * MIB,
    "private_pool_bytes": 0,
    "arena_bytes": 60 * MIB,
    "output_bytes": 20 * MIB,
    "arena_lower_bound": 50 * MIB,
}


def figures(mode: str, **changed: Any) -> Figures:
    made = Figures("m", 4, mode, own_mib=100.0, peak_mib=200.0, call_mib=100.0, digest="d")
    if mode == "pygraph":
        made = replace(made, graphs=[GRAPH], freed_mib=80.0, freed_is_usable=True, same_after=True)
    return replace(made, **changed)


def judged(default: dict[str, Any], own: dict[str, Any]) -> dict[str, targets.Target]:
    found = targets.memory_targets(
        ["m"], [figures("default", **default), figures("pygraph", **own)]
    )
    return {target.name.split(",")[0]: target for target in found}


def test_memory_targets_are_met_up_to_the_limit():
    found = judged({}, {"peak_mib": 204.0})
    assert [target.met for target in found.values()] == [True, True, True]
    assert found["memory"].value == pytest.approx(1.02)
    assert "without model and inputs 1.040" in found["memory"].detail
    assert judged({}, {"peak_mib": 205.0})["memory"].met is False


def test_what_runs_uncaptured_meets_no_memory_target():
    assert judged({}, {"graphs": [{**GRAPH, "state": "fallback"}]})["memory"].met is False
    assert judged({}, {"graphs": []})["memory"].met is False


def test_memory_for_others_needs_right_results_too():
    assert judged({}, {"freed_is_usable": False})["memory for others"].met is False
    assert judged({}, {"same_after": False})["memory for others"].met is False
    assert (
        judged({}, {"freed_is_usable": None, "same_after": None})["memory for others"].met is None
    )


def test_other_bits_are_seen():
    assert judged({}, {"digest": "e"})["bits"].met is False
    assert judged({"digest": None}, {"digest": None})["bits"].met is False


def test_what_was_not_measured_is_neither_met_nor_missed():
    found = targets.memory_targets(["m"], [figures("default")])
    assert [target.met for target in found] == [None, None, None]
    assert targets.tight_target(None).met is None
    assert targets.link_target(None).met is None
    assert judged({"peak_mib": None}, {})["memory"].met is None


def test_packing():
    found = memory.packing(figures("default"), figures("pygraph"))
    assert found == pytest.approx(
        {
            "arena_mib": 60.0,
            "outputs_mib": 20.0,
            "allocator_mib": 100.0,
            "lower_bound_mib": 50.0,
            "over_allocator": 0.8,
            "over_lower_bound": 1.2,
        }
    )
    for bound in (None, 0):  # an old report, and one that does not fill the field
        own = figures("pygraph", graphs=[GRAPH, {**GRAPH, "arena_lower_bound": bound}])
        found = memory.packing(figures("default"), own)
        assert found["lower_bound_mib"] is None and found["arena_mib"] == 120.0


def a_tight(**changed: Any) -> dict[str, Any]:
    made = Tight(
        "m", 1, "pygraph", need_mib=100.0, activations_mib=90.0, free_mib=150.0, calls=tight.CALLS
    )
    return asdict(replace(made, same_bits=True, graphs=[GRAPH], **changed))


def test_tight_target():
    assert targets.tight_target(a_tight()).met is True
    assert targets.tight_target(a_tight(free_mib=200.0)).met is False
    assert targets.tight_target(a_tight(error="OutOfMemoryError: x", calls=1)).met is False
    assert targets.tight_target({**a_tight(), "same_bits": None}).met is False
    for wrong in (
        {"state": "fallback"},
        {"capture_bytes": 4 * MIB},
        {"private_pool_bytes": 1},
    ):
        found = targets.tight_target({**a_tight(), "graphs": [{**GRAPH, **wrong}]})
        assert found.met is False, wrong
    assert targets.tight_target({**a_tight(), "graphs": []}).met is False


def test_room_keeps_activations_above_half():
    for need in (100.0, 120.0, 150.0):
        room = tight.room_for(need, 100.0)
        assert need * tight.LEAST_ROOM <= room <= need * tight.ROOM
        assert 100.0 / room > 0.5


STEPS = {"link": 50.0, "capture": 40.0, "compare": 8.0, "proof": 20.0, "proof_runs": 12.0}


def test_link_figures_leave_the_first_out():
    first = {**STEPS, "link": 500.0}
    found = linktime.figures([first, STEPS], torch_capture_ms=1.0, replay_ms=1.0)
    assert found["captures"] == pytest.approx((50 + 20 - 12) / 20)
    assert found["one_capture_ms"] == 20.0 and found["first_link_and_proof_ms"] == 520.0
    assert linktime.figures([first], 1.0, 1.0)["link_ms"] == 500.0


def test_link_figures_say_what_stands_in():
    old = {"link": 50.0, "proof": 20.0}
    found = linktime.figures([old, old], torch_capture_ms=25.0, replay_ms=5.0)
    assert found["captures"] == pytest.approx((70 - 10) / 25)
    assert found["one_capture_is"] == "torch.cuda.graph"
    assert found["proof_runs_are"] == "two replays"
    for nothing in ([], [{}], [{"link": 3.0}]):
        with pytest.raises(ValueError, match="linked"):
            linktime.figures(nothing, 1.0, 1.0)


def test_link_target():
    link = {"workload": "m", "states": ["graphed"], **linktime.figures([STEPS], 1.0, 1.0)}
    assert targets.link_target(link).met is True
    assert targets.link_target({**link, "captures": 3.1}).met is False
    assert targets.link_target({**link, "states": ["graphed", "it failed"]}).met is False


# ---------------------------------------------------------------------------- on the CPU


def test_a_worker_records_what_it_measured_and_what_it_raised(tmp_path: Path):
    found = outcome(lambda: worker.run("memory", "mlp-1", "eager", Device("cpu")))
    assert found["result"]["workload"] == "mlp-1" and found["result"]["digest"]
    again = outcome(lambda: worker.run("memory", "mlp-1", "default", Device("cpu")))
    assert Figures(**again["result"]).mode == "default"
    torch._dynamo.reset()
    assert outcome(lambda: worker.run("memory", "mlp-1", "nonsense", Device("cpu"))) == {
        "error": "KeyError: 'nonsense'"
    }


class Gpu(Device):
    """A GPU with an allocator that keeps what it has, on the CPU: 8 MiB of model, and calls that
    need 40 MiB. `private` is how much of that nobody else can have."""

    def __init__(self, private: float) -> None:
        super().__init__("cpu")
        self.is_cuda, self.private = True, private
        self.reserved = self.peak = self.peak_reserved = 8.0
        self.allowed = 1.0

    def call(self, x: Any) -> tuple[Any]:
        self.reserved = 48.0
        self.peak = self.peak_reserved = 48.0
        return (x + 1,)

    def empty_cache(self) -> None:
        self.reserved = 8.0 + (self.private if self.reserved > 8.0 else 0.0)

    def tidy(self, generation: int = 2) -> None:
        self.empty_cache()

    def synchronize(self) -> None:
        pass

    def restart_peaks(self) -> None:
        self.peak, self.peak_reserved = 8.0, self.reserved

    def memory(self) -> Memory:
        private = self.private if self.reserved > 8.0 else 0.0
        free, total = self.mem_get_info()
        return Memory(
            8.0,
            self.reserved,
            self.peak,
            self.peak_reserved,
            (total - free) / MIB,
            private,
            private,
        )

    def mem_get_info(self, *_: Any) -> tuple[int, int]:
        return int((1000 - self.reserved) * MIB), 1000 * MIB

    def empty(self, size: Any, *rest: Any, **options: Any) -> Any:
        held = 8.0 + self.private
        large = isinstance(size, int) and options.get("dtype") == torch.uint8
        if large and (held * MIB + size) / (1000 * MIB) > self.allowed:
            raise torch.cuda.OutOfMemoryError
        return EMPTY(size, *rest, **options)


@pytest.mark.parametrize(("private", "freed"), [(0.0, 40.0), (16.0, 24.0)])
def test_readings_become_figures(monkeypatch: pytest.MonkeyPatch, private: float, freed: float):
    gpu = Gpu(private)
    monkeypatch.setattr(torch.cuda, "mem_get_info", gpu.mem_get_info)
    monkeypatch.setattr(torch.cuda, "empty_cache", gpu.empty_cache)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda part: setattr(gpu, "allowed", part)
    )
    monkeypatch.setattr(memory.torch, "empty", gpu.empty)
    monkeypatch.setitem(modes.MODES, "fake", lambda bench: modes.Runner("fake", gpu.call))
    found = memory.measure_memory(large.named("mlp-1"), "fake", gpu)
    assert (found.torch_peak_mib, found.torch_reserved_mib) == (48.0, 48.0)
    assert (found.call_mib, found.workspace_mib) == (40.0, 0.0)
    assert found.peak_mib == pytest.approx(found.own_mib + 40.0 + private)
    assert (found.held_mib, found.freed_mib) == (private, freed)
    assert found.first_driver_mib == 40.0
    assert found.freed_is_usable is True and found.same_after is True
    assert gpu.allowed == 1.0


def test_memory_that_cannot_be_had_is_seen(monkeypatch: pytest.MonkeyPatch):
    gpu = Gpu(0.0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", gpu.mem_get_info)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda part: setattr(gpu, "allowed", part)
    )
    monkeypatch.setattr(memory.torch, "empty", gpu.empty)
    bench = modes.Bench(None, [(torch.ones(2),)] * 2, gpu)
    runner = modes.Runner("fake", gpu.call)
    found = figures("eager", digest=memory.digest((torch.ones(2) + 1,)))
    emptied = gpu.memory()
    gpu.private = 16.0  # as much as this is held on to in the meantime
    memory._check_freed(found, runner, bench, emptied)
    assert found.freed_is_usable is False and found.same_after is True


def test_digests_tell_values_types_and_sizes():
    ones = torch.ones(4, dtype=torch.bfloat16)
    same = memory.digest((ones,))
    assert memory.digest((ones.clone(),)) == same
    others = (ones.view(2, 2), ones.view(torch.float16), ones * 2, torch.ones(8)[:4])
    assert same not in [memory.digest((other,)) for other in others]
    assert memory.digest((torch.empty(0),)) != memory.digest(())


def test_models_are_found_by_name():
    assert [each.name for each in large.find(None)] == list(large.LARGE)
    assert [each.batch for each in large.find("unet, mlp-1")] == [8, 16]
    with pytest.raises(KeyError, match="nonsense"):
        large.find("nonsense")


def test_a_failing_part_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import typer
    from typer.testing import CliRunner

    def broken(run: Any) -> None:
        raise OSError(f"no {__file__}")

    def given(run: Any) -> None:
        run.figures += [figures("default", workload="unet"), figures("pygraph", workload="unet")]

    monkeypatch.setitem(script.STEPS, "link", broken)
    monkeypatch.setitem(script.STEPS, "memory", given)
    monkeypatch.setitem(script.STEPS, "environment", lambda run: None)
    out = tmp_path / "new" / "engine.json"
    app = typer.Typer()
    app.command()(script.main)
    arguments = ["--parts", "memory,link", "--models", "unet", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1, result.output
    found = json.loads(out.read_text())
    assert found["errors"] == [
        {"job": "link", "error": "OSError: no test_bench_engine.py", "ran": True}
    ]
    assert set(found["seconds"]) == {"environment", "link", "memory"}
    assert [each["mode"] for each in found["memory"]["records"]] == ["default", "pygraph"]
    assert found["memory"]["packing"]["unet"]["over_allocator"] == pytest.approx(0.8)
    met = {target["name"]: target["met"] for target in found["targets"]}
    assert met["memory, unet"] is True and met["link time"] is None
    assert str(tmp_path) not in out.read_text()
    assert str(Path(__file__).parent) not in out.read_text()
    monkeypatch.setitem(script.STEPS, "link", lambda run: None)
    assert CliRunner().invoke(app, arguments).exit_code == 0


def test_parts_run_in_their_order():
    assert script.chosen_parts("memory, compile") == ["compile", "memory"]
    assert script.chosen_parts(None) == list(script.PARTS)
    with pytest.raises(KeyError, match="nonsense"):
        script.chosen_parts("nonsense")


def test_a_missing_binary_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(script, "ROOT", tmp_path)
    run = script.Run(["unet"], False, tmp_path / "x.json", 10.0, script.terminal())
    script.micro(run)
    assert "pygraph_bench" in run.content["errors"][0]["error"]


def test_the_microbenchmarks_become_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    raw = {"run_name": "lay_out_arena/1000", "real_time": 600.0, "time_unit": "us"}
    binary = tmp_path / "build/release/pygraph_bench"
    binary.parent.mkdir(parents=True)
    written = json.dumps({"benchmarks": [raw]})
    binary.write_text(f"#!/bin/sh\necho '{written}' > \"${{1#--benchmark_out=}}\"\n")
    binary.chmod(0o755)
    monkeypatch.setattr(script, "ROOT", tmp_path)
    run = script.Run(["unet"], False, tmp_path / "x.json", 10.0, script.terminal())
    script.micro(run)
    (found,) = run.content["micro"]
    assert (found["host_us"], found["target_us"], found["met"]) == (600.0, 500, False)
