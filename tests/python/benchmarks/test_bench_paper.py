"""The paper's benchmark on the CPU: how a workload goes through its modes. What is judged
wrong: test_bench_paper_check.py; the workloads themselves: test_bench_paper_workloads.py."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from paper_nets import CPU, NET, QUICK, TRAINED, bench_of, by_mode, options, with_other_padding  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402

import pygraph  # noqa: E402
from benchmarks.harness.device import Device, Memory  # noqa: E402
from benchmarks.harness.measure import Phases  # noqa: E402
from benchmarks.harness.modes import Bench  # noqa: E402
from benchmarks.harness.profile import summarize  # noqa: E402
from benchmarks.paper import modes, prepare, run  # noqa: E402
from benchmarks.paper.modes import Iteration  # noqa: E402
from benchmarks.paper.prepare import Options  # noqa: E402
from benchmarks.paper.record import Result  # noqa: E402
from benchmarks.paper.run import run_workload  # noqa: E402
from benchmarks.paper.workloads.workload import Workload  # noqa: E402
from pygraph.demo.models import Unavailable  # noqa: E402
from pygraph.frontends.compile.options import split  # noqa: E402
from pygraph.transform.pipeline import ALL  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread", "fresh_dynamo")


@pytest.mark.parametrize("workload", [NET, TRAINED], ids=["inference", "training"])
def test_a_workload_goes_through_its_modes(workload: Workload) -> None:
    row = run_workload(workload, CPU, options("eager", "default", "pygraph"))
    assert row.error is None and row.about["batch"] == 4 and row.about["buffers"] == 8
    found = by_mode(row)
    assert all(each.timed and each.samples >= 6 for each in found.values())
    ours = found["pygraph"]
    graphs = 2 if workload.training else 1
    assert (ours.graphs_found, ours.graphs_captured, ours.graphs_deployed) == (graphs,) * 3
    assert ours.bytes_copied == 0 and not ours.fallbacks
    assert ours.verdict["bit_equal_to_uncaptured"] and ours.verdict["bit_equal_to_default"]
    assert ours.verdict["replays"] >= 4 * graphs
    assert ours.compile_s is not None and len(ours.first_calls_s) >= 4
    assert (ours.verdict["gradient_error"] is not None) and ours.verdict["relative_error"] < 1e-3


def test_every_buffer_is_seen_before_the_clocks() -> None:
    with torch.no_grad():
        bench = run.build(NET, CPU, tiny=False)
        iteration = modes.begin("eager", bench)
        real, seen = iteration.step, list[Any]()
        iteration.step = lambda *inputs: (seen.append(inputs[0]), real(*inputs))[1]
        modes.finish(iteration, bench)
    counts = [sum(each is inputs[0] for each in seen) for inputs in bench.inputs]
    assert len(counts) == 8 and min(counts) == modes.SETTLING_PASSES
    assert iteration.extra["settle_s"] > 0 and len(iteration.first_calls_s) == 4


def test_copied_arguments_are_counted() -> None:
    with torch.no_grad():
        bench = bench_of(NET, "eager", "pygraph", "pygraph-copies")
    ours, copying = bench.runners["pygraph"], bench.runners["pygraph-copies"]
    assert len(ours.graphs) == len(copying.graphs) == 1 and ours.graphs != copying.graphs
    with torch.no_grad():
        for each in (ours, copying):
            before = each.counted("bytes_copied")
            each.run(bench.inputs[1])
            copied = each.counted("bytes_copied") - before
            assert copied == (4 * 8 * 4 if each is copying else 0)


def test_a_mode_switches_off_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    real = modes.modes.compiling

    def compiling(mode: str, on_gpu: bool = True, **options: Any) -> dict[str, Any]:
        given = real(mode, on_gpu, **options)
        if mode.startswith("pygraph"):
            own = split(given["options"])[0]
            seen[mode] = own.passes, own.select, own.parallel
        return given

    monkeypatch.setattr(modes.modes, "compiling", compiling)
    with torch.no_grad():
        bench = bench_of(
            NET,
            *("eager", "pygraph", "pygraph-untransformed", "pygraph-always", "pygraph-parallel"),
        )
    assert seen == {
        "pygraph": (ALL, "measure", "off"),
        "pygraph-untransformed": (frozenset(), "measure", "off"),
        "pygraph-always": (ALL, "always", "off"),
        "pygraph-parallel": (ALL, "measure", "auto"),
    }
    ours, plain = bench.runners["pygraph"], bench.runners["pygraph-untransformed"]
    assert len(plain.graphs) == 1 and not plain.graphs & ours.graphs
    assert set(prepare.ORDER) == set(modes.MODES)


def test_indices_that_the_host_reads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(modes.MODES, "pygraph", modes._way("pygraph", launch="always"))

    def ids(generator: torch.Generator, device: Any) -> Any:
        return (torch.randint(50, (4,), generator=generator),)

    looking_up = dataclasses.replace(
        NET, build=lambda tiny: torch.nn.Embedding(50, 8), sample=lambda tiny: ids
    )
    row = run_workload(looking_up, CPU, options("eager", "default", "pygraph"))
    ours = by_mode(row)["pygraph"]
    # Not in each call: what was compared before the clocks ran without graphs, so guesses pause.
    assert 2 * 8 < ours.extra["indices_read"] <= 4 * 8
    assert ours.timed and ours.bytes_copied == 0


def test_a_mode_that_raises_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(bench: Bench) -> Iteration:
        raise OSError(f"no {__file__}")

    monkeypatch.setitem(modes.MODES, "default", broken)
    row = run_workload(NET, CPU, options("eager", "default", "floor"))
    found = by_mode(row)
    assert found["eager"].timed and row.error is None
    assert found["default"].error == "OSError: no test_bench_paper.py"
    assert found["floor"].error is not None and "without the default mode" in found["floor"].error


class Gpu(Device):
    """Takes itself for a GPU, where nothing of one is needed."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.is_cuda = True

    def synchronize(self) -> None:
        pass

    def tidy(self) -> None:
        pass

    def memory(self) -> Memory:
        return Memory()


