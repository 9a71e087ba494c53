"""The test of the tests: what is wrong on purpose is found, and by the value that it spoils."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from pygraph.reporting import FALLBACK, GRAPHED, WARMING, GraphReport
from training import harness
from training.models import WORKLOADS

Function = Callable[..., Any]
TWIN = harness.TARGETS["twin"]
STEPS = 4


def _outcome(
    name: str, wrong_compile: Function, steps: int = STEPS, reference: Function | None = None
) -> harness.Outcome:
    target = dataclasses.replace(TWIN, candidate=harness.Backend("wrong", wrong_compile))
    if reference is not None:
        target = dataclasses.replace(target, reference=harness.Backend("reference", reference))
    return harness.check(WORKLOADS[name], target, steps)


def _spoiled(outcome: harness.Outcome) -> set[str]:
    return {kind for kind, distance in outcome.comparison.found.items() if distance}


# ------------------------------------------------------------------------------- planted faults


def scaled_gradient(factor: float) -> Function:
    """Multiplies one gradient of every backward graph, a weight's, by nearly one."""

    def forward(graph: Any, inputs: Any) -> Any:
        return make_boxed_func(graph)

    def backward(graph: Any, inputs: Any) -> Any:
        def call(*arguments: Any) -> Any:
            gradients = list(graph(*arguments))
            first = next(i for i, each in enumerate(gradients) if each is not None)
            gradients[first] = gradients[first] * factor
            return gradients

        return make_boxed_func(call)

    backend = aot_autograd(fw_compiler=forward, bw_compiler=backward)
    return lambda module: torch.compile(module, backend=backend)


def draws_once_more(module: Any) -> Function:
    """Its first call leaves the generator elsewhere, as a proof that does not restore it would."""
    compiled = torch.compile(module, backend="aot_eager")
    pending = [True]

    def call(*arguments: Any) -> Any:
        if pending and pending.pop():
            torch.rand(1)
        return compiled(*arguments)

    return call


def runs_twice_at_first(module: Any) -> Function:
    """Its first call runs twice, as a proof that does not restore what it wrote would."""
    compiled = torch.compile(module, backend="aot_eager")
    pending = [True]

    def call(*arguments: Any) -> Any:
        if pending and pending.pop():
            compiled(*arguments)
        return compiled(*arguments)

    return call


def reused_outputs(module: Any) -> Function:
    """Every call's loss lies where the one before lay, as with static outputs. Only what kept a
    loss can see it."""
    memory: list[torch.Tensor] = []

    def call(*arguments: Any) -> Any:
        loss, other = compiled(*arguments)
        if not memory:
            memory.append(torch.empty_like(loss))
        memory[0].copy_(loss.detach())
        return _Replaced.apply(loss, memory[0]), other

    compiled = torch.compile(module, backend="aot_eager")
    return call


