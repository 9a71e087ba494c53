"""Programs that draw random numbers: a replay draws what the uncaptured program would have drawn.

Every program runs compiled by PyGraph and by torch's aot_eager, from the same seed; results must
have the same bits, and the generator must end in the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from places import Place
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from training_support import (
    Compile,
    Net,
    agree,
    generator_state,
    gradients,
    is_ours,
    serves,
)

import pygraph

TRAINED = ("forward", "backward")


def set_state(place: Place, state: torch.Tensor) -> None:
    (torch.set_rng_state if place.name == "twin" else torch.cuda.set_rng_state)(state)


def shifted(x: torch.Tensor) -> torch.Tensor:
    """An augmentation: crops at random places, flips at random, and adds noise."""
    start = torch.randint(0, 3, (x.shape[0], 1), device=x.device)
    columns = start + torch.arange(4, device=x.device)
    flip = torch.rand(x.shape[0], 1, device=x.device) < 0.5
    columns = torch.where(flip, columns.flip(1), columns)
    return x.gather(1, columns) + 0.1 * torch.randn_like(x[:, :4])


DRAWING: dict[str, Callable[[torch.Tensor], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.3) + F.dropout(x, 0.7),
    "rand": lambda x: x + torch.rand(6, device=x.device),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "randn_like": lambda x: x + torch.randn_like(x) * torch.rand_like(x),
    "in place": lambda x: torch.empty_like(x).normal_(1.0, 2.0).mul_(x.clone().uniform_(1, 2)),
    "permutation": lambda x: x[:, torch.randperm(6, device=x.device)],
    "integers": lambda x: torch.randint_like(x, 0, 100) + torch.randint(9, (5, 1), device=x.device),
    "exponential": lambda x: torch.argmax(x.sigmoid() / torch.empty_like(x).exponential_(), 1),
    "augmentation": shifted,
    "feature dropout": lambda x: F.dropout1d(x[:, :, None], 0.5),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel": lambda x: F.gumbel_softmax(x, hard=True),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 5, 6)] * 3, dropout_p=0.4),
}


@pytest.mark.parametrize("name", DRAWING)
def test_the_same_numbers_as_without_a_graph(place: Place, name: str) -> None:
    """In ten calls, none of which repeats another's numbers; eager draws in between go on where the
    graph left off."""

    def program(compiled: Compile) -> list[Any]:
        fast = compiled(DRAWING[name])
        x = place.randn(5, 6)
        kept: list[Any] = []
        for _ in range(10):
            kept += [fast(x), generator_state(place)]
            kept.append(place.randn(3))
        drawn = kept[::3]
        assert not all(torch.equal(drawn[0], other) for other in drawn[1:])
        return kept

    with torch.no_grad():
        report = agree(place, program)
    if (
        place.name == "cuda" and name == "permutation"
    ):  # its kernel synchronises, or chooses by size
        return
    serves(report, "inference", replays=8)


class Dropping(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.second(F.dropout(torch.tanh(self.first(x)), 0.4)), 0.2)


def dropping(place: Place) -> Dropping:
    return Dropping().to(place.torch)


def learn(fast: Any, module: torch.nn.Module, x: torch.Tensor) -> list[Any]:
    module.zero_grad()
    result = fast(x)
    result.square().sum().backward()
    return [result, *gradients(module)]


def test_dropout_in_training(place: Place) -> None:
    """The backward uses the forward's mask, and draws nothing."""

    def program(compiled: Compile) -> list[Any]:
        module = dropping(place)
        fast = compiled(module)
        kept: list[Any] = []
        for _ in range(10):
            kept += learn(fast, module, place.randn(5, 6))
            kept.append(generator_state(place))
        return kept

    serves(agree(place, program), *TRAINED, replays=8)


def test_linking_leaves_the_generator_as_one_call_does(place: Place) -> None:
    """The proof runs the program several times; nobody can tell by the numbers that come next."""
    states: list[list[torch.Tensor]] = []

    def program(compiled: Compile) -> list[Any]:
        module = dropping(place)
        fast = compiled(module)
        states.append([])
        for _ in range(5):
            result = fast(torch.ones(5, 6, device=place.torch))
            states[-1].append(generator_state(place))
            result.sum().backward()
            states[-1].append(generator_state(place))
        return states[-1]

    report = agree(place, program)
    serves(report, *TRAINED, replays=3)
    for states_of_a_run in states:
        calls = [states_of_a_run[0], *states_of_a_run[2::2]]
        assert not any(torch.equal(calls[0], state) for state in calls[1:])


