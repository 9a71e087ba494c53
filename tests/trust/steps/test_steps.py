"""The CI run of random whole steps on the twin, and the test of that test: captures that are wrong
are found.

The long run is ../long_run.py, with --device twin-steps.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch

from pygraph.runtime import notes
from trust import backends, fleet
from trust.compare import Mismatch
from trust.steps import check, strategies
from trust.steps.programs import StepCall, WholeStep
from trust.steps.tally import StepTally

#: Of programs that nothing keeps from it, at least so many are replayed...
REPLAYABLE_SHARE = 0.9
#: ...and of all calls.
REPLAYED_SHARE = 0.3
#: A feature of so many programs that may be replayed was, in one of them.
OFTEN = 6

Function = Callable[..., Any]


@pytest.mark.slow
def test_random_steps_on_the_twin(capsys: pytest.CaptureFixture[str]) -> None:
    profile = fleet.PROFILES["steps"]
    tally = fleet.run("twin-steps", profile, workers=2, chunk_timeout_s=1800)
    with capsys.disabled():
        print("\n" + tally.summary())
    assert isinstance(tally, StepTally)
    assert not tally.failures
    assert tally.programs >= profile.programs
    assert tally.replayable_share() >= REPLAYABLE_SHARE
    assert tally.replayed_share() >= REPLAYED_SHARE
    assert tally.never_replayed(OFTEN) == []


# ------------------------------------------------------------- captures that are wrong on purpose


def model_of(step: Any) -> torch.nn.Module:
    """The model that a step trains, wherever it has it."""
    if isinstance(step, functools.partial):
        return model_of(step.func)
    if isinstance(step, types.MethodType):
        return step.__self__.net
    if not isinstance(step, types.FunctionType):
        return step.net
    cells = dict(zip(step.__code__.co_freevars, step.__closure__ or (), strict=True))
    return cells["net"].cell_contents if "net" in cells else step.__globals__["net"]


def from_the_third_call(change: Callable[..., Any]) -> Callable[[Function], Function]:
    """`change(step, positional, named)` serves later calls."""

    def capture(step: Function) -> Function:
        calls = [0]

        def call(*positional: Any, **named: Any) -> Any:
            calls[0] += 1
            if calls[0] < 3:
                return step(*positional, **named)
            return change(step, positional, named)

        return call

    capture.__name__ = change.__name__
    return capture


@from_the_third_call
def twice(step: Function, positional: Any, named: Any) -> Any:
    step(*positional, **named)
    return step(*positional, **named)


@from_the_third_call
def no_effect(step: Function, positional: Any, named: Any) -> Any:
    """The model is as it was before."""
    before = {name: value.clone() for name, value in model_of(step).state_dict().items()}
    result = step(*positional, **named)
    model_of(step).load_state_dict(before)
    return result


@from_the_third_call
def lost_gradients(step: Function, positional: Any, named: Any) -> Any:
    """The gradients are those of before."""
    parameters = list(model_of(step).parameters())
    before = [each.grad for each in parameters]
    result = step(*positional, **named)
    for parameter, gradient in zip(parameters, before, strict=True):
        parameter.grad = gradient
    return result


@from_the_third_call
def one_bit(step: Function, positional: Any, named: Any) -> Any:
    """Of a weight."""
    result = step(*positional, **named)
    weight = next(model_of(step).parameters())
    weight.data.view(torch.int32).view(-1)[0].bitwise_xor_(1)
    return result


@from_the_third_call
def other_objects(step: Function, positional: Any, named: Any) -> Any:
    """Gradients are copies of themselves, where calls add to them."""
    result = step(*positional, **named)
    for parameter in model_of(step).parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad.clone()
    return result


@from_the_third_call
def another_random_number(step: Function, positional: Any, named: Any) -> Any:
    torch.rand(1)
    return step(*positional, **named)


@from_the_third_call
def silence(step: Function, positional: Any, named: Any) -> Any:
    """Nothing is raised."""
    try:
        return step(*positional, **named)
    except Exception:
        return None


def stale(step: Function) -> Function:
    """The tensors and numbers of the second call are used for ever."""
    seen: list[Any] = []

    def call(*positional: Any, **named: Any) -> Any:
        seen.append((positional, named))
        positional, named = seen[min(len(seen) - 1, 1)]
        return step(*positional, **named)

    return call


def reused_result(step: Function) -> Function:
    """Results stand in the same memory each time."""
    memory: dict[Any, torch.Tensor] = {}

    def kept(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter):
            return value
        key = value.shape, value.dtype, value.stride(), value.requires_grad
        with torch.no_grad():
            return memory.setdefault(key, torch.empty_like(value.detach())).copy_(value)

    def call(*positional: Any, **named: Any) -> Any:
        return torch.utils._pytree.tree_map(kept, step(*positional, **named))

    return call


@pytest.mark.parametrize(
    "wrong",
    [
        *(twice, no_effect, lost_gradients, one_bit, other_objects, another_random_number),
        *(silence, stale, reused_result),
    ],
)
def test_a_wrong_capture_is_found(wrong: Callable[[Function], Function]) -> None:
    way = check.Way("cpu", wrong, ours=False)

    @hypothesis.seed(1)
    @hypothesis.settings(
        max_examples=240,  # few raise anything
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(strategies.steps())
    def every(program: WholeStep) -> None:
        check.run(program, way)

    with pytest.raises(Mismatch):
        every()


def step(**changes: Any) -> WholeStep:
    program = WholeStep(
        holder="closure",
        state=(("net", "nn.Linear(4, 3)"), ("steps", "torch.optim.SGD($net.parameters(), 0.1)")),
        setup=(),
        signature="x",
        body=("$steps.zero_grad()", "loss = $net(x).sum()", "loss.backward()", "$steps.step()"),
        calls=tuple(StepCall(f"t({seed}, 2, 4)") for seed in range(6)),
    )
    return type(program)(**{**vars(program), **changes})


@pytest.mark.parametrize("holder", ["closure", "object", "globals", "module", "partial"])
def test_a_right_step_is_replayed(holder: str) -> None:
    outcome = check.run(step(holder=holder), check.way("twin"))
    assert outcome.calls == 6
    assert outcome.replays == 3
    assert outcome.reasons == []


def test_what_others_have_reported_is_not_a_steps() -> None:
    notes.note("an event of another program")
    assert check.run(step(), check.way("twin")).reasons == []


def test_a_step_that_raises_must_raise_the_same() -> None:
    raising = step(body=("raise ValueError('one')",))
    assert check.run(raising, check.way("twin")).raised == 6


LATE = (
    "$waiting.append(result)",
    "if len($waiting) > 1: $waiting.pop(0).backward()",
    "$steps.step()",
    "$steps.zero_grad(set_to_none=False)",
)


def test_how_far_a_backward_that_raises_has_come_is_not_compared() -> None:
    """Its weights were written since; the arguments of its call come again."""
    given = [f"t({seed}, 3, 4), t({seed + 60}, 3).requires_grad_()" for seed in range(8)]
    late = step(
        state=(
            ("net", "nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))"),
            ("steps", "torch.optim.SGD($net.parameters(), 0.1)"),
            ("waiting", "[]"),
        ),
        signature="x, soft",
        body=("return ($net(x) * soft).square().mean()",),
        calls=tuple(
            StepCall(each, again=3 if number == 5 else None, behind=LATE)
            for number, each in enumerate(given)
        ),
    )
    assert check.run(late, check.way("twin")).replays >= 4


def test_nor_is_it_in_gradients_that_were_kept() -> None:
    """The last layer's has been accumulated when the norm finds that its weight was written."""
    late = step(
        state=(
            ("net", "nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3))"),
            ("steps", "torch.optim.SGD($net.parameters(), 0.1)"),
            ("waiting", "[]"),
        ),
        signature="x",
        body=(
            "with torch.autocast('cpu', dtype=torch.bfloat16):",
            "    return $net(x).float().square().mean()",
        ),
        calls=tuple(StepCall(f"t({seed}, 3, 4)", behind=LATE, kept=True) for seed in range(8)),
    )
    assert check.run(late, check.way("twin")).replays >= 4


@pytest.mark.parametrize("foreach", [False, True])
def test_a_write_that_torch_does_not_count_ends_the_comparison(foreach: bool) -> None:
    """The late backward of a call raises, but for one whose weights a watched call has written."""
    late = step(
        state=(
            ("net", "nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))"),
            ("inner", f"torch.optim.SGD($net.parameters(), 0.1, foreach={foreach})"),
            ("steps", "torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)"),
            ("waiting", "[]"),
        ),
        signature="x",
        body=(
            "$net(x).square().mean().backward()",
            "$inner.step()",
            "return $net(x).square().mean()",
        ),
        calls=tuple(StepCall(f"t({seed}, 3, 4)", behind=LATE) for seed in range(6)),
    )
    assert check.run(late, check.way("twin")).calls == (2 if foreach else 6)


def test_a_reproducer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "share_memory_eagerly", lambda in_pieces: None)
    text = fleet.reproducer(step(), "eager-steps", "what was wrong")
    assert "# what was wrong" in text
    space: dict[str, Any] = {}
    exec(compile(text.replace("print(", "outcome = ("), "reproducer", "exec"), space)
    assert space["outcome"].calls == 6
