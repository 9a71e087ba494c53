"""Partitions of compiled graphs: whose arguments and results theirs are, and what a forward and a
backward make of it."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from pygraph.capturing import blocks
from pygraph.capturing.blocks import GivenUp
from pygraph.capturing.cuda import Cuda
from pygraph.decide.signatures import Signature
from pygraph.runtime.partition import Partition, graph_inputs, graph_outputs
from pygraph.runtime.training_pair import PairLayout, PairMember, Role, TrainingPair

#: A forward of (x, w, b) that returns one result and saves three tensors; its backward takes two
#: sizes, those three, and a gradient. Both are partitions with an order of their own.
FORWARD = Partition(inputs=(1, 0, 2), outputs=(2, 0, None, 3, 1))
BACKWARD = Partition(inputs=(5, 4, 2, 3), outputs=(1, 0, None))
LAYOUT = PairLayout(returned=1, sizes=2)


def linked(spent_after: list[int] | None = None, results: int = 0) -> Any:
    """As much of a program as a pair asks for."""
    return types.SimpleNamespace(
        spent_after=spent_after or [],
        block_of_result=[0] * results,
        note_saved=lambda results: None,
    )


def member(
    role: Role, pair: TrainingPair, partition: Partition | None, constants: Any = ()
) -> PairMember:
    made = PairMember(role, pair, constants, Cuda(0), partition)
    if role is Role.BACKWARD:
        pair.add_backward(partition)
    return made


def run(*outputs: Any) -> Any:
    return types.SimpleNamespace(outputs=outputs, on_host=frozenset())


def number(value: int) -> torch.Tensor:
    return torch.tensor(value)


def test_positions() -> None:
    tensors = [torch.zeros(1)] * 3
    assert graph_inputs(None, tensors) == [0, 1, 2]
    assert graph_inputs(FORWARD, tensors) == [1, 0, 2]
    assert graph_inputs(FORWARD, [*tensors, 7, 8]) == [1, 0, 2, None, None], "sizes stand behind"
    assert graph_outputs(None, 2) == [0, 1]
    assert graph_outputs(FORWARD, 5) == [2, 0, None, 3, 1]


def test_a_map_that_does_not_fit_says_nothing() -> None:
    """Inductor removes arguments and results of a partition after it has made the map."""
    tensors = [torch.zeros(1)] * 3
    assert graph_inputs(FORWARD, tensors[:2]) == [None] * 2
    assert graph_inputs(FORWARD, [*tensors, torch.zeros(1)]) == [None] * 4
    assert graph_outputs(FORWARD, 4) == [None] * 4


def test_gradients_of_parameters_are_known_by_the_graph() -> None:
    pair = TrainingPair(lambda: LAYOUT)
    forward = member(Role.FORWARD, pair, FORWARD, constants=[0, 2])  # the graph's arguments 1 and 2
    forward.note([torch.zeros(2), torch.zeros(3), torch.zeros(4)])
    backward = member(Role.BACKWARD, pair, BACKWARD)
    assert pair.constant_inputs == {1, 2}
    assert backward.gradients(3) == {0}
    assert forward.gradients(3) == frozenset()


def test_parameters_are_found_among_what_is_saved_of_several_callables() -> None:
    pair = TrainingPair(lambda: LAYOUT)
    weights = [torch.zeros(2), torch.zeros(3)]
    for weight in weights:
        member(Role.FORWARD, pair, None, constants=[0]).note([weight])
    backward = member(Role.BACKWARD, pair, None)
    assert backward.constants([torch.zeros(2), weights[1], weights[0]]) == {1, 2}


def test_a_parameter_that_has_moved_is_no_constant_where_it_was() -> None:
    pair = TrainingPair(lambda: LAYOUT)
    forward, backward = (
        member(Role.FORWARD, pair, None, constants=[0]),
        member(Role.BACKWARD, pair, None),
    )
    before, after = torch.zeros(2), torch.zeros(2)
    forward.note([before])
    forward.note([after])
    assert backward.constants([before, after]) == {1}


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """(program, when its results are given up) of every time that results were put together."""
    made: list[Any] = []
    monkeypatch.setattr(blocks, "merge", lambda call, given_up: made.append((call, dict(given_up))))
    return made


@pytest.mark.parametrize("forward_first", [False, True])
def test_what_is_given_up_together_is_put_together(merged: list[Any], forward_first: bool) -> None:
    pair = TrainingPair(lambda: LAYOUT)
    forward, backward = member(Role.FORWARD, pair, FORWARD), member(Role.BACKWARD, pair, BACKWARD)
    arguments = [torch.zeros(1)] * 4
    made, taking = linked(results=5), linked([-1, 1, 0, -1])  # of a gradient, and saved 2, 0 and 1
    if forward_first:
        forward.adopt(made, [])
    backward.adopt(taking, arguments)
    if not forward_first:
        forward.adopt(made, [])
    # Saved tensors 0, 1 and 2 are the graph's results 1, 2 and 3, and the callable's 4, 0 and 3.
    given_up = {4: GivenUp(0, 0), 0: GivenUp(0, -1), 3: GivenUp(0, 1)}
    assert merged == [(made, given_up)]


def test_nothing_is_put_together_before_all_of_the_backward_is_known(merged: list[Any]) -> None:
    pair = TrainingPair(lambda: LAYOUT)
    first = member(Role.BACKWARD, pair, Partition((2,), ()))
    second = member(Role.BACKWARD, pair, Partition((3,), ()))
    member(Role.FORWARD, pair, FORWARD).adopt(linked(results=5), [])
    first.adopt(linked([0]), [torch.zeros(1)])
    assert not merged
    second.adopt(linked([0]), [torch.zeros(1)])
    ((_, given_up),) = merged
    assert given_up == {4: GivenUp(0, 0), 0: GivenUp(1, 0)}, "parts of two graphs are not the same"


def test_nothing_is_put_together_for_a_backward_that_looks_at_offsets(merged: list[Any]) -> None:
    pair = TrainingPair(lambda: LAYOUT)
    forward, backward = member(Role.FORWARD, pair, FORWARD), member(Role.BACKWARD, pair, BACKWARD)
    backward.adopt(linked([0] * 4), [torch.zeros(1)] * 4, any_offsets=False)
    forward.adopt(linked(results=5), [])
    assert not merged


def test_seeds_on_the_host_wait_for_the_backward_and_find_its_arguments() -> None:
    pair = TrainingPair(lambda: LAYOUT)
    forward = member(Role.FORWARD, pair, FORWARD)
    real = run(number(3), torch.zeros(2), torch.zeros(2), number(4), torch.zeros(2))
    assert forward.saves_on_host(real).later
    backward = member(Role.BACKWARD, pair, BACKWARD)
    assert backward.taken_on_host([torch.zeros(1)] * 4) == frozenset()
    found = forward.saves_on_host(real)
    assert found.against is None
    assert found.results == {0, 3}  # saved tensors 1 and 2
    assert backward.taken_on_host([torch.zeros(1)] * 4) == {1, 3}


def test_a_backward_waits_for_its_forward_to_have_seeds_on_the_device() -> None:
    pair = TrainingPair(lambda: LAYOUT)
    forward, told = member(Role.FORWARD, pair, FORWARD), list[bool]()
    real = run(number(3), torch.zeros(2), torch.zeros(2), number(4), torch.zeros(2))
    assert forward.saves_on_host(real).later
    forward.wait_for_backward(lambda: told.append(True))
    assert not told
    backward = member(Role.BACKWARD, pair, BACKWARD)
    assert told == [True]
    seeds = [torch.zeros(1), number(3), torch.zeros(1), number(4)]
    assert backward.waits_for_forward(seeds) and not forward.waits_for_forward(seeds)
    assert not backward.waits_for_forward([torch.zeros(1)] * 4)  # of a call that a graph has served
    forward.linked_or_not()
    assert not backward.waits_for_forward(seeds)


def test_what_was_waited_for_comes_to_a_signature() -> None:
    signature = Signature(warm_up_calls=1, calls=2)
    signature.postpone()
    assert signature.calls < 0 and not signature.settled
    signature.hurry()
    signature.count(now=9, unheard=0, last=8)
    assert signature.calls > signature.warm_up_calls


def test_seeds_on_the_host_that_cannot_be_found_are_refused() -> None:
    pair = TrainingPair(lambda: LAYOUT)
    forward = member(Role.FORWARD, pair, FORWARD)
    member(Role.BACKWARD, pair, Partition((5, 3), ()))  # takes saved tensor 1 alone
    plain = torch.zeros(2)
    not_taken = forward.saves_on_host(run(plain, plain, plain, number(4), plain)).against
    assert not_taken is not None and "do not take" in not_taken
    returned = forward.saves_on_host(run(plain, number(4), plain, plain, plain)).against
    assert returned is not None and "not saved" in returned
    assert forward.saves_on_host(run(number(4), plain, plain, plain, plain)).results == {0}