def test_without_a_floor_the_process_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(bench: Bench) -> Iteration:
        try:
            raise ValueError("a host number is needed\nand more")
        except ValueError:
            raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904

    bench = Bench(NET.make_program(CPU.torch), [NET.make_inputs(1, CPU.torch)], Gpu(), workload=NET)
    monkeypatch.setitem(modes.MODES, "default", modes.MODES["eager"])
    monkeypatch.setitem(modes.MODES, "floor", capture)
    bench.runners["default"] = modes.MODES["eager"](bench)
    results = {mode: Result("NET", 4, mode) for mode in ("default", "floor")}
    results["default"].cold_compile_s = 2.5
    with pytest.raises(prepare.FloorImpossible) as given_up:
        prepare._capture_floor(bench, results, Phases())
    assert given_up.value.why.startswith("ValueError: a host number is needed (test_bench_paper.py")
    assert given_up.value.cold_s == {"default": 2.5}

    # The process that comes next knows, and does not try.
    results = {mode: Result("NET", 4, mode) for mode in ("default", "floor")}
    known = Options(QUICK, tuple(results), floor_error="no", cold_s={"default": 2.5})
    bench.device = CPU
    prepare.compile_all(bench, results, known, Phases())
    assert results["floor"].error == "no" and results["default"].cold_compile_s == 2.5
    assert list(bench.runners) == ["default"]


def test_the_floor_comes_behind_default_and_before_other_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    def telling(mode: str) -> Any:
        def prepared(bench: Bench) -> Iteration:
            done.append(mode)
            return modes._iteration(mode, bench, bench.model)

        return prepared

    def weigh(result: Result, prepared: Iteration, *_: Any) -> None:
        done.append(f"{result.mode} weighed")

    monkeypatch.setattr(prepare, "weigh", weigh)
    names = ["eager", "default", "reduce-overhead", "pygraph", "floor"]
    for mode in names:
        monkeypatch.setitem(modes.MODES, mode, telling(mode))
    bench = Bench(NET.make_program(CPU.torch), [NET.make_inputs(1, CPU.torch)], CPU, workload=NET)
    results = {mode: Result("NET", 4, mode) for mode in names}
    prepare.compile_all(bench, results, options(*names), Phases())
    prepare.capture_all(bench, results, options(*names), Phases())
    assert done[:4] == ["eager", "default", "floor", "floor weighed"]
    assert done[4:7] == ["pygraph", "reduce-overhead", "reduce-overhead weighed"]
    assert sorted(bench.runners) == sorted(names) and results["floor"].compile_s is not None


def test_captures_are_alone_for_they_choose_by_clocks() -> None:
    done: list[str] = []

    @contextmanager
    def alone() -> Iterator[None]:
        done.append("alone")
        yield
        done.append("not alone")

    given = dataclasses.replace(options("eager", "pygraph"), alone=alone, tell=done.append)
    run_workload(NET, CPU, given)
    assert done == [
        *("model", "compile eager", "compile pygraph", "alone"),
        *("capture pygraph", "capture eager", "check eager", "check pygraph"),
        *("time", "profile", "not alone", "done"),
    ]


def test_what_another_process_compiles_is_waited_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[str] = []
    monkeypatch.setattr(modes, "compile_cold", lambda mode, bench: filled.append(mode) or 3.0)
    waits = {"default": lambda: filled.append("waited") or 4.0}
    bench = Bench(NET.make_program(CPU.torch), [], Gpu(), workload=NET)
    results = {mode: Result("NET", 4, mode) for mode in ("default", "reduce-overhead", "pygraph")}
    known = Options(QUICK, tuple(results), elsewhere=waits)
    prepare._compile_cold(bench, results, known, Phases())
    assert filled == ["reduce-overhead", "pygraph", "waited"]
    assert [each.cold_compile_s for each in results.values()] == [4.0, 3.0, 3.0]


