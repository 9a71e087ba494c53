"""The harness on the CPU: that modes do not mix, that wrong results are found, that failures are
recorded and the rest goes on."""

import gc
import io
import json
import sys
import time
import types

import pytest

torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402

import pygraph  # noqa: E402
from benchmarks.first_light import demo  # noqa: E402
from benchmarks.first_light.record import REQUIRED, Record  # noqa: E402
from benchmarks.first_light.run import Options, run_workload  # noqa: E402
from benchmarks.harness import compare, modes, record  # noqa: E402
from benchmarks.harness.device import Device, Memory  # noqa: E402
from benchmarks.harness.isolate import isolated  # noqa: E402
from benchmarks.harness.measure import Effort, Phases, measure  # noqa: E402
from benchmarks.harness.modes import Bench, Runner  # noqa: E402
from benchmarks.harness.weigh import note_memory  # noqa: E402
from pygraph.demo.models import MLP, WORKLOADS, AsFunction, Workload  # noqa: E402

CPU = Device("cpu")
QUICK = Effort(0.05, rounds=2, least=3, most=5)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


class Broken(torch.nn.Module):
    """Two graphs, the second in a helper whose code all twins share."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def helper(self, x):
        y = self.linear(x).relu()
        torch._dynamo.graph_break()
        return y + 1

    def forward(self, x):
        return self.helper(x) * 2


def recording(name: str, log: list[str]):
    def backend(graph_module, inputs):
        def run(*args):
            log.append(name)
            return graph_module.forward(*args)

        return run

    return backend


@pytest.mark.parametrize("model", [AsFunction(MLP(1, 8).float(), autocast=False), Broken()])
def test_each_twin_runs_its_own_backend(model):
    log: list[str] = []
    names = [f"mode{n}" for n in range(6)]
    compiled = {n: torch.compile(isolated(model, n), backend=recording(n, log)) for n in names}
    x = torch.randn(2, 8 if isinstance(model, AsFunction) else 4)
    for name in [*names, *reversed(names), *names]:
        log.clear()
        compiled[name](x)
        assert log and set(log) == {name}


def test_twins_share_parameters_but_no_code():
    model = AsFunction(MLP(1, 8).float(), autocast=False)
    twin = isolated(model, "twin")
    assert next(twin.parameters()) is next(model.parameters())
    assert type(twin).forward.__code__ is not type(model).forward.__code__
    x = torch.randn(2, 8)
    assert torch.equal(twin(x)[0], model(x)[0])
    assert isinstance(twin, AsFunction)


def workload(build=lambda: AsFunction(MLP(2, 8).float(), autocast=False)) -> Workload:
    return Workload(
        "tiny", 2, build, lambda generator: (torch.randn(2, 8, generator=generator),), "torch"
    )


def bench_of(own: Workload) -> tuple[Bench, compare.Expected]:
    model = own.make_model()
    bench = Bench(model, [own.make_inputs(n, "cpu") for n in range(3)], CPU)
    return bench, compare.expect(bench, [own.make_inputs(n, "cpu") for n in (7, 8, 9)])


def test_inputs_depend_on_the_seed_alone():
    own = workload()
    first, again, other = (own.make_inputs(seed, "cpu")[0] for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_check_accepts_the_same_and_compares_bits_with_default():
    bench, expected = bench_of(workload())
    assert compare.check(Runner("default", bench.model), expected).correct
    assert expected.default_spread == 0.0
    verdict = compare.check(Runner("pygraph", bench.model), expected)
    assert verdict.correct and verdict.bit_equal_to_default
    off = compare.check(Runner("pygraph", lambda x: (bench.model(x)[0] * (1 + 1e-6),)), expected)
    assert off.correct and off.bit_equal_to_default is False
    assert off.max_difference_to_default > 0


def test_check_finds_stale_inputs_that_are_close():
    """Outputs that hardly depend on the inputs: a stale replay is within any tolerance."""

    class Numb(torch.nn.Module):
        def forward(self, x):
            return (1.0 + 1e-6 * x.double(),)

    own = workload(Numb)
    bench, expected = bench_of(own)
    stale = own.make_inputs(0, "cpu")
    for known in (False, True):
        if known:
            compare.check(Runner("default", bench.model), expected)
        verdict = compare.check(Runner("pygraph", lambda _: bench.model(*stale)), expected)
        assert verdict.relative_error < expected.tolerance
        assert not verdict.correct and "other inputs" in (verdict.reason or "")


def test_check_finds_wrong_values_shapes_and_nans():
    bench, expected = bench_of(workload())
    for wrong in (
        lambda x: (bench.model(x)[0] * 1.1,),
        lambda x: (bench.model(x)[0][:1],),
        lambda x: (bench.model(x)[0].double(),),
        lambda x: (bench.model(x)[0] / 0,),
        lambda x: (),
    ):
        assert not compare.check(Runner("reduce-overhead", wrong), expected).correct


def test_same_bits_tells_zeros_apart_and_nans_alike():
    nan = torch.full((2,), float("nan"))
    assert compare.same_bits((nan,), (nan.clone(),))
    assert not compare.same_bits((torch.tensor([0.0]),), (torch.tensor([-0.0]),))
    assert compare.same_bits((torch.tensor(1.0),), (torch.tensor(1.0),))
    assert compare.same_bits((torch.empty(0, 3),), (torch.empty(0, 3),))


def test_measure_visits_every_mode_in_every_round():
    order: list[str] = []
    runners = [
        Runner(name, lambda _, name=name: order.append(name) or ()) for name in ("a", "b", "c")
    ]
    samples = measure(runners, [(0,), (1,)], CPU, QUICK)
    for name in "abc":
        assert len(samples[name].pipelined) == QUICK.rounds
        assert len(samples[name].latency) >= QUICK.rounds * QUICK.least
        assert samples[name].calls == order.count(name)
        assert all(h <= t for h, t in zip(samples[name].host, samples[name].latency, strict=True))
    visits = [a for a, b in zip(order, [*order[1:], None], strict=True) if a != b]
    assert visits[3:] == ["a", "b", "c", "b", "c", "a"]


def test_measure_leaves_the_old_heap_alone(monkeypatch):
    collected: list[int] = []
    monkeypatch.setattr("gc.collect", lambda generation=2: collected.append(generation))
    measure([Runner("a", lambda _: ()), Runner("b", lambda _: ())], [(0,)], CPU, QUICK)
    assert collected == [2, *[0] * 2 * QUICK.rounds]


def test_measure_rotates_inputs():
    seen: list[int] = []
    runner = Runner("eager", lambda x: seen.append(x) or ())
    measure([runner], [(n,) for n in range(4)], CPU, Effort(1.0, rounds=1, least=8, most=8))
    assert set(seen) == {0, 1, 2, 3}


def test_modes_take_the_same_inputs_however_long_they_take():
    """Of two sizes in turn an odd number of calls has more of one than of the other."""
    seen: dict[str, list[int]] = {"quick": [], "slow": []}
    slow = Runner("slow", lambda x: seen["slow"].append(x) or time.sleep(2e-3) or ())
    runners = [Runner("quick", lambda x: seen["quick"].append(x) or ()), slow]
    effort = Effort(0.1, rounds=3, least=1, most=1000, in_a_row=0.0, settling=0)
    measure(runners, [(n,) for n in range(50)], CPU, effort)
    timed = seen["quick"][3:]
    assert seen["slow"][3:] == timed == list(range(len(timed))) and len(timed) > 9


@pytest.fixture
def own_modes(monkeypatch):
    """Modes without Inductor, and a stand-in for PyGraph: quick, and without a GPU."""

    def compiled(mode):
        def prepare(bench):
            return Runner(mode, torch.compile(isolated(bench.model, "x"), backend="eager"))

        return prepare

    def wrong(bench):
        return Runner("reduce-overhead", lambda x: (bench.model(x)[0] + 1,))

    def raising(bench):
        raise RuntimeError("cannot capture this\nand more")

    monkeypatch.setitem(modes.MODES, "default", compiled("default"))
    monkeypatch.setitem(modes.MODES, "reduce-overhead", wrong)
    monkeypatch.setitem(modes.MODES, "pygraph", compiled("pygraph"))
    monkeypatch.setitem(modes.MODES, "floor", raising)
    from pygraph.reporting import GraphReport, Report

    fake = types.ModuleType("pygraph.runtime.registry")
    report = Report([GraphReport("g", "graphed", calls=4, replays=2)])
    fake.report = lambda: report
    monkeypatch.setitem(sys.modules, "pygraph.runtime.registry", fake)


def test_a_workload_through_all_modes(own_modes):
    steps: list[str] = []
    phases = Phases()
    watched = [CPU]
    frozen: list[bool] = []

    def is_frozen() -> bool:  # then it is in no generation of the collector
        return all(each is not watched for each in gc.get_objects())

    def step(name: str) -> None:
        steps.append(name)
        frozen.append(is_frozen())

    options = Options(QUICK, list(modes.MODES))
    records = run_workload(workload(), CPU, options, step, phases)
    by_mode = {each.mode: each for each in records}
    assert list(by_mode) == list(modes.MODES)
    assert steps == ["model", *modes.MODES, "timing"]
    for mode in ("eager", "default", "pygraph"):
        assert by_mode[mode].timed and by_mode[mode].error is None
        assert by_mode[mode].compile_s > 0 and by_mode[mode].peak_mib > 0
        assert set(by_mode[mode].extra["phases"]) == {"weigh", "prepare", "check"}
    assert by_mode["pygraph"].bit_equal_to_default
    assert by_mode["pygraph"].bytes_copied == 0
    assert by_mode["pygraph"].extra["report"]["coverage"] == 0.5
    assert not by_mode["reduce-overhead"].timed
    assert by_mode["reduce-overhead"].latency_us is None
    assert "relative error" in by_mode["reduce-overhead"].error
    assert by_mode["floor"].error == "RuntimeError: cannot capture this"
    each = ["model", "inputs", "reference", "weigh", "prepare", "check", "timing", "clear"]
    assert list(phases) == each and all(seconds > 0 for seconds in phases.values())
    assert frozen[-1] and not is_frozen()


def test_what_caches_do_not_have_is_noted() -> None:
    from torch._inductor.utils import fresh_cache

    def make(bench: Bench) -> Runner:
        return Runner("default", torch.compile(lambda x: (x.sin() + 1,), backend="inductor"))

    bench = Bench(torch.nn.Identity(), [(torch.randn(8),)], CPU)
    with fresh_cache():
        missed = {"fxgraph_cache_miss": 1, "autograd_cache_miss": 1}
        assert modes.begin(make, bench).extra == missed
        torch._dynamo.reset()
        assert modes.begin(make, bench).extra == {}


def test_memory_is_growth_with_idle_private_memory():
    made = Record("m", 1, "reduce-overhead")
    before = Memory(allocated=100, reserved=120, in_use=500, private=10, idle=4)
    after = Memory(130, 170, peak_allocated=140, peak_reserved=170, in_use=560, private=40, idle=24)
    note_memory(made, before, after, own=7)
    assert (made.peak_mib, made.reserved_mib) == (7 + 40 + 20, 7 + 60)
    assert made.extra == {"private_mib": 30, "driver_mib": 67}


def test_memory_that_shrank_is_not_given_a_figure():
    made = Record("m", 1, "reduce-overhead")
    before = Memory(allocated=100, reserved=100, in_use=50)
    note_memory(made, before, Memory(peak_allocated=10, peak_reserved=20), own=7)
    assert made.peak_mib is None and made.reserved_mib is None
    assert made.extra["driver_mib"] is None and "90 MiB less" in made.extra["memory_note"]
    unknown = Record("m", 1, "pygraph")
    note_memory(unknown, Memory(idle=None), Memory(peak_allocated=2, idle=None), own=7)
    assert unknown.peak_mib is None and unknown.reserved_mib == 9
    assert "does not tell" in unknown.extra["memory_note"]


def test_the_whole_demonstration(own_modes, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "Device", lambda _: CPU)
    monkeypatch.setattr(demo, "_not_reached", lambda *_: pytest.fail("the CPU cannot break"))
    monkeypatch.setitem(WORKLOADS, "tiny", workload())
    saved: list[int] = []
    write = record.write
    monkeypatch.setattr(record, "write", lambda *given: saved.append(1) or write(*given))
    request = demo.Request(models=("tiny", "tiny"), out=tmp_path, budget_s=0.2, quick=True)
    console = Console(width=170, record=True, file=io.StringIO())
    assert demo._with_gpu(request, console) == 1, "two modes are made to fail"
    assert len(saved) == 2, "after each model"
    found = json.loads((tmp_path / "first-light.json").read_text())
    assert [each["mode"] for each in found["records"]] == [*modes.MODES] * 2
    assert set(REQUIRED) <= set(found["records"][0])
    assert (tmp_path / "first-light.png").exists()
    text = console.export_text()
    assert "failed: tiny, floor: RuntimeError: cannot capture this" in text
    assert "bit-equal to torch.compile" in text and "calls replayed" in text
    assert "pygraph vs default" in text and "elsewhere" in text
    assert text.index("What next") > text.index("elsewhere")
    assert set(found["phases"]) == {"tiny"}


def test_a_model_that_cannot_be_built_fails_in_every_mode():
    def build():
        raise ValueError("no such layer")

    records = run_workload(workload(build), CPU, Options(QUICK, ["eager", "default"]))
    assert [each.error for each in records] == ["ValueError: no such layer"] * 2
    assert not any(each.correct for each in records)


def test_a_missing_library_is_named():
    def build():
        return __import__("a_library_that_is_not_there").net()

    own = Workload("x", 1, build, lambda g: (), "a_library_that_is_not_there")
    (found,) = run_workload(own, CPU, Options(QUICK, ["eager"]))
    assert found.error.startswith("a_library_that_is_not_there: ")


def test_names():
    assert modes.find("floor,eager") == ["eager", "floor"]
    with pytest.raises(KeyError, match="reduce-overhead"):
        modes.find("nonsense")


def test_other_modes_of_a_benchmark_do_not_gain() -> None:
    def enabled() -> bool:
        return bool(torch._C._is_multithreading_enabled())

    pygraph.reset()
    linear = torch.nn.Linear(4, 2)
    function = torch.compile(linear, backend="pygraph", options={"device": "twin"})
    with torch.enable_grad():
        for _ in range(4):
            function(torch.ones(3, 4)).sum().backward()
    assert not enabled()
    also: list[bool] = []
    modes.backward_thread("reduce-overhead", lambda: also.append(enabled()))()
    assert enabled() and also == [True]
    modes.backward_thread("pygraph")()
    assert not enabled()
    pygraph.reset()
    modes.backward_thread("pygraph")()
    assert enabled()