class _Replaced(torch.autograd.Function):
    """The values of one tensor, the gradient of another."""

    @staticmethod
    def forward(ctx: Any, gradient_of: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


def test_a_gradient_that_is_slightly_off_is_found() -> None:
    right = _outcome("mlp", scaled_gradient(1.0))
    assert right.comparison.verdict == harness.BIT_EQUAL, str(right.comparison)
    wrong = _outcome("mlp", scaled_gradient(1 + 2**-10))
    assert wrong.comparison.verdict == harness.DIFFERENT
    assert {"losses", "parameters", "optimisers"} <= _spoiled(wrong)
    assert wrong.comparison.first_step == 1  # the loss of step 0 comes before the wrong gradient


def test_a_dropout_mask_from_another_place_of_the_generator_is_found() -> None:
    outcome = _outcome("mlp", draws_once_more)
    assert outcome.comparison.verdict == harness.DIFFERENT
    assert {"losses", "parameters"} <= _spoiled(outcome)


def test_a_generator_that_is_elsewhere_at_the_end_is_found() -> None:
    outcome = _outcome("dlrm", draws_once_more)
    assert outcome.comparison.verdict == harness.DIFFERENT
    assert _spoiled(outcome) == {"random"}


def test_statistics_that_are_updated_twice_are_found() -> None:
    """Nothing of a BatchNorm's training depends on its running statistics."""
    outcome = _outcome("gnn", runs_twice_at_first)
    assert outcome.comparison.verdict == harness.DIFFERENT
    assert _spoiled(outcome) == {"buffers"}


def test_outputs_that_are_overwritten_are_found() -> None:
    once = _outcome("vae", reused_outputs, steps=1)
    assert once.comparison.verdict == harness.BIT_EQUAL, str(once.comparison)
    outcome = _outcome("vae", reused_outputs)
    assert outcome.comparison.verdict == harness.DIFFERENT
    assert _spoiled(outcome) == {"losses"}


# -------------------------------------------------------------------------- verdicts, by invention


def _trace(loss: float, parameter: float = 1.0, graphs: list[GraphReport] | None = None) -> Any:
    def values(value: float) -> dict[str, torch.Tensor]:
        return {"0.0": torch.tensor([value, 100.0])}

    return harness.Trace(
        values(loss), values(parameter), {}, {}, {}, graphs or [], seconds=0.0, trained=True
    )


def test_what_differs_from_a_deterministic_reference_is_different() -> None:
    comparison = harness.compare(_trace(1.0001), [_trace(1.0), _trace(1.0)])
    assert comparison.deterministic
    assert comparison.verdict == harness.DIFFERENT


@pytest.mark.parametrize(
    ("loss", "verdict"),
    [
        (1.1, harness.BIT_EQUAL),
        (1.15, harness.WITHIN_SPREAD),
        (1.29, harness.WITHIN_SPREAD),
        (1.31, harness.DIFFERENT),
        (math.nan, harness.DIFFERENT),
        (math.inf, harness.DIFFERENT),
    ],
)
def test_beside_a_reference_that_varies_by_a_tenth(loss: float, verdict: str) -> None:
    comparison = harness.compare(_trace(loss), [_trace(1.0), _trace(1.1)])
    assert not comparison.deterministic
    assert comparison.verdict == verdict, str(comparison)


def test_a_spread_of_losses_excuses_no_difference_of_parameters() -> None:
    references = [_trace(1.0), _trace(1.1)]
    assert harness.compare(_trace(1.05, 1.01), references).verdict == harness.DIFFERENT


def test_a_reference_that_varies_is_run_once_more() -> None:
    noise = iter(1 + 2.0**-10 * n for n in range(10))

    def noisy(module: Any) -> Any:
        return scaled_gradient(next(noise))(module)

    target = dataclasses.replace(
        TWIN,
        candidate=harness.Backend("noisy", noisy),
        reference=harness.Backend("noisy", noisy),
    )
    outcome = harness.check(WORKLOADS["mlp"], target, 2, repeats=(2, 3))
    assert len(outcome.references) == 3
    assert not outcome.comparison.deterministic
    assert outcome.comparison.verdict in (harness.WITHIN_SPREAD, harness.DIFFERENT)
    assert all(outcome.comparison.spread[kind] for kind in ("losses", "parameters"))


def test_graphs_that_never_served_a_call_do_not_count() -> None:
    graphs = [
        GraphReport("a", GRAPHED, replays=3),
        GraphReport("b", GRAPHED, replays=0),
        GraphReport("c", WARMING),
        GraphReport("d", FALLBACK, reason="no reason", operator="aten.mm"),
    ]
    trace = _trace(1.0, graphs=graphs)
    assert [graph.name for graph in trace.deployed] == ["a"]
    assert trace.fallbacks == {GRAPHED: 1, WARMING: 1, "no reason: aten.mm": 1}
    problem = harness.missing_graphs(WORKLOADS["mlp"], trace)
    assert problem is not None and "no reason" in problem
    trace.graphs.append(GraphReport("e", GRAPHED, replays=1))
    assert harness.missing_graphs(WORKLOADS["mlp"], trace) is None


def test_a_model_that_does_not_change_is_reported() -> None:
    """Its comparison would be green whatever the backend does to its gradients."""

    def without_gradients(module: Any) -> Function:
        compiled = torch.compile(module, backend="aot_eager")
        return lambda *arguments: compiled(*arguments) * 0.0

    outcome = _outcome("dlrm", without_gradients, reference=without_gradients)
    assert outcome.comparison.verdict == harness.BIT_EQUAL
    assert outcome.problems