def test_results_live_until_the_backward_is_done() -> None:
    """Whatever is returned: torch's graphs record how long what they were given lives."""
    bench = Bench(
        TRAINED.make_program(CPU.torch),
        [TRAINED.make_inputs(1, CPU.torch)],
        CPU,
        workload=TRAINED,
    )
    made: list[Any] = []
    alive: list[bool] = []

    def module(x: Any) -> Any:
        result = bench.model(x)[0]
        made.append(weakref.ref(result))
        return (result,)

    iteration = modes._iteration("default", bench, module)
    iteration.parameters[0].register_hook(lambda _: alive.append(made[-1]() is not None))
    for complete in (False, True):
        iteration.complete[0] = complete
        outputs = iteration.run(bench.inputs[0])
        assert outputs[0].dim() == (2 if complete else 0) and made[-1]() is None
    assert alive == [True, True]


def test_only_pygraph_keeps_backwards_on_the_calling_thread() -> None:
    bench = bench_of(TRAINED, "eager", "default", "pygraph-copies", "pygraph")
    seen = {}
    for mode in ("pygraph", "eager", "pygraph-copies", "default"):
        bench.runners[mode].run(bench.inputs[0])
        seen[mode] = torch._C._is_multithreading_enabled()
    assert seen == {"eager": True, "default": True, "pygraph": False, "pygraph-copies": False}
    pygraph.reset()


def test_caches_are_filled_once_for_each_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[str] = []

    def compile_cold(mode: str, bench: Bench) -> float:
        filled.append(mode)
        return 3.0

    monkeypatch.setattr(modes, "compile_cold", compile_cold)
    bench = Bench(NET.make_program(CPU.torch), [], Gpu(), workload=NET)
    results = {mode: Result("NET", 4, mode) for mode in ("default", "reduce-overhead", "pygraph")}
    known = Options(QUICK, tuple(results), cold_s={"default": 2.5})
    prepare._compile_cold(bench, results, known, Phases())
    assert filled == ["reduce-overhead", "pygraph"]
    assert [each.cold_compile_s for each in results.values()] == [2.5, 3.0, 3.0]


def test_a_bound_stands_in_for_a_floor() -> None:
    results = {mode: Result("NET", 4, mode) for mode in ("default", "floor")}
    results["default"].kernel_us, results["floor"].error = 7.0, "no capture"
    run._bound(results)
    limit = results["floor"]
    assert limit.latency_us == 7.0 and limit.is_bound and limit.timed and not limit.correct
    results["floor"] = Result("NET", 4, "floor", correct=True, latency_us=3.0)
    run._bound(results)
    assert results["floor"].latency_us == 3.0 and not results["floor"].is_bound


def test_a_record_does_not_say_whose_machine_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(needs: tuple[str, ...]) -> str:
        return f"TorchBench: not found in {Path.home() / '.cache'}"

    monkeypatch.setattr("benchmarks.paper.workloads.sources.missing", missing)
    error = run_workload(NET, CPU, options("eager")).error
    assert error and error.startswith("TorchBench: not found in ~/.cache;")


def test_settings_of_inductor_hold_for_all_modes() -> None:
    seen: list[bool] = []
    workload, other = with_other_padding(seen)
    row = run_workload(workload, CPU, options("eager"))
    assert seen and set(seen) == {other} and inductor_config.comprehensive_padding != other
    assert row.about["inductor"] == {"comprehensive_padding": other}
    assert run_workload(NET, CPU, options("eager")).about["inductor"] == {}


def test_a_model_that_is_not_there_says_why() -> None:
    absent = dataclasses.replace(NET, needs=("no_such_module_of_mine",))
    row = run_workload(absent, CPU, options("eager"))
    assert row.error is not None and "no_such_module_of_mine" in row.error and not row.records
    with pytest.raises(Unavailable):
        absent.make_program(torch.device("cpu"))


# ---------------------------------------------------------------------------- the profiler's trace


def kernel(ts: float, dur: float, correlation: int, cat: str = "kernel") -> dict[str, Any]:
    return {"cat": cat, "name": "k", "ts": ts, "dur": dur, "args": {"correlation": correlation}}


def test_a_trace_is_summed_up() -> None:
    events = [
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {"correlation": 1}},
        {"cat": "cuda_driver", "name": "cuLaunchKernelEx", "args": {"correlation": 2}},
        {"cat": "cuda_runtime", "name": "cudaGraphLaunch", "args": {"correlation": 3}},
        kernel(0, 4, 1),
        kernel(4, 4, 2),
        kernel(10, 4, 3),
        kernel(12, 4, 3),  # beside the one before
        kernel(20, 2, 4),  # a graph launched by the driver's function, which the trace leaves out
        kernel(30, 6, 5, "gpu_memcpy"),
        {"cat": "cpu_op", "name": "aten::add", "ts": 0, "dur": 99},
        {"ph": "M", "name": "process_name"},
    ]
    found = summarize(events, 2)
    assert found.kernel_us == (4 + 4 + 4 + 4 + 2 + 6) / 2
    assert found.busy_us == (8 + 6 + 2 + 6) / 2
    assert (found.kernels, found.kernels_in_graphs, found.graph_launches) == (2.5, 1.5, 1.0)
