"""How the training benchmark tells right from wrong, on the CPU: faults in graphs only are found,
so are gross ones of the compiled code; code that only rounds otherwise than default's is right."""

import contextlib
import io
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402

import pygraph  # noqa: E402
from benchmarks.harness.device import Device  # noqa: E402
from benchmarks.harness.measure import Effort  # noqa: E402
from benchmarks.harness.modes import WARM_UP_CALLS, Bench, begin  # noqa: E402
from benchmarks.training import modes  # noqa: E402
from benchmarks.training.check import STEPS, Reference, Served, judge  # noqa: E402
from benchmarks.training.models import TINY  # noqa: E402
from benchmarks.training.modes import Trainer  # noqa: E402
from benchmarks.training.record import Result  # noqa: E402
from benchmarks.training.run import run_training  # noqa: E402
from benchmarks.training.table import detail_table  # noqa: E402
from benchmarks.training.targets import bits, evaluate  # noqa: E402
from benchmarks.training.tracks import RUNS, Gap, Runs, Track, copied, gap, take, take_nudged  # noqa: E402
from pygraph.frontends.compile.backend import backend  # noqa: E402
from pygraph.runtime import registry  # noqa: E402

CPU = Device("cpu")
QUICK = Effort(0.05, rounds=2, least=3, most=5)
MODES = ("eager", "default", "pygraph")


@pytest.fixture(autouse=True)
def fresh(one_thread: None, fresh_dynamo: None) -> Iterator[None]:
    pygraph.reset()
    yield
    pygraph.reset()


Make = Callable[[Bench], Trainer]


def results_with(
    monkeypatch: pytest.MonkeyPatch, make: Make, model: str = "recommender"
) -> dict[str, Result]:
    """All modes of a tiny program, with another one in pygraph's place."""
    monkeypatch.setitem(modes.MODES, "pygraph", make)
    results, _ = run_training(TINY[model], CPU, QUICK, modes=MODES)
    found = {each.mode: each for each in results}
    assert found["eager"].timed and found["default"].timed
    return found


