"""What the paper's benchmark finds right and wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from paper_nets import CPU, NET, TRAINED, bench_of  # noqa: E402

from benchmarks.harness.compare import relative_error as distance  # noqa: E402
from benchmarks.paper import run  # noqa: E402
from benchmarks.paper.check import (  # noqa: E402
    Apart,
    Outcome,
    Reference,
    Verdict,
    _against_eager,
    apart,
    gradient_distance,
    judge,
    same_bits,
)
from benchmarks.paper.modes import Iteration, loss_of  # noqa: E402
from benchmarks.paper.record import Result  # noqa: E402
from benchmarks.paper.workloads.workload import Workload  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread", "fresh_dynamo")


class Off(Iteration):
    """A mode that is wrong in one way."""

    wrong: Any = None

    def run(self, inputs: Any) -> Any:
        return self.wrong(super().run(inputs), self)


def judged(workload: Workload, wrong: Any, mode: str = "default") -> Any:
    with torch.set_grad_enabled(workload.training):
        bench = bench_of(workload, "eager", "default")
        inputs = [workload.make_inputs(n, CPU.torch) for n in range(3)]
        reference = Reference(inputs)
        run._check(Result("NET", 4, "eager"), reference, bench)
        if mode != "default":
            assert judge("default", reference, bench).correct
        plain = bench.runners["eager"]
        off = Off(mode, plain.step, parameters=plain.parameters, complete=plain.complete)
        off.wrong = wrong
        bench.runners[mode] = off
        return judge(mode, reference, bench)


def test_a_right_mode_is_right() -> None:
    verdict = judged(NET, lambda out, _: out, "reduce-overhead")
    assert verdict.correct and verdict.fresh and verdict.bit_equal_to_default
    assert verdict.relative_error == 0.0


def test_results_that_are_off_are_found() -> None:
    verdict = judged(NET, lambda out, _: (out[0] * 1.01,))
    assert not verdict.correct and "results: relative error 1.00e-02" in verdict.reason


def test_code_that_does_not_repeat_itself_is_told() -> None:
    calls: list[Any] = []

    def worse_and_worse(out: Any, _: Iteration) -> Any:
        calls.append(out)
        return (out[0] * (1 + len(calls)),)

    verdict = judged(NET, worse_and_worse)
    assert not verdict.correct and verdict.reason.endswith("; two runs of it are 2.50e+00 apart")
    steady = judged(NET, lambda out, _: (out[0] * 1.01,))
    assert "two runs" not in steady.reason
    other, eager = Verdict(), Reference([], [Outcome(())], Apart(0.1, 0.1), default_spread=2.0)
    _against_eager(other, Apart(0.5), eager, "reduce-overhead")
    assert other.reason is not None and "two runs" not in other.reason


def test_gradients_that_are_off_are_found() -> None:
    def add(out: Any, iteration: Iteration) -> Any:
        iteration.parameters[0].grad += 0.1
        return out

    verdict = judged(TRAINED, add)
    assert not verdict.correct and "gradients" in verdict.reason


def test_in_training_results_are_compared_and_not_their_mean() -> None:
    def shift(out: Any, iteration: Iteration) -> Any:
        if not iteration.complete[0]:
            return out
        return (out[0] + torch.tensor([1.0, -1.0, 0.0]),)

    verdict = judged(TRAINED, shift)
    assert not verdict.correct and verdict.reason.startswith("results: relative error")


def test_a_gradient_that_is_missing_is_found() -> None:
    def lose(out: Any, iteration: Iteration) -> Any:
        iteration.parameters[0].grad = None
        return out

    verdict = judged(TRAINED, lose)
    assert not verdict.correct and verdict.gradient_error > 0.1


def test_a_stale_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    first: list[Any] = []

    def stale(out: Any, _: Iteration) -> Any:
        first.append(out)
        return first[0]

    # Where all inputs lie within the tolerance, only the comparison with others tells.
    monkeypatch.setitem(run.judge.__globals__["LEAST"], False, 100.0)
    verdict = judged(NET, stale, "reduce-overhead")
    assert not verdict.correct and verdict.reason == "a result is that of other inputs"


def test_graphs_that_differ_from_their_code_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        bench = bench_of(NET, "eager", "default", "pygraph")
        reference = Reference([NET.make_inputs(n, CPU.torch) for n in range(3)])
        run._check(Result("NET", 4, "eager"), reference, bench)
        assert judge("pygraph", reference, bench).correct
        ours = bench.runners["pygraph"]
        real, before = ours.step, sum(each.replays for each in ours.reports())

        def step(*inputs: Any) -> Any:
            (out,) = real(*inputs)
            nonlocal before
            replays = sum(each.replays for each in ours.reports())
            # One unit in the last place, only where a graph served the call.
            served, before = replays > before, replays
            return (torch.nextafter(out, out + 1),) if served else (out,)

        ours.step = step
        verdict = judge("pygraph", reference, bench)
    assert not verdict.correct and "off the same code without graphs" in verdict.reason
    assert verdict.bit_equal_to_uncaptured is False


def test_distance() -> None:
    a = torch.arange(5.0)
    assert distance((a,), (a.clone(),)) == 0.0
    assert distance((a * 1.5,), (a,)) == pytest.approx(0.5)
    assert distance((a,), (a, a)) == distance((a,), (a.double(),)) == float("inf")
    nan = torch.tensor([1.0, float("nan")])
    assert distance((nan,), (nan.clone(),)) == 0.0
    assert distance((torch.ones(2),), (nan,)) == float("inf")
    assert distance((torch.ones(2),), (torch.zeros(2),)) == float("inf")


def test_a_missing_gradient_is_one_of_zeros() -> None:
    a, zeros = torch.ones(3), torch.zeros(2)
    assert gradient_distance((a, None, None), (a.clone(), zeros, None)) == 0.0
    assert gradient_distance((a, zeros), (a.clone(), None)) == 0.0
    assert gradient_distance((None, zeros), (a, None)) == pytest.approx(1.0)
    assert same_bits(Outcome((a,), (None, a)), Outcome((a,), (None, a)))
    assert not same_bits(Outcome((a,), (None,)), Outcome((a,), (a,)))


def test_only_what_is_comparable_is_compared_with_eager() -> None:
    workload = dataclasses.replace(NET, compared=lambda outputs: (outputs[0][:, :1],))
    bench = run.build(workload, CPU, tiny=False)
    a, b = Outcome((torch.ones(2, 2),)), Outcome((torch.tensor([[1.0, 5.0], [1.0, 5.0]]),))
    assert apart(bench, a, b, whole=False).outputs == 0.0
    assert apart(bench, a, b).outputs > 0.5


def test_the_loss_is_the_mean_of_the_means() -> None:
    x = torch.tensor([1.0, 3.0], requires_grad=True)
    whole = torch.tensor([7])
    assert loss_of((x * 1, whole, x[:1] * 4)).item() == pytest.approx((2.0 + 4.0) / 2)
    assert loss_of((x.sum(),)).item() == 4.0
