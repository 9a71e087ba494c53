"""Graphs that are launched before Dynamo has checked its guards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from places import Place, assert_bits
from speculation_support import check, counts, counts_and_reads, inputs, network, warm

import pygraph
from pygraph.torch_private import dynamo
from pygraph.twin import faults

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_graph_is_launched_before_the_guards(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model)
    warm(compiled, model, place)
    assert counts(compiled) == (0, 0)
    warm(compiled, model, place, 5)
    assert counts(compiled) == (5, 5)
    (graph,) = pygraph.report().graphs
    assert graph.before_guards and graph.past_wrappers and (graph.calls, graph.replays) == (8, 6)


def test_a_forward_too(place: Place) -> None:
    model, same = network(place), network(place)
    compiled = place.compile(model)
    for _ in range(6):
        x = inputs(place)
        for each, function in ((model, compiled), (same, same)):
            each.zero_grad()
            function(x).square().sum().backward()
        ours = [p.grad for p in model.parameters()]
        assert_bits(ours, [p.grad for p in same.parameters()])
    assert counts(compiled) == (3, 3)
    assert pygraph.report().graphs[0].before_guards and pygraph.report().graphs[0].before_wrappers


def test_whoever_asks_for_checks_first_gets_them(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model, launch="after_guards")
    warm(compiled, model, place, 6)
    assert counts(compiled) == (0, 0) and not pygraph.report().graphs[0].before_guards


class Switched(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.negated = False
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return -self.inner(x) if self.negated else self.inner(x) * 3


def test_guards_have_the_last_word(place: Place) -> None:
    """The guess is wrong where something has changed that is not seen from outside."""
    model = Switched().to(place.torch)
    compiled = place.compile(model)
    warm(compiled, model, place, 5)
    launched, landed = counts(compiled)
    assert launched == landed == 2
    model.negated = True
    warm(compiled, model, place, 2)
    assert counts(compiled) == (3, 2)
    first = pygraph.report().graphs[0]
    assert (first.calls, first.replays, first.dropped) == (5, 4, 1)
    model.inner = torch.nn.Linear(4, 4).to(place.torch)
    warm(compiled, model, place, 4)
    model.negated = False
    warm(compiled, model, place, 4)


def test_parameters_that_are_others_now(place: Place) -> None:
    """The guards do not mind: Dynamo hands the new ones to the same graph."""
    model = network(place)
    compiled = place.compile(model)
    warm(compiled, model, place, 5)
    before = counts(compiled)
    kept = model[0].weight
    model[0].weight = torch.nn.Parameter(torch.randn_like(kept))
    warm(compiled, model, place, 1)
    assert counts(compiled) == (before[0] + 1, before[1])
    warm(compiled, model, place, 4)
    assert counts(compiled)[1] > before[1]
    with torch.no_grad():
        kept.mul_(0)
    warm(compiled, model, place, 1)


@pytest.mark.parametrize("what", ["moved", "written"])
def test_parameters_that_change(place: Place, what: str) -> None:
    model = network(place)
    compiled = place.compile(model)
    warm(compiled, model, place, 5)
    before = counts(compiled)[1]
    with torch.no_grad():
        if what == "moved":
            model[0].weight.data = model[0].weight.data * 2
        else:
            model[0].weight.mul_(2)
    warm(compiled, model, place, 1)
    assert counts(compiled)[1] == before + (what == "written")
    warm(compiled, model, place, 3)
    assert counts(compiled)[1] > before + 1
    assert counts(compiled)[0] == counts(compiled)[1]


def test_other_shapes_are_not_guessed(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model, dynamic=False)
    warm(compiled, model, place, 5)
    before = counts(compiled)
    for shape in ((3, 4), (2, 2, 4), (1, 4)):
        check(compiled, model, inputs(place, *shape))
    check(compiled, model, inputs(place, 4, 2).t())
    assert counts(compiled)[0] == before[0]


def test_two_shapes_have_a_route_each(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model, dynamic=False)
    for _ in range(4):
        check(compiled, model, inputs(place))
        check(compiled, model, inputs(place, 7, 4))
    before = counts(compiled)
    for _ in range(3):
        check(compiled, model, inputs(place))
        check(compiled, model, inputs(place, 7, 4))
    assert counts(compiled) == (before[0] + 6, before[1] + 6)


def mixed(batch: dict[str, Any], pair: list[Any], scale: float, *, bias: Any, mode: str) -> Any:
    x = batch["x"] * scale + pair[0] @ pair[1]
    return (x + bias if mode == "add" else x - bias), x


def test_tensors_in_containers_and_values(place: Place) -> None:
    compiled = place.compile(mixed)

    def call(mode: str = "add", container: Any = list) -> None:
        batch: dict[str, Any] = {"x": inputs(place, 3, 3), "name": None}
        pair = container([inputs(place, 3, 2), inputs(place, 2, 3)])
        check(compiled, mixed, batch, pair, 2.0, bias=inputs(place, 3), mode=mode)

    for _ in range(6):
        call()
    assert counts(compiled) == (3, 3)
    call(mode="subtract")
    call(container=tuple)
    assert counts(compiled) == (3, 3)


class Tagged:
    """A class of the user's: what it means is not known."""


def test_what_cannot_be_told_again_is_not_guessed(place: Place) -> None:
    def scaled(x: Any, tag: Any) -> Any:
        return (x * 2 if isinstance(tag, Tagged) else x * 3,)

    compiled = place.compile(scaled)
    for _ in range(6):
        check(compiled, scaled, inputs(place), Tagged())
    assert pygraph.report().graphs[0].replays and counts(compiled) == (0, 0)