def on_twin(module: Any) -> Any:
    return torch.compile(module, backend=backend, options={"device": "twin"})


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Not empty while graphs are not to be used."""
    real, found = registry.without_graphs, []

    @contextlib.contextmanager
    def uncaptured() -> Iterator[None]:
        found.append(True)
        with real():
            yield
        found.pop()

    monkeypatch.setattr(registry, "without_graphs", uncaptured)
    return found


@pytest.mark.parametrize("factor", [1.0, 1.0 + 2.0**-10])
def test_a_fault_of_graphs_alone_is_found(
    monkeypatch: pytest.MonkeyPatch, held: list[bool], factor: float
):
    make = modes.MODES["pygraph"]

    def faulty(bench: Bench) -> Trainer:
        trainer = make(bench)
        trainer.parameters[-1].register_hook(
            lambda gradient: gradient if held else gradient * factor
        )
        return trainer

    own = results_with(monkeypatch, faulty)["pygraph"]
    verdict = own.verdict
    assert verdict["served"]["replays"] == verdict["served"]["calls"] == 2 * STEPS
    assert verdict["served"]["replays_uncaptured"] == 0
    assert verdict["tuning_distance"] == Gap().to_dict()
    if factor == 1.0:
        assert own.correct and own.timed and verdict["bit_equal_to_uncaptured"] is True
        assert verdict["distance_to_uncaptured"] == 0.0
    else:
        assert not own.correct and not own.timed and verdict["bit_equal_to_uncaptured"] is False
        assert own.error is not None and "off the same code without graphs" in own.error
        assert verdict["distance_to_uncaptured"] >= 2.0**-11


class Otherwise(torch.nn.Module):
    """The same in other arithmetic."""

    def __init__(self, module: Any, factor: float = 41.0) -> None:
        super().__init__()
        self.module, self.factor = module, factor

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs) * self.factor / 41.0


@pytest.mark.parametrize("model", ["recommender", "ResNet-50"])
def test_code_that_rounds_otherwise_is_right(monkeypatch: pytest.MonkeyPatch, model: str):
    def otherwise(bench: Bench) -> Trainer:
        return modes._trainer("pygraph", bench, lambda m: on_twin(Otherwise(m)))

    own = results_with(monkeypatch, otherwise, model)["pygraph"]
    verdict = own.verdict
    assert own.correct and own.timed, own.error
    assert verdict["bit_equal_to_default"] is False and verdict["distance_to_default"] > 0.0
    assert verdict["bit_equal_to_uncaptured"] is True
    assert verdict["tuning_distance"] == verdict["gap_to_default"]
    assert 0.0 < verdict["tuning_distance"]["gradients"] < 1e-3
    assert bits(own) == "uncaptured's"
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(detail_table([own]))
    assert "uncaptured's" in console.export_text()


@pytest.mark.parametrize("mistake", ["scaled", "stale", "other seed"])
@pytest.mark.parametrize("graphs", [True, False])
def test_gross_faults_of_the_code_itself_are_found(
    monkeypatch: pytest.MonkeyPatch, mistake: str, graphs: bool
):
    """The same with graphs and without, so that the two agree."""

    def wrong(bench: Bench) -> Trainer:
        factor = 41.4 if mistake == "scaled" else 41.0
        trainer = modes._trainer(
            "pygraph",
            bench,
            lambda m: on_twin(Otherwise(m, factor)) if graphs else Otherwise(m, factor),
        )
        step, first = trainer.step, bench.inputs[0]
        if mistake == "stale":
            trainer.step = lambda *_: step(*first)
        elif mistake == "other seed":
            trainer.step = lambda *inputs: (torch.rand(3), step(*inputs))[1]
        return trainer

    own = results_with(monkeypatch, wrong)["pygraph"]
    assert own.verdict["bit_equal_to_uncaptured"] is True
    assert not own.correct and own.latency_us is None
    assert own.verdict["bit_equal_to_default"] is False
    assert own.error is not None and ("off default" in own.error or "against eager" in own.error)


def test_graphs_that_serve_no_call_are_not_judged_right(
    monkeypatch: pytest.MonkeyPatch, held: list[bool]
):
    make = modes.MODES["pygraph"]

    def idle(bench: Bench) -> Trainer:
        trainer = make(bench)
        step = trainer.step

        def dodge(*inputs: Any) -> Any:
            if len(trainer.first_calls_s) < WARM_UP_CALLS or held:
                return step(*inputs)
            with registry.without_graphs():
                return step(*inputs)

        trainer.step = dodge
        return trainer

    own = results_with(monkeypatch, idle)["pygraph"]
    assert own.verdict["bit_equal_to_uncaptured"] is True and not own.correct
    assert own.error == "none of 2 graphs served any of the 6 calls"


def test_graphs_that_serve_the_uncaptured_runs_are_not_judged_right(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(registry, "without_graphs", contextlib.nullcontext)
    own = results_with(monkeypatch, modes.MODES["pygraph"])["pygraph"]
    assert own.verdict["bit_equal_to_uncaptured"] is True and not own.correct
    assert own.error == f"graphs served {6 * RUNS} calls of the runs without graphs"


def track(loss: float, *weights: float) -> Track:
    return Track([loss], [torch.ones(2)], {"w": torch.tensor(weights)})


def runs(**spread: float) -> Runs:
    losses = spread.pop("losses", 0.0)
    own = Gap(losses, max(spread.values(), default=0.0), max(spread.values(), default=0.0))
    return Runs(track(1.0, 1.0, 2.0), spread, own)


def reference(of: str = "uncaptured", known: Runs | None = None, **changed: Any) -> Reference:
    found = Reference({"w": torch.tensor([0.0, 0.0])}, **changed)
    found.default, found.uncaptured = runs(), runs()
    setattr(found, of, known or runs())
    return found


def test_bits_are_asked_where_the_code_repeats_them():
    wide = Gap(1.0, 1.0, 1.0)
    assert judge("pygraph", track(1.0, 1.0, 2.0), reference()).correct
    verdict = judge(
        "pygraph",
        track(1.0, 1.0, 2.0001),
        reference(rounding=wide, reduce_overhead=wide),
    )
    assert not verdict.correct and verdict.bit_equal_to_uncaptured is False
    assert verdict.reason is not None and verdict.reason.startswith("w: ")
    assert not judge("pygraph", track(math.nan, 1.0, 2.0), reference()).correct
    # The floor captures default's own code.
    assert judge("floor", track(1.0, 1.0, 2.0), reference()).correct
    assert not judge("floor", track(1.0, 1.0, 2.0001), reference(rounding=wide)).correct


def test_within_the_spread_of_the_same_code_is_right():
    spread: dict[str, Any] = {"w": 1e-4, "gradient 0": 0.0, "losses": 1e-5}
    for mode, of in (("pygraph", "uncaptured"), ("floor", "default")):
        for right, loss, weight in (
            (True, 1.00001, 2.0001),
            (False, 1.00001, 2.01),
            (False, 1.001, 2.0001),
        ):
            known = reference(of, runs(**spread), rounding=Gap(1.0, 1.0, 1.0))
            known.reduce_overhead = Gap(1.0, 1.0, 1.0)
            assert judge(mode, track(loss, 1.0, weight), known).correct is right, (mode, loss)


def test_what_separate_tuning_makes_counts_as_far_as_rounding_explains_it():
    far = track(1.0, 1.0, 2.2)  # 0.09 off in the state
    for rounding, right in ((0.03, True), (0.003, False), (0.0, False)):
        known = reference("uncaptured", Runs(far), rounding=Gap(state=rounding))
        verdict = judge("pygraph", far, known)
        assert verdict.bit_equal_to_uncaptured is True and verdict.tuning_distance is not None
        assert verdict.tuning_distance["state"] == pytest.approx(0.2 / math.sqrt(5))
        assert verdict.correct is right, verdict.reason
        # So do the kernels of reduce-overhead.
        known.reduce_overhead = Gap()
        assert judge("reduce-overhead", far, known).correct is right
        assert known.reduce_overhead.state == pytest.approx(0.2 / math.sqrt(5))


def test_torchs_modes_may_draw_other_random_numbers_but_pygraph_may_not():
    other = track(1.1, 1.0, 2.5)
    verdict = judge("reduce-overhead", other, reference(), random=True)
    assert verdict.correct and verdict.other_random_numbers
    assert not judge("reduce-overhead", other, reference(), random=False).correct
    assert not judge("pygraph", other, reference(), random=True).correct
    assert not judge("pygraph", other, reference("uncaptured", Runs(other)), random=True).correct
    near = reference(eager=track(1.0, 1.0, 2.0), loss_tolerance=0.05, gradient_tolerance=1.0)
    assert not judge("reduce-overhead", other, near, random=True).correct


def test_what_was_served_is_told():
    assert Served(graphs=2, calls=6, replays=6).problem is None
    assert Served(graphs=0, calls=0).problem is None  # it runs without graphs, and says so
    found = Result("m", 1, "pygraph", correct=True)
    found.take_verdict(judge("pygraph", track(1.0, 1.0, 2.0), reference(served=Served(2, 6, 3))))
    targets = evaluate(["m"], [found], [])
    right = next(each for each in targets if each.name == "right, m")
    assert right.met and right.detail == "bits: default's; graphs served 3 of 6 calls"
    found.verdict["bit_equal_to_default"] = found.verdict["bit_equal_to_uncaptured"] = False
    assert bits(found) == "within spread"
    found.verdict = {}
    assert bits(found) is None


def test_a_nudge_is_as_small_as_rounding_and_not_in_the_state():
    bench = Bench(
        TINY["ResNet-50"].make_program(CPU.torch),
        [TINY["ResNet-50"].make_inputs(n, CPU.torch) for n in range(2)],
        CPU,
        workload=TINY["ResNet-50"],
    )
    trainer = begin(modes.MODES["eager"], bench)
    start = copied(bench.model)
    first = take(trainer, start, bench.inputs)
    gaps = []
    for unit in (0.0, 2.0**-18, 2.0**-9):
        nudged = take_nudged(trainer, start, bench.inputs, unit, 1)
        gaps.append(gap(nudged, first, start))
    assert gaps[0] == Gap()
    assert 0.0 < gaps[1].gradients < gaps[2].gradients < 0.1
    assert 0.0 < gaps[1].state < gaps[2].state < 1.0
    for group in trainer.optimizer.param_groups:
        group["lr"] = 0.0  # no step moves a weight: the nudge alone would be left
    nudged = take_nudged(trainer, start, bench.inputs, 2.0**-9, 1)
    for name, weight in bench.model.named_parameters():
        torch.testing.assert_close(nudged.state[name], weight.detach(), rtol=1e-6, atol=1e-7)
