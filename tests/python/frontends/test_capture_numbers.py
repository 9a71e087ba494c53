"""pygraph.capture: Python numbers that differ from call to call, beside the same calls as they
are."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from callable_support import Program, agree, snapshot, state_of
from places import Place
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

import pygraph
from pygraph import _engine
from pygraph._engine import PlaceKind
from pygraph.capturing.host_numbers import HostNumbers
from pygraph.capturing.tensors import same_bits
from pygraph.frontends.callable.traced import Tape
from pygraph.reporting import GRAPHED, REPLACED, GraphReport

#: Calls before the first replay with other numbers, where each call has another one: one to learn
#: the code, two that are watched, one that links.
BEFORE = 4


def varied(call: int) -> float:
    return 0.3 + call / 100


def proven() -> int:
    """Programs that were made."""
    return sum(graph.proofs for graph in pygraph.report().graphs)


def replays() -> int:
    return sum(graph.replays for graph in pygraph.report().graphs)


def with_numbers() -> GraphReport:
    """The graph that replays calls with any numbers."""
    (graph,) = [each for each in pygraph.report().graphs if each.host_numbers and each.replays]
    assert graph.state == GRAPHED, str(pygraph.report())
    return graph


def reasons() -> str:
    return "; ".join(filter(None, (graph.reason for graph in pygraph.report().graphs)))


def result_or_error(function: Callable[..., Any], arguments: Iterable[Any]) -> list[Any]:
    try:
        return snapshot(function(*arguments))
    except (RuntimeError, ValueError, ArithmeticError) as error:
        return [str(error)]


def compare(place: Place, step: Callable[..., Any], numbers: Iterable[Any]) -> None:
    """Calls `step(x, number)` as it is and captured, for each of the numbers."""
    captured = pygraph.capture(step, device=place.name)
    with torch.no_grad():
        for call, number in enumerate(numbers):
            x = place.randn(5)
            found = result_or_error(captured, (x, number))
            expected = result_or_error(step, (x, number))
            for left, right in zip(found, expected, strict=True):
                assert same_bits(left, right), (call, number, left, right)


USES: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "product": lambda x, s: x * s,
    "sum": lambda x, s: x + s,
    "alpha": lambda x, s: torch.add(x, x, alpha=s),
    "difference of a product": lambda x, s: x * (1 - s * 0.1),
    "negation": lambda x, s: x * -s,
    "square": lambda x, s: x * s**2,
    "root": lambda x, s: x * s**0.5,
    "power of it": lambda x, s: x * 0.9**s,
    "quotient": lambda x, s: x * (2 / s) + s / 3,
    "by the tensor": lambda x, s: s * x - s / (x + 10),
    "with itself": lambda x, s: x * (s * s + s) + s * (s - 2),
    "sum of a list": lambda x, s: x * sum([s, s, 0.25]),
    "copied": lambda x, s: x * copy.deepcopy([s])[0] + copy.copy(s),
    "compared with zero": lambda x, s: x * s if s != 0 and s > 0 and s else x,
    "compared with others that it never is": lambda x, s: x if s == 2 or s == math.inf else x * s,
    "the same twice": lambda x, s: x * (s * 1.0) + (s + 0.0) * -1 * -1,
}


@pytest.mark.parametrize("use", USES)
def test_a_number_that_feeds_computation_needs_one_program(place: Place, use: str) -> None:
    def build() -> Program:
        return Program(USES[use], lambda: [], lambda call: (place.randn(5), varied(call)))

    agree(place, build, calls=12, replays=12 - BEFORE)
    assert proven() == 1
    assert with_numbers().host_numbers == ["argument[1]"]
    assert "1 host number: argument[1]" in str(pygraph.report())


def test_a_number_in_a_row_is_a_value_until_it_changes(place: Place) -> None:
    compare(place, lambda x, s: x * s, [0.3] * 6 + [0.4] * 6 + [varied(n) for n in range(6)])
    assert proven() == 2
    assert replays() == 18 - 3 - 2
    assert [graph.state for graph in pygraph.report().graphs] == [REPLACED, GRAPHED]


class Slotted:
    __slots__ = ("rate",)

    def __init__(self, rate: float) -> None:
        self.rate = rate


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.rate = 0.3
        self.settings: dict[str, Any] = {"scale": [0.7, "unused"]}
        self.slotted = Slotted(0.6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.rate + self.settings["scale"][0] * self.slotted.rate


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    shift: float
    more: dict[str, Any]


FACTOR = 0.4


def test_numbers_are_found_where_they_are_kept(place: Place) -> None:
    global FACTOR
    model = Scaled().to(place.torch)

    @pygraph.capture(device=place.name)
    def step(batch: Batch, *, bias: float) -> torch.Tensor:
        return (model(batch.x) + batch.shift - batch.more["deep"]["number"]) * FACTOR + bias

    try:
        with torch.no_grad():
            for call in range(12):
                model.rate = 0.3 + call / 300
                model.settings["scale"][0] = 0.7 + call / 200
                model.slotted.rate = 0.6 + call / 400
                FACTOR = 0.4 - call / 500
                deep = {"deep": {"number": -0.1 - call / 600}}
                batch = Batch(place.randn(2, 5), 0.1 + call / 1000, deep)
                before = [model.rate, model.settings["scale"][0], model.slotted.rate, FACTOR]
                found = step(batch, bias=1.1 + call)
                assert same_bits(found, step.function(batch, bias=1.1 + call)), call
                after = [model.rate, model.settings["scale"][0], model.slotted.rate, FACTOR]
                assert all(map(operator.is_, before, after))
    finally:
        FACTOR = 0.4
    graph = with_numbers()
    assert graph.replays == 12 - BEFORE
    assert proven() == 1
    assert sorted(name.rpartition("model")[2] for name in graph.host_numbers) == [
        ".rate", ".settings['scale'][0]", ".slotted.rate", "FACTOR", "argument['bias']",
        "argument[0].more['deep']['number']", "argument[0].shift",
    ]  # fmt: skip


def test_numbers_of_the_same_value_are_told_apart(place: Place) -> None:
    def step(x: torch.Tensor, first: float, second: float) -> torch.Tensor:
        return x * first + second

    def inputs(call: int) -> Any:  # the same in the call that links
        first = varied(call)
        return place.randn(5), first, first if call < 6 else 0.777 - first

    agree(place, lambda: Program(step, lambda: [], inputs), calls=12, replays=12 - BEFORE)
    assert len(with_numbers().host_numbers) == 2


VALUES: dict[str, list[float]] = {
    "zeros": [0.3, 0.31, 0.32, 0.33, 0.0, 0.34, 0.0, 0.35, -0.0, 0.0, -0.0],
    "negative": [-0.3, -0.31, -0.32, -0.33, -0.34, 0.3, 0.31, 0.32, 0.33, -0.5, -0.36],
    "not finite": [0.3, 0.31, 0.32, math.inf, math.nan, 0.34, -math.inf, math.nan, math.inf],
    "tiny": [0.3, 0.31, 0.32, 0.33, 1e-40, 1e-300, 5e-324, 0.9999999, 0.1],
    "beyond one": [0.3, 0.31, 0.32, 0.33, 1.0, 1.5, 2.5, 1e30, 3.3, 7.25, 0.7, 5.6, 5.7],
    "remarkable": [0.5, 1.0, 2.0, 1.0, 0.5, 0.5, 0.5, 1.0, -1.0, -1.0, 3.0],
    "too large": [5.5, 5.625, 6.3, 7.7, 1e300, 8.8, 1e39, 9.9],
}


@pytest.mark.parametrize("kind", VALUES)
def test_unusual_numbers_are_right(place: Place, kind: str) -> None:
    def step(x: torch.Tensor, s: float) -> Any:
        return x * s, torch.pow(x.abs(), s), x + (s * 3 - 1), x * (s * s)

    compare(place, step, VALUES[kind] * 3)


def test_numbers_that_share_a_program_lie_on_one_side(place: Place) -> None:
    """Of 0 and of 1: comparisons with these are the same for all of them."""

    def step(x: torch.Tensor, s: float) -> torch.Tensor:
        y = x * s if s > 0 else x - s
        return y * math.copysign(2.0, s) if abs(s) < 1 or s >= 1 else y

    compare(place, step, [varied(n) * sign for n in range(8) for sign in (1, -1)])


DECIDING: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "compared": lambda x, s: x * s if s > 0.34 else x + s,
    "compared when computed": lambda x, s: x * s if 1 - s < 0.66 else x + s,
    "the larger one": lambda x, s: x * max(s, 0.34),
    "in a list": lambda x, s: x * s if s in (0.31, 0.33) else x + s,
    "rounded": lambda x, s: x * round(s * 30),
    "divided without rest": lambda x, s: x * (s // 0.02),
    "rest": lambda x, s: x * (s % 0.02),
    "floor": lambda x, s: x * math.floor(s * 50),
    "as an int": lambda x, s: x * int(s * 50),
    "as a float": lambda x, s: x * 2 if float(s) > 0.34 else x,
    "a key": lambda x, s: x * {0.31: 2.0, 0.33: 3.0}.get(s, 4.0),
    "a text": lambda x, s: x * len(f"{s}"),
    "computed to be zero": lambda x, s: x * s if s - 0.35 else x + 1,
}


@pytest.mark.parametrize("use", DECIDING)
def test_a_number_that_decides_keeps_a_program_for_each_value(place: Place, use: str) -> None:
    values = [varied(call % 4) for call in range(24)] + [varied(call % 8) for call in range(48)]
    compare(place, DECIDING[use], values)
    assert "argument[1] decides what is computed" in reasons()
    assert proven() == 8
    assert not any(each.programs and each.host_numbers for each in pygraph.report().graphs)


def test_what_decides_stays_a_value_and_others_vary(place: Place) -> None:
    @pygraph.capture(device=place.name)
    def step(x: torch.Tensor, scale: float, threshold: float) -> torch.Tensor:
        return x * scale if threshold > 0.5 else x - scale

    for call in range(40):
        x, scale, threshold = place.randn(5), varied(call), (0.4, 0.6)[call % 4 // 2]
        assert same_bits(step(x, scale, threshold), step.function(x, scale, threshold)), call
    report = pygraph.report()
    assert proven() == 2
    assert replays() >= 26, str(report)
    assert [each.host_numbers for each in report.graphs if each.programs] == [["argument[1]"]] * 2


def test_a_number_that_nobody_saw_being_computed_with_is_right(place: Place) -> None:
    compare(place, lambda x, s: x * math.sqrt(s), [varied(n % 3) for n in range(24)])
    assert "with other numbers a proof failed" in reasons()
    assert proven() == 3


def test_a_number_that_decides_where_nobody_saw_it_is_right(place: Place) -> None:
    def step(x: torch.Tensor, s: float) -> torch.Tensor:
        return x * (s * 2) if math.sqrt(s) > 0.5 else x * (s * 3)

    compare(place, step, [varied(n % 3) for n in range(24)])
    assert "two captures of the same call compute differently with its numbers" in reasons()
    assert proven() == 3


def test_a_number_of_which_almost_the_same_is_computed_is_right(place: Place) -> None:
    compare(place, lambda x, s: x.double() * (1 - s * 1e-12), [varied(n % 3) for n in range(24)])
    assert "it computes almost the same of different numbers" in reasons()
    assert proven() == 3


def test_a_number_that_changes_a_shape_is_right(place: Place) -> None:
    compare(place, lambda x, n: x[:2].repeat(n) * 2, [5 + n % 3 for n in range(24)])
    assert proven() == 3


def test_a_number_that_fills_memory_is_right(place: Place) -> None:
    compare(place, lambda x, s: x + torch.full_like(x, s), [varied(n) for n in range(12)])


def test_an_operator_that_refuses_a_number_is_right(place: Place) -> None:
    torch.manual_seed(0)
    compare(place, lambda x, p: F.dropout(x, p) * 0, [0.3, 0.31, 0.32, 0.33, 1.5, 0.34, 1.6, 1.0])


def test_an_int_argument_feeds_computation(place: Place) -> None:
    def step(x: torch.Tensor, position: int) -> torch.Tensor:
        return x * position + (position * 0.5 - 1)

    def build() -> Program:
        return Program(step, lambda: [], lambda call: (place.randn(5), 10 + call))

    agree(place, build, calls=12, replays=12 - BEFORE)
    assert proven() == 1
    assert with_numbers().host_numbers == ["argument[1]"]


def test_ints_that_are_no_arguments_and_bools_stay_values(place: Place) -> None:
    settings: dict[str, Any] = {"count": 10}

    @pygraph.capture(device=place.name)
    def step(x: torch.Tensor, negative: bool) -> torch.Tensor:
        return -x * settings["count"] if negative else x * settings["count"]

    for call in range(24):
        settings["count"] = 10 + call % 2
        x, negative = place.randn(5), bool(call // 2 % 2)
        assert same_bits(step(x, negative), step.function(x, negative))
    assert proven() == 4
    assert not any(graph.host_numbers for graph in pygraph.report().graphs)


def test_ints_that_vary_make_no_signatures(place: Place) -> None:
    """As sizes do: a signature that waits for a program waits for calls with any of them."""
    graph = place.graphed(lambda arguments: arguments, numbers=HostNumbers((1,)))
    x = place.randn(5)
    assert graph._signature([x, 10, 3]) is graph._signature([x, 11, 3])
    assert graph._signature([x, 10, 3]) is not graph._signature([x, 10, 4])


@pytest.mark.parametrize("position", [2**31 - 1, 2**31, 2**53 + 1, 2**63 - 2, 2**70, -(2**40)])
def test_large_ints_are_right(place: Place, position: int) -> None:
    values = [10, 11, 12, 13, 14, 15, position, position + 1, position] * 2
    compare(place, lambda x, n: (x.double() * n, x * (n / 3.0)), values)


def test_a_number_that_the_callable_changes_stays_a_value(place: Place) -> None:
    state = {"rate": 0.9, "last": 0.1}

    @pygraph.capture(device=place.name)
    def step(x: torch.Tensor, s: float) -> torch.Tensor:
        state["rate"] *= 0.99
        state["last"] = s
        return x * state["rate"]

    plain = copy.deepcopy(state)
    for call in range(12):
        plain["rate"] *= 0.99
        x = place.randn(5)
        assert same_bits(step(x, varied(call)), x * plain["rate"])
        assert state["last"] == varied(call)


def test_a_number_in_an_object_that_allows_no_change_stays_a_value(place: Place) -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Settings:
        rate: float

    compare(place, lambda x, s: x * s.rate, [Settings(varied(n % 3)) for n in range(24)])
    assert "argument[1].rate cannot be given another value" in reasons()
    assert proven() == 3


def test_a_number_that_is_returned_is_right(place: Place) -> None:
    captured = pygraph.capture(lambda x, s: (x * s, s, s * 2), device=place.name)
    for call in range(24):
        x, s = place.randn(5), varied(call % 4)
        product, same, twice = captured(x, s)
        assert same_bits(product, x * s)
        assert (same, twice) == (s, s * 2)
        assert type(same) is type(twice) is float


@pytest.mark.parametrize("least", [0.44, 0.5])
def test_an_error_under_other_numbers_leaves_no_trace(place: Place, least: float) -> None:
    """The proof, or the probe, runs the callable with a number that the call does not have."""
    counted = place.randn(5).zero_()
    state: dict[str, Any] = {"held": counted}

    @pygraph.capture(device=place.name)
    def step(x: torch.Tensor, s: float) -> torch.Tensor:
        state["held"].add_(1)
        state["new"] = x
        if math.sqrt(s) < least:
            raise ValueError("too small")
        del state["new"]
        return x * s

    for call in range(12):
        x = place.randn(5)
        assert same_bits(step(x, varied(call)), x * varied(call))
        assert counted.tolist() == [call + 1] * 5
        assert list(state) == ["held"]
    assert "with other numbers it raises ValueError('too small')" in reasons()


# ------------------------------------------------------------------------------ training


class Training:
    """Schedules of an optimizer, beside a step that may be captured."""

    def __init__(self, place: Place, optimizer: str, schedule: str) -> None:
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(place.torch)
        self.optimizer = OPTIMIZERS[optimizer](self.net.parameters())
        self.schedule = SCHEDULES[schedule](self.optimizer)
        self._place = place

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def program(self) -> Program:
        return Program(
            self.step,
            lambda: [*state_of(self.net, self.optimizer), self.optimizer.param_groups[0]["lr"]],
            lambda call: (self._place.randn(4, 8), self._place.randn(4, 8)),
            between=lambda call: self.schedule.step(),
        )


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd one by one": functools.partial(
        torch.optim.SGD, lr=0.1, momentum=0.9, foreach=False, weight_decay=0.01
    ),
    "sgd foreach": functools.partial(
        torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True, nesterov=True
    ),
    "sgd fused": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "adamw fused": functools.partial(torch.optim.AdamW, lr=0.1, fused=True),
    "adam fused": functools.partial(torch.optim.Adam, lr=0.1, fused=True, weight_decay=0.01),
}
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "steps": lambda optimizer: lr_scheduler.StepLR(optimizer, 6, 0.7),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 40),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(
        optimizer, 0.2, total_steps=40, cycle_momentum="betas" not in optimizer.defaults
    ),
    "function": lambda optimizer: lr_scheduler.LambdaLR(
        optimizer, lambda call: min(1.0, (call + 1) / 7) * 0.97**call
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_schedules(place: Place, optimizer: str, schedule: str) -> None:
    def build() -> Program:
        return Training(place, optimizer, schedule).program()

    # The rate of "steps" is the same at first, which gets a program.
    report = agree(place, build, calls=30, replays=30 - (5 if schedule == "steps" else BEFORE))
    assert proven() <= 3, str(pygraph.report())
    assert any("['lr']" in name for name in with_numbers().host_numbers)
    assert report.proof == "bit-equal"


def test_parameter_groups_have_rates_of_their_own(place: Place) -> None:
    def build() -> Program:
        first, second = nn.Linear(8, 8).to(place.torch), nn.Linear(8, 8).to(place.torch)
        groups = [{"params": first.parameters()}, {"params": second.parameters()}]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        rates = [lambda call: 0.9**call, lambda call: 0.8**call]
        schedule = lr_scheduler.LambdaLR(optimizer, rates)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = second(torch.tanh(first(x))).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return Program(
            step,
            lambda: state_of(first, second),
            lambda call: (place.randn(4, 8),),
            between=lambda call: schedule.step(),
        )

    agree(place, build, calls=20, replays=20 - BEFORE)
    assert len(with_numbers().host_numbers) == 2


# ------------------------------------------------------------------------------ the parts


def test_a_traced_number_is_the_same_number() -> None:
    """With the bits that Python computes, and steps that compute the same."""
    for value in (0.3, -0.7, 5.625, 1e-80, -1e80):
        tape = Tape()
        s = tape.number(0, value)
        computed = [
            s + 2, 2 + s, s - 0.1, 0.1 - s, s * 3, 3 * s, s / 7, 7 / s, s**2, s**3, s**-1,
            -s, +s, s * s, (s + s) / (s - 1), 1 - s * 0.01, abs(value) ** (1 / s if s > 1 else 2),
        ]  # fmt: skip
        plain = value
        expected = [
            plain + 2, 2 + plain, plain - 0.1, 0.1 - plain, plain * 3, 3 * plain, plain / 7,
            7 / plain, plain**2, plain**3, plain**-1, -plain, +plain, plain * plain,
            (plain + plain) / (plain - 1), 1 - plain * 0.01,
            abs(value) ** (1 / plain if plain > 1 else 2),
        ]  # fmt: skip
        assert [float.hex(each) for each in computed] == [each.hex() for each in expected]
        assert not tape.decided
        for each in tape.computed:
            source = each.source
            found = value if isinstance(source, int) else source.evaluate({0: value})
            assert found.hex() == float(each.value).hex()


def test_a_place_of_a_number_admits_what_may_stand_in() -> None:
    def admitted(captured: Any, given: Any) -> bool:
        function = _engine.CapturedFunction(lambda *_: "missed", lambda *_: None)
        place = _engine.Place
        function.add_as_it_is(
            nodes=[
                place(PlaceKind.TUPLE, children=1, type=tuple),
                place(PlaceKind.NUMBER, object=captured),
                place(PlaceKind.DICT, type=dict),
            ],
            roots=(),
            modes=_engine.ModeGuard([]),
            function=lambda *_: "served",
            owner=function,
        )
        served = _engine.EngineCalled(function)(given) == "served"
        assert served is _engine.may_stand_in(captured, given)
        return served

    class Own(float):
        pass

    for other in (0.3, 1e-300, 0.999, 0.25):
        assert admitted(0.7, other), other
    for other in (0.0, -0.0, 0.5, 1.0, 1.5, -0.3, math.nan, math.inf, 3, None, "0.3", Own(0.3)):
        assert not admitted(0.7, other), other
    for other in (1.1, 1e300, 4.5, 1.7976931348623157e308):
        assert admitted(5.5, other), other
    for other in (2.0, 3.5, 4.0, 0.3, -5.5, 7, math.inf):
        assert not admitted(5.5, other), other
    for other in (5, 2**63 - 1):
        assert admitted(10, other), other
    for other in (0, 1, 4, -5, True, 2**63, 10.5):
        assert not admitted(10, other), other
    assert admitted(-10, -(2**63))
    assert not admitted(-10, -(2**63) - 1)
    assert not admitted(0.5, 0.3), "what was captured must be unremarkable, too"


def test_a_place_of_a_number_says_which() -> None:
    function = _engine.CapturedFunction(lambda *_: None, lambda *_: None)
    with pytest.raises(ValueError, match="does not say what must be there"):
        function.add_as_it_is(
            nodes=[_engine.Place(PlaceKind.NUMBER)],
            roots=(),
            modes=_engine.ModeGuard([]),
            function=lambda: None,
            owner=function,
        )