def test_seeds_and_states_set_between_calls(place: Place) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = dropping(place)
        fast = compiled(module)
        x = place.randn(5, 6)
        kept: list[Any] = []
        for seed in range(3):
            torch.manual_seed(seed)
            kept += learn(fast, module, x)
        remembered = generator_state(place)
        first = learn(fast, module, x)
        with torch.random.fork_rng(devices=[] if place.name == "twin" else [0]):
            torch.manual_seed(99)
            forked = learn(fast, module, x)
        set_state(place, remembered)
        again = learn(fast, module, x)
        assert all(map(torch.equal, first, again)) and not torch.equal(first[0], forked[0])
        torch.manual_seed(1)
        repeated = learn(fast, module, x)
        assert all(map(torch.equal, repeated, kept[5:10]))
        torch.seed()
        learn(fast, module, x)
        torch.manual_seed(5)
        return [*kept, *first, *forked, *again, *learn(fast, module, x)]

    serves(agree(place, program), *TRAINED, replays=6)


def test_two_models_in_turns(place: Place) -> None:
    """Their graphs draw from one generator, in the order of the calls."""

    def program(compiled: Compile) -> list[Any]:
        modules = [dropping(place), dropping(place)]
        shared = compiled(modules[0]), compiled(lambda x: modules[1](x) + torch.rand_like(x[:, :4]))
        kept: list[Any] = []
        for turn in (0, 1, 0, 0, 1, 1, 0, 1, 1, 0):
            kept += learn(shared[turn], modules[turn], place.randn(5, 6))
        return kept

    serves(agree(place, program), *TRAINED, *TRAINED, replays=3)


def test_a_generator_of_ones_own(place: Place) -> None:
    """CompiledGraph or not, its numbers are its own and the default generator's are not touched."""

    def program(compiled: Compile) -> list[Any]:
        own = torch.Generator(place.torch).manual_seed(3)
        fast = compiled(lambda x: x + torch.rand(5, 6, generator=own, device=place.torch))
        kept: list[Any] = []
        for _ in range(8):
            kept += [fast(place.randn(5, 6)), own.get_state()]
        return kept

    with torch.no_grad():
        agree(place, program)


@pytest.mark.parametrize("preserved", [True, False])
@pytest.mark.parametrize("where", ["inside", "around"])
def test_recomputation_draws_again(place: Place, where: str, preserved: bool) -> None:
    """pytorch#170535, #113541: with preserve_rng_state a recomputed dropout has the first one's
    mask. Around, a graph is replayed twice per step; inside, saving the generator's state is part
    of the program."""

    def program(compiled: Compile) -> list[Any]:
        module = dropping(place)

        def around(function: Any) -> Any:
            return lambda x: checkpoint(
                function, x, use_reentrant=False, preserve_rng_state=preserved
            )

        fast = compiled(around(module)) if where == "inside" else around(compiled(module))
        kept: list[Any] = []
        for _ in range(8):
            kept += learn(fast, module, place.randn(5, 6))
        return kept

    report = agree(place, program)
    if where == "around" or place.name == "twin":
        serves(report, *TRAINED, replays=6)


def test_a_program_that_draws_now_and_then(place: Place) -> None:
    """Training and evaluation of one module: a program each, and only one of them draws."""

    def program(compiled: Compile) -> list[Any]:
        module = dropping(place)
        fast = compiled(module)
        kept: list[Any] = []
        for step in range(12):
            module.train(step % 3 != 0)
            with torch.set_grad_enabled(module.training):
                x = place.randn(5, 6)
                kept += learn(fast, module, x) if module.training else [fast(x)]
        return kept

    serves(agree(place, program), *TRAINED, "inference", replays=2)


def test_the_numbers_stay_when_graphs_are_dropped(place: Place) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = dropping(place)
        fast = compiled(module)
        kept: list[Any] = []
        for step in range(8):
            kept += learn(fast, module, place.randn(5, 6))
            if step == 4 and is_ours(compiled):
                assert pygraph.report().replays
                pygraph.reset()
        return kept

    agree(place, program)