def test_what_nobody_can_read_is_not_read_in_every_call(place: Place) -> None:
    """More tensors than are read."""

    def function(first: Any, *_: Any) -> Any:
        return first * 2

    compiled = place.compile(function)
    given = [inputs(place) for _ in range(300)]
    for _ in range(40):
        check(compiled, function, *given)
    launched, _, read = counts_and_reads(compiled)
    assert launched == 0 and 8 <= read <= 9
    for _ in range(128):
        check(compiled, function, *given)
    assert counts_and_reads(compiled)[2] - read == 2


def test_only_what_comes_straight_from_the_callable(place: Place) -> None:
    """A graph behind a break comes when other code of the user's has run."""
    seen: list[float] = []

    def broken(x: Any) -> Any:
        y = x + 1
        torch._dynamo.graph_break()
        x.mul_(2)
        return (y * x,)

    def behind(x: Any) -> Any:
        seen.append(1.0)
        torch._dynamo.graph_break()
        return (x * 3,)

    for function in (broken, behind):
        compiled = place.compile(function)
        for _ in range(8):
            x = inputs(place)
            with torch.no_grad():
                (found,), (expected,) = compiled(x.clone()), function(x.clone())
            assert_bits([found], [expected])
        launched, landed = counts(compiled)
        assert launched == landed
        assert landed == (5 if function is broken else 0)


def test_hooks_of_a_module_come_first(place: Place) -> None:
    """They run in front of the forward that Dynamo compiles, and may write what it reads."""
    model = Switched().to(place.torch)
    compiled = place.compile(model)

    @torch._dynamo.disable
    def before(module: Any, given: Any) -> None:
        with torch.no_grad():
            module.inner.bias.add_(1)

    model.register_forward_pre_hook(before)
    for _ in range(8):
        x = inputs(place)
        with torch.no_grad():
            found = compiled(x)
            expected = model.inner(x) * 3
        assert_bits([found], [expected])
    assert counts(compiled)[1] == 0


def test_nothing_that_leaves_a_trace(place: Place) -> None:
    def writes(x: Any) -> Any:
        x.add_(1)
        return (x * 2,)

    compiled = place.compile(writes)
    with torch.no_grad():
        for _ in range(6):
            compiled(inputs(place))
    assert pygraph.report().graphs[-1].replays and counts(compiled) == (0, 0)


class Noisy(torch.nn.Module):
    negated = False

    def forward(self, x: Any) -> Any:
        noise = torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)
        return (-noise if self.negated else noise, x + 1)


class Sequence:
    """Calls of a compiled model and of the model itself, whose generators start from one seed."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.model = Noisy()
        self.compiled = place.compile(self.model)

    def check(self, between: Any = lambda: None, seed: int = 3) -> None:
        """Two calls, and what is drawn behind them. `between`: what the program does in the first,
        in front of the guards, which is only seen by what it draws."""
        results = []
        x = inputs(self.place)
        for function in (self.compiled, self.model):
            torch.manual_seed(seed)
            hooks = dynamo.hooks_of(self.compiled)
            if function is self.model:
                between()
            else:
                hooks.append(lambda: [between(), lambda: None][1])
            with torch.no_grad():
                first = function(x)
                del hooks[-1 if function is self.compiled else len(hooks) :]
                results.append([*first, *function(x), inputs(self.place)])
        assert_bits(*results)


def test_numbers_are_drawn_once(place: Place) -> None:
    sequence = Sequence(place)
    for seed in range(4):
        sequence.check(seed=seed)
    launched, claimed = counts(sequence.compiled)
    assert launched == claimed > 2
    assert pygraph.report().graphs[0].before_guards


def test_a_wrong_guess_has_drawn_nothing(place: Place) -> None:
    sequence = Sequence(place)
    for _ in range(3):
        sequence.check()
    sequence.model.negated = True
    for _ in range(4):
        sequence.check()
    launched, claimed = counts(sequence.compiled)
    assert launched > claimed > 2


def test_numbers_that_are_drawn_between_a_guess_and_its_call(place: Place) -> None:
    sequence = Sequence(place)
    for _ in range(3):
        sequence.check()
    before = counts(sequence.compiled)
    sequence.check(lambda: place.randn(3))
    launched, claimed = counts(sequence.compiled)
    assert launched > before[0] and launched - claimed == before[0] - before[1] + 1
    for _ in range(3):
        sequence.check()
    assert counts(sequence.compiled)[1] > claimed


def test_a_guess_that_fails_has_drawn_nothing(place: Place) -> None:
    """Nobody serves it: its call may not come."""
    if place.name != "twin":
        pytest.skip("faults are the twin's")
    sequence = Sequence(place)
    for _ in range(3):
        sequence.check()
    before = counts(sequence.compiled)
    with faults.failing_call("cuGraphLaunch"):
        sequence.check()
    assert counts(sequence.compiled)[0] == before[0]
    (graph,) = pygraph.report().graphs
    assert (graph.state, graph.calls) == ("graphed", 8)


def test_a_generator_that_is_seeded_between_a_guess_and_its_call(place: Place) -> None:
    sequence = Sequence(place)
    for _ in range(3):
        sequence.check()
    sequence.check(lambda: torch.manual_seed(99))
