"""pygraph.make_graphed_callables: against the callables as they are, bit for bit, and torch's own
tests of torch.cuda.make_graphed_callables."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from callable_support import deterministic, snapshot, state_of
from places import Place
from torch import nn
from training_support import generator_state

import pygraph
from pygraph.capturing.tensors import same_bits
from pygraph.reporting import GRAPHED, REPLACED

#: Calls before the first replay of a forward and of its backward: one to learn the code, one that
#: is watched, one that links the forward; then one backward that is watched, and one that links.
FORWARD, BACKWARD = 3, 5

#: Why a first forward is replaced where its backward runs code of the program.
READS_MORE = "its backward's code reads more than was known"

#: Trains a model, or calls a function, and returns all values that count.
Train = Callable[[Any], list[Any]]


def agree(
    place: Place,
    build: Callable[[], Any],
    train: Train,
    sample: Any = (),
    *,
    warm_up: int = 0,
    **options: Any,
) -> Any:
    """Trains both ways and compares. Returns the report."""
    with deterministic(place):
        torch.manual_seed(3)
        plain = build()
        torch.manual_seed(7)
        expected = [*train(plain), generator_state(place)]
        torch.manual_seed(3)
        made = pygraph.make_graphed_callables(
            build(), sample, warm_up, device=place.name, **options
        )
        torch.manual_seed(7)
        found = [*train(made), generator_state(place)]
    assert len(found) == len(expected)
    for number, (left, right) in enumerate(zip(found, expected, strict=True)):
        assert same_bits(left, right), (number, left, right)
    return pygraph.report()


def all_graphed(report: Any, graphs: int = 2) -> None:
    """There are so many graphs, all replayed, and no other note."""
    assert len(report.graphs) == graphs, str(report)
    for graph in report.graphs:
        assert graph.state == GRAPHED, str(report)
        assert graph.proof == "bit-equal"
        assert graph.replays, str(report)
        assert graph.bytes_copied == 0


def reasons(report: Any) -> str:
    return "; ".join([g.reason for g in report.graphs if g.reason] + list(report.events))


def training(
    place: Place,
    calls: int = 12,
    inputs: Callable[[int], tuple[Any, ...]] | None = None,
    loss_of: Callable[[Any], torch.Tensor] = lambda y: (y.float() ** 2).mean(),
    around: Callable[[], Any] | None = None,
    **named: Any,
) -> Train:
    """A loop with new inputs and an optimizer. Everything that a call returns or leaves counts."""

    def default(number: int) -> tuple[torch.Tensor]:
        return (place.randn(6, 4, requires_grad=True),)

    def train(model: nn.Module) -> list[Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        found: list[Any] = []
        for number in range(calls):
            given = (inputs or default)(number)
            optimizer.zero_grad()
            if around is None:
                result = model(*given, **named)
            else:
                with around():
                    result = model(*given, **named)
            loss = loss_of(result)
            loss.backward()
            optimizer.step()
            found += snapshot([result, loss, *state_of(model, optimizer)])
            found += snapshot([x.grad for x in given if isinstance(x, torch.Tensor)])
        return found

    return train


def perceptron(place: Place, *more: nn.Module) -> nn.Module:
    layers = (nn.Linear(4, 8), *more, nn.Tanh(), nn.Linear(8, 2))
    return nn.Sequential(*layers).to(place.torch)


def test_training_is_bit_equal_and_replayed(place: Place) -> None:
    report = agree(place, lambda: perceptron(place), training(place))
    all_graphed(report)
    forward, backward = report.graphs
    assert forward.replays == 12 - FORWARD
    assert backward.replays == 12 - BACKWARD
    assert "backward" in backward.name
    assert backward.constants == 2  # the weights, which stand where they are


def test_warming_up_leaves_nothing_behind(place: Place) -> None:
    def build() -> Any:
        return perceptron(place, nn.BatchNorm1d(8), nn.Dropout(0.5))

    sample = (place.randn(6, 4, requires_grad=True),)
    before = generator_state(place)
    pygraph.make_graphed_callables(build(), sample, device=place.name)
    after = generator_state(place)
    torch.set_rng_state(before) if place.name == "twin" else torch.cuda.set_rng_state(before)
    build()  # which draws its parameters
    assert torch.equal(generator_state(place), after)
    pygraph.reset()
    report = agree(place, build, training(place), sample, warm_up=3)
    assert report.graphs[0].replays == 12
    assert report.graphs[1].replays == 12 - 2
    all_graphed(report)
    assert sample[0].grad is None


@pytest.mark.parametrize(
    "layer", [nn.Dropout(0.5), nn.BatchNorm1d(8), nn.LayerNorm(8), nn.GELU(), nn.Identity()]
)
def test_layers(place: Place, layer: nn.Module) -> None:
    all_graphed(agree(place, lambda: perceptron(place, copy.deepcopy(layer)), training(place)))


def test_convolutions_and_embeddings(place: Place) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 4)
            self.convolution = nn.Conv1d(4, 6, 3, padding=1)
            self.norm = nn.BatchNorm1d(6)
            self.head = nn.Linear(6, 3)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embedding(tokens).transpose(1, 2)
            return self.head(torch.relu(self.norm(self.convolution(x))).mean(-1))

    def inputs(number: int) -> Any:
        return (torch.randint(0, 10, (2, 5), device=place.torch),)

    all_graphed(agree(place, lambda: Net().to(place.torch), training(place, inputs=inputs)))


def test_functions(place: Place) -> None:
    weight = place.randn(4, 4)

    def build() -> Any:
        def function(x: torch.Tensor, y: torch.Tensor, *, scale: float) -> Any:
            a = torch.tanh(x @ weight) * y * scale
            return {"a": a, "b": [x.detach() + 1, y, None, x.detach(), x.detach()[1:]]}

        return function

    def train(function: Any) -> list[Any]:
        found: list[Any] = []
        for _ in range(10):
            x, y = (place.randn(3, 4, requires_grad=True) for _ in range(2))
            result = function(x, y, scale=0.5)
            assert result["b"][1] is y
            assert not any(result["b"][n].requires_grad for n in (0, 3, 4))
            assert result["b"][4].data_ptr() == x[1:].data_ptr()
            result["a"].sum().backward()
            found += snapshot([result["a"], *result["b"][:1], x.grad, y.grad])
        return found

    report = agree(place, build, train)
    all_graphed(report)
    assert weight.grad is None


def test_parameters_in_a_closure_get_gradients(place: Place) -> None:
    def build() -> Any:
        weight = nn.Parameter(place.randn(4, 4))
        return lambda x: torch.sin(x @ weight), weight

    def train(pair: Any) -> list[Any]:
        function, weight = pair
        found: list[Any] = []
        for _ in range(10):
            function(place.randn(3, 4)).sum().backward()
            found += snapshot([weight.grad])
        return found

    torch.manual_seed(3)
    expected = (lambda pair: (torch.manual_seed(7), train(pair))[1])(build())
    torch.manual_seed(3)
    function, weight = build()
    made = pygraph.make_graphed_callables(function, (), 0, device=place.name)
    torch.manual_seed(7)
    assert all(map(same_bits, train((made, weight)), expected))
    all_graphed(pygraph.report())


def test_pieces_of_arguments_and_parameters_are_saved(place: Place) -> None:
    def build() -> Any:
        return lambda x, w: (x[2:] * w[1:-1]).exp() * x[0] + w[2]

    def train(function: Any) -> list[Any]:
        found: list[Any] = []
        for _ in range(10):
            x, w = (place.randn(5, requires_grad=True) for _ in range(2))
            y = function(x, w)
            y.sum().backward()
            found += snapshot([y, x.grad, w.grad])
        return found

    all_graphed(agree(place, build, train))


def test_a_tensor_that_is_an_argument_and_read_besides(place: Place) -> None:
    weight = nn.Parameter(place.randn(4))
    made = pygraph.make_graphed_callables(
        lambda x: torch.sin(x) * torch.exp(weight), (), 0, device=place.name
    )
    for _ in range(10):
        weight.grad = None
        made(weight).sum().backward()
        other = weight.detach().clone().requires_grad_()
        (torch.sin(other) * torch.exp(other)).sum().backward()
        assert torch.equal(weight.grad, other.grad)
        with torch.no_grad():
            weight.add_(0.1)
    all_graphed(pygraph.report())


def test_writes_of_a_replay_are_counted(place: Place) -> None:
    buffer = torch.ones(4, device=place.torch)

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            buffer.mul_(2)
        return torch.exp(x)

    made = pygraph.make_graphed_callables(forward, (), 0, device=place.name)
    for _ in range(8):
        x = place.randn(4, requires_grad=True)
        outside = (x * buffer).sum()
        made(x).sum().backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            outside.backward()
    all_graphed(pygraph.report())


def test_autocast_with_its_cache(place: Place) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(torch.relu(self.linear(x)))

    around = functools.partial(torch.autocast, place.torch.type, dtype=torch.bfloat16)
    report = agree(place, lambda: Twice().to(place.torch), training(place, around=around))
    all_graphed(report)


def test_several_calls_before_their_backwards(place: Place) -> None:
    def train(model: nn.Module) -> list[Any]:
        found: list[Any] = []
        for _ in range(10):
            results = [model(place.randn(6, 4)) for _ in range(3)]
            losses = [each.square().mean() for each in results]
            (losses[0] + losses[2]).backward()
            losses[1].backward()
            found += snapshot([*results, *state_of(model)])  # accumulated over all calls
        return found

    all_graphed(agree(place, lambda: perceptron(place, nn.BatchNorm1d(8)), train))


def test_shapes_and_evaluation_beside_training(place: Place) -> None:
    def train(model: nn.Module) -> list[Any]:
        found: list[Any] = []
        for _ in range(14):
            for rows in (6, 3):
                model.train()
                result = model(place.randn(rows, 4))
                result.square().mean().backward()
                found += snapshot([result, *state_of(model)])
                model.eval()
                with torch.no_grad():
                    found += snapshot([model(place.randn(rows, 4))])
        return found

    report = agree(place, lambda: perceptron(place, nn.Dropout(0.5)), train)
    all_graphed(report, graphs=6)


def test_keyword_arguments_of_every_kind(place: Place) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor, *, mask: Any = None, scale: float = 1.0) -> Any:
            y = self.linear(x) * scale
            return y if mask is None else y * mask["on"]

    mask = {"on": place.randn(6, 2)}
    train = training(place, mask=mask, scale=0.25)
    all_graphed(agree(place, lambda: Net().to(place.torch), train))


def test_hooks_of_modules_tensors_and_parameters(place: Place) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
            self.factor = 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = torch.tanh(self.first(x))
            hidden.register_hook(lambda gradient: gradient * self.factor)
            return self.second(hidden)

    calls: list[str] = []

    def build() -> Any:
        model = Net().to(place.torch)
        model.first.register_forward_hook(lambda module, args, out: out * 1.5)
        model.second.register_full_backward_hook(lambda module, gi, go: (gi[0] * 0.5,))
        model.first.weight.register_hook(lambda gradient: (calls.append("w"), gradient * 3)[1])
        model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
        return model

    def train(model: Any) -> list[Any]:
        found: list[Any] = []
        for factor in (2.0, 4.0):  # what hooks read is compared in each call
            model.factor = factor
            found += training(place)(model)
        return found

    report = agree(place, build, train)
    assert len(calls) == 2 * 24
    early, *graphs = report.graphs
    assert (early.state, early.reason) == (REPLACED, READS_MORE), str(report)
    assert sum(graph.replays for graph in graphs) >= 2 * 8
    assert all(graph.state == GRAPHED for graph in graphs), str(report)


def test_a_tuple_of_callables(place: Place) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (
                nn.Linear(4, 8).to(place.torch),
                nn.Linear(8, 2).to(place.torch),
            )
            self.third = torch.tanh

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.third(self.first(x)))

    def graphed() -> Any:
        model = Both()
        model.first, model.second, model.third = pygraph.make_graphed_callables(
            (model.first, model.second, model.third),
            (
                (place.randn(6, 4, requires_grad=True),),
                (place.randn(6, 8, requires_grad=True),),
                (place.randn(6, 8, requires_grad=True),),
            ),
            device=place.name,
        )
        return model

    torch.manual_seed(3)
    plain = Both()
    torch.manual_seed(7)
    expected = training(place)(plain)
    torch.manual_seed(3)
    model = graphed()
    torch.manual_seed(7)
    assert all(map(same_bits, training(place)(model), expected))
    all_graphed(pygraph.report(), graphs=6)
    assert isinstance(model.first, nn.Linear)


def test_results_and_gradients_may_be_kept(place: Place) -> None:
    model = pygraph.make_graphed_callables(perceptron(place), (), 0, device=place.name)
    kept: list[Any] = []
    for _ in range(10):
        x = place.randn(6, 4, requires_grad=True)
        y = model(x)
        gradients = torch.autograd.grad(y.sum(), [x, *model.parameters()])
        kept.append((y, gradients, snapshot([y, *gradients])))
    for y, gradients, before in kept:
        assert all(map(same_bits, snapshot([y, *gradients]), before))
    all_graphed(pygraph.report())


def test_a_backward_may_be_repeated_or_never_come(place: Place) -> None:
    model = perceptron(place)
    graphed = pygraph.make_graphed_callables(perceptron(place), (), 0, device=place.name)
    graphed.load_state_dict(model.state_dict())
    for number in range(10):
        x = place.randn(6, 4)
        for each in (model, graphed):
            loss = each(x).square().sum()
            if number % 3:
                loss.backward(retain_graph=True)
                loss.backward()
                with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                    loss.backward()
        if number % 3:
            for left, right in zip(model.parameters(), graphed.parameters(), strict=True):
                assert same_bits(left.grad, right.grad)
    all_graphed(pygraph.report())


def test_unused_inputs(place: Place) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.idle = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    sample = place.randn(6, 4), place.randn(6, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="allow_unused=True"):
        pygraph.make_graphed_callables(Net().to(place.torch), sample, device=place.name)
    pygraph.reset()

    def inputs(number: int) -> Any:
        return place.randn(6, 4), place.randn(6, 4, requires_grad=True)

    report = agree(
        place,
        lambda: Net().to(place.torch),
        training(place, inputs=inputs),
        sample,
        warm_up=3,
        allow_unused_input=True,
    )
    all_graphed(report)


def test_results_that_no_gradient_comes_to(place: Place) -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> Any:
            hidden = torch.tanh(self.trunk(x))
            return self.left(hidden), self.right(hidden)

    def train(model: Any) -> list[Any]:
        found: list[Any] = []
        for number in range(18):
            left, right = model(place.randn(6, 4))
            model.zero_grad(set_to_none=True)
            loss = (left.sum(), right.square().sum(), left.sum() * right.sum())[number % 3]
            loss.backward()
            assert (model.right.weight.grad is None) == (number % 3 == 0)
            found += snapshot([left, right, *state_of(model)])
        return found

    all_graphed(agree(place, lambda: Heads().to(place.torch), train), graphs=4)


def test_parameters_that_are_replaced_frozen_or_moved(place: Place) -> None:
    def train(model: Any) -> list[Any]:
        found: list[Any] = []
        for number in range(30):
            if number == 8:
                model[0].weight = nn.Parameter(model[0].weight.detach() * 2)
            if number == 14:
                model[2].weight.data = model[2].weight.data.clone()
            if number == 20:
                model[0].weight.requires_grad_(False)
            x = place.randn(6, 4, requires_grad=bool(number % 2))
            y = model(x)
            model.zero_grad()
            y.square().mean().backward()
            found += snapshot([y, x.grad, *state_of(model)])
        return found

    report = agree(place, lambda: perceptron(place), train)
    assert sum(graph.replays for graph in report.graphs) >= 20
    assert all(graph.state == GRAPHED for graph in report.graphs), str(report)


@pytest.mark.parametrize("what", ["input", "weight", "output"])
def test_a_write_to_what_was_saved_raises(place: Place, what: str) -> None:
    def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.exp(x * weight)

    made = pygraph.make_graphed_callables(forward, (), 0, device=place.name)
    for number in range(10):
        x, weight = place.randn(3, requires_grad=True), nn.Parameter(place.randn(3))
        y = made(x, weight)
        if number < 6:
            y.sum().backward()
            continue
        with torch.no_grad():
            {"input": x, "weight": weight, "output": y}[what].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    all_graphed(pygraph.report())


def test_a_write_between_forward_and_backward_of_a_linked_call_raises(place: Place) -> None:
    made = pygraph.make_graphed_callables(lambda x, w: torch.exp(x * w), (), 0, device=place.name)
    for _ in range(6):
        x, weight = place.randn(3), nn.Parameter(place.randn(3))
        y = made(x, weight)
        x.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_an_iteration_leaves_no_memory_behind(place: Place) -> None:
    """Neither the first calls, whose graph of autograd's is kept, nor later ones keep what they
    saved."""
    model = pygraph.make_graphed_callables(perceptron(place), (), 0, device=place.name)

    def living() -> list[Any]:
        gc.collect()
        tensors = [each for each in gc.get_objects() if type(each) is torch.Tensor]
        return [tuple(each.shape) for each in tensors if each.dim() and len(each) == 1000]

    for _ in range(8):
        x = place.randn(1000, 4)
        y = model(x)
        y.sum().backward()
        del x, y
        assert living() == []
    all_graphed(pygraph.report())
    assert memory_of_first_calls(place) == []


def memory_of_first_calls(place: Place) -> list[int]:
    """The calls whose input some graph keeps alive behind their backward."""

    class Token:
        pass

    kept = []
    made = pygraph.make_graphed_callables(
        lambda x, w: torch.tanh(x * w) * w, (), 0, device=place.name
    )
    weight = nn.Parameter(place.randn(50))
    for number in range(7):
        x = place.randn(50)
        x.token = Token()
        token = weakref.ref(x.token)
        y = made(x, weight)
        y.sum().backward()
        del x, y
        gc.collect()
        if token() is not None:
            kept.append(number)
    return kept


def test_no_node_that_accumulates_runs_in_a_graph_or_is_kept(place: Place) -> None:
    model = perceptron(place)
    accumulated: list[int] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: accumulated.append(id(p)))
    made = pygraph.make_graphed_callables(model, (), 0, device=place.name)
    for number in range(1, 9):
        made(place.randn(6, 4)).sum().backward()
        assert len(accumulated) == 4 * number
    weight = model[0].weight
    alive = weakref.ref(weight)
    model[0] = nn.Linear(4, 8).to(place.torch)
    del weight, parameter
    accumulated.clear()
    gc.collect()
    assert alive() is None, "the graph keeps a parameter"


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.scale = 2.0
        return x * weight * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradient * weight * ctx.scale, (gradient * x * ctx.scale).sum(0)


class Keeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.x, ctx.weight = x, weight
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.weight, (gradient * ctx.x).sum(0)


class Scaled(nn.Module):
    """Calls a function on its input and its weight."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.scales = torch.tensor([0.5, 1, 2, 3])
        self.function = function
        self.calls: list[int] = []

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def scaled(place: Place, function: Any) -> Any:
    model = Scaled(function).to(place.torch)
    model.scales = model.scales.to(place.torch)
    return model


def test_functions_of_the_programs_own(place: Place) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return Doubled.apply(torch.tanh(x), self.weight)

    report = agree(place, lambda: scaled(place, forward), training(place))
    # Its backward is code that the first calls had not shown: they are looked at once more.
    early, forward_graph, backward_graph = report.graphs
    assert (early.state, early.reason) == (REPLACED, READS_MORE), str(report)
    assert (forward_graph.replays, backward_graph.replays) == (6, 4), str(report)
    assert reasons(report) == READS_MORE


def keeps_on_ctx(self: Any, x: torch.Tensor) -> torch.Tensor:
    return Keeping.apply(torch.tanh(x), self.weight)


def checkpoints(self: Any, x: torch.Tensor) -> torch.Tensor:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.weight)

    return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)


def checkpoints_reentrantly(self: Any, x: torch.Tensor) -> torch.Tensor:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.weight)

    return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=True)


def returns_a_view(self: Any, x: torch.Tensor) -> Any:
    return x.view(-1), (x * self.weight).exp()


def returns_two_views(self: Any, x: torch.Tensor) -> Any:
    y = x * self.weight
    return y, y.view(-1)


def counts_in_backward(self: Any, x: torch.Tensor) -> Any:
    y = x * self.weight
    y.register_hook(lambda gradient: self.calls.append(1))
    return y.exp()


def reads_in_backward(self: Any, x: torch.Tensor) -> Any:
    y = x * self.weight
    y.register_hook(lambda gradient: gradient * self.scales)
    return y.exp()


def keeps_state(self: Any, x: torch.Tensor) -> Any:
    self.last = x * self.weight
    return self.last.exp()


def penalises_its_gradient(self: Any, x: torch.Tensor) -> Any:
    y = torch.tanh(x * self.weight)
    (gradient,) = torch.autograd.grad(y.sum(), self.weight, create_graph=True)
    return y * gradient.square().mean()


def reads_the_loss(self: Any, x: torch.Tensor) -> Any:
    y = x * self.weight
    return y * 2 if float(y.sum()) > 0 else y * 3


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (keeps_on_ctx, r"its KeepingBackward keeps a tensor in ctx\.x"),
        (checkpoints, "it decides itself what autograd saves"),
        (checkpoints_reentrantly, "it decides itself what autograd saves"),
        (returns_a_view, "returns a view of what it was given"),
        (returns_two_views, "returns two views of the same tensor"),
        (counts_in_backward, r"Scaled\.forward\.calls is a list of 2, and was a list of 1"),
        (reads_in_backward, "of its backward: .* neither an argument nor found"),
        (keeps_state, "keeps a tensor that waits for a backward|each call changes what it reads"),
        (penalises_its_gradient, "it differentiates what its caller is to differentiate once more"),
        (reads_the_loss, "aten._local_scalar_dense|Tensor.item|synchronisation"),
    ],
)
def test_what_no_graph_can_serve_runs_as_it_is(place: Place, forward: Any, why: str) -> None:
    def loss_of(result: Any) -> torch.Tensor:
        results = result if isinstance(result, tuple) else (result,)
        return sum(each.square().mean() for each in results)  # type: ignore[return-value]

    report = agree(place, lambda: scaled(place, forward), training(place, loss_of=loss_of))
    assert re.search(why, reasons(report)), reasons(report)
    assert all(graph.state != GRAPHED for graph in report.graphs)


def test_arguments_with_a_history_that_are_written_run_as_they_are(place: Place) -> None:
    def build() -> Any:
        return lambda x, w: x.mul_(w).exp()

    def train(function: Any) -> list[Any]:
        found: list[Any] = []
        for _ in range(8):
            x, weight = (place.randn(3, requires_grad=True) for _ in range(2))
            inner = x * 2
            function(inner, weight).sum().backward()
            found += snapshot([inner, x.grad, weight.grad])
        return found

    report = agree(place, build, train)
    assert "in-place operation" in reasons(report), reasons(report)


def test_what_is_written_behind_its_saving_runs_as_it_is(place: Place) -> None:
    def forward(x: torch.Tensor, weight: torch.Tensor) -> Any:
        y = (x * weight).exp()
        z = y * 2
        with torch.no_grad():
            y.add_(1)
        return z, y.detach()

    made = pygraph.make_graphed_callables(forward, (), 0, device=place.name)
    for _ in range(6):
        x, weight = place.randn(3), nn.Parameter(place.randn(3))
        z, _ = made(x, weight)
        assert same_bits(z, forward(x, weight)[0])
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            z.sum().backward()
    assert "writes over a tensor that its backward needs" in reasons(pygraph.report())


@pytest.mark.parametrize("late", ["list", "gradient"])
def test_a_backward_that_changes_what_is_read_is_refused(place: Place, late: str) -> None:
    """The first backward comes late: it is the first that is seen."""

    def forward(self: Any, x: torch.Tensor) -> Any:
        def hook(gradient: torch.Tensor) -> None:
            if late == "list":
                self.calls.append(1)
            else:
                self.scales = gradient.detach()

        y = x * self.weight * self.scales
        y.register_hook(hook)
        return y.exp()

    def train(model: Any) -> list[Any]:
        found: list[Any] = []
        for number in range(12):
            y = model(place.randn(6, 4))
            if number >= 5:
                y.sum().backward()
            found += snapshot([y, *state_of(model), model.scales, *model.calls])
        return found

    report = agree(place, lambda: scaled(place, forward), train)
    expected = "changes what a replay does not" if late == "list" else "puts another tensor in"
    assert expected in reasons(report), reasons(report)


def test_second_derivatives_run_as_they_are(place: Place) -> None:
    def train(model: Any) -> list[Any]:
        found: list[Any] = []
        for _ in range(8):
            x = place.randn(6, 4, requires_grad=True)
            (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            model.zero_grad()
            gradient.square().sum().backward()
            found += snapshot([gradient, *state_of(model)])
        return found

    report = agree(place, lambda: perceptron(place), train)
    assert "differentiated" in reasons(report)


def test_second_derivatives_of_a_graph_raise_once(place: Place) -> None:
    model = pygraph.make_graphed_callables(perceptron(place), (), 0, device=place.name)
    for _ in range(6):
        x = place.randn(6, 4, requires_grad=True)
        model(x).sum().backward()
    with pytest.raises(RuntimeError, match="cannot be differentiated"):
        torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    gradient.square().sum().backward()
    assert "differentiated" in reasons(pygraph.report())
    assert model.forward._entries[-1].as_it_is, "each call is looked at in vain"


def test_nothing_requires_grad(place: Place) -> None:
    """As torch's test of a module without parameters, under no_grad."""

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ x).relu()

    made = pygraph.make_graphed_callables(Net(), (place.randn(4, 4),), device=place.name)
    for _ in range(5):
        x = place.randn(4, 4)
        assert torch.equal(made(x), (x @ x).relu())
    all_graphed(pygraph.report(), graphs=1)


def test_gradients_that_lie_otherwise(place: Place) -> None:
    def train(model: Any) -> list[Any]:
        found: list[Any] = []
        for number in range(18):
            y = model(place.randn(6, 4))
            model.zero_grad()
            if number % 3 == 0:
                y.sum().backward()  # one number, expanded
            elif number % 3 == 1:
                y.backward(torch.ones_like(y))
            else:
                y.backward(place.randn(2, 6).t())
            found += snapshot([y, *state_of(model)])
        return found

    all_graphed(agree(place, lambda: perceptron(place), train), graphs=4)


def test_wrong_arguments_are_named() -> None:
    make = functools.partial(pygraph.make_graphed_callables, device="twin")
    with pytest.raises(TypeError, match="takes callables, found a int"):
        make(3, ())  # type: ignore[type-var]
    with pytest.raises(TypeError, match="sample_args must be a tuple"):
        make((torch.sin, torch.cos), ((torch.ones(1),),))
    with pytest.raises(TypeError, match="sample_args must be a tuple"):
        make(torch.sin, torch.ones(1))  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="num_warmup_iters is -1"):
        make(torch.sin, (), -1)
    with pytest.raises(ValueError, match="device is 'gpu'"):
        make(torch.sin, (), device="gpu")


def test_what_a_call_raises_comes_to_the_caller(place: Place) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.fail = nn.Linear(4, 2), False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.fail:
                raise ValueError("as asked")
            return self.linear(x)

    plain = Net().to(place.torch)
    made = pygraph.make_graphed_callables(Net().to(place.torch), (), 0, device=place.name)
    made.load_state_dict(plain.state_dict())
    for number in range(10):
        made.fail = number in (2, 6)
        x = place.randn(6, 4)
        if made.fail:
            with pytest.raises(ValueError, match="as asked"):
                made(x)
            continue
        made.zero_grad()
        plain.zero_grad()
        made(x).sum().backward()
        plain(x).sum().backward()
        assert same_bits(made.linear.weight.grad, plain.linear.weight.grad)


def test_a_failed_warm_up_leaves_buffers_as_they_were(place: Place) -> None:
    model = perceptron(place, nn.BatchNorm1d(8))
    before = snapshot(list(model.buffers()))
    unused = place.randn(6, 4, requires_grad=True)
    sample = place.randn(6, 4), unused
    forward = model.forward
    model.forward = lambda x, unused: forward(x)
    with pytest.raises(RuntimeError, match="allow_unused=True"):
        pygraph.make_graphed_callables(model, sample, device=place.name)
    assert all(map(same_bits, snapshot(list(model.buffers())), before))


def test_numbers_that_vary_have_graphs_of_their_own(place: Place) -> None:
    """Autograd's graph of a capture keeps them."""

    def train(model: Any) -> list[Any]:
        found: list[Any] = []
        for number in range(30):
            scale = (0.5, 0.25, 1.5)[number % 3]
            x = place.randn(6, 4, requires_grad=True)
            y = model(x, scale)
            model.zero_grad()
            y.sum().backward()
            found += snapshot([y, x.grad, *state_of(model)])
            with torch.no_grad():
                found += snapshot([model(x, scale)])
        return found

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor, scale: float) -> Any:
            return torch.tanh(self.linear(x) * scale)

    report = agree(place, lambda: Net().to(place.torch), train)
    backwards = [graph for graph in report.graphs if "backward" in graph.name]
    assert len(backwards) == 3, str(report)
    assert all(graph.replays >= 3 for graph in backwards), str(report)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_from_outside(place: Place, reentrant: bool) -> None:
    """What others save in place of autograd is not mixed with what graphs save."""

    def train(model: Any) -> list[Any]:
        found: list[Any] = []
        for number in range(16):
            x = place.randn(6, 4, requires_grad=True)
            if number < 8:
                y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant)
            else:
                y = model(x)
            model.zero_grad()
            y.square().mean().backward()
            found += snapshot([y, x.grad, *state_of(model)])
        return found

    report = agree(place, lambda: perceptron(place, nn.Dropout(0.5)), train)
    assert all(graph.state == GRAPHED for graph in report.graphs), str(report)
    assert sum(graph.replays for graph in report.graphs) >= 2 * 8 - FORWARD - BACKWARD


def test_transforms_of_whole_functions_run_as_they_are(place: Place) -> None:
    def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model(x).square().sum()

    def tangent(model: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            return torch.autograd.forward_ad.unpack_dual(model(dual)).tangent

    def train(model: Any) -> list[Any]:
        found: list[Any] = []
        for _ in range(8):
            x, many = place.randn(4), place.randn(6, 4)
            one = functools.partial(loss, model)
            model.zero_grad()
            one(x).backward()
            found += snapshot([state_of(model), torch.func.grad(one)(x), tangent(model, x)])
            found += snapshot([torch.func.vmap(torch.func.grad(one))(many)])
        return found

    all_graphed(agree(place, lambda: perceptron(place), train))


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_copy_has_graphs_of_its_own(place: Place, way: str) -> None:
    model = pygraph.make_graphed_callables(perceptron(place), (), 0, device=place.name)
    for _ in range(8):
        model(place.randn(6, 4)).sum().backward()
    other = copy.deepcopy(model) if way == "deepcopy" else pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        other[0].weight.mul_(2)
    for _ in range(8):
        x = place.randn(6, 4)
        for each in (model, other):
            each.zero_grad()
            y = each(x)
            y.sum().backward()
            plain = perceptron(place)
            plain.load_state_dict(each.state_dict())
            expected = plain(x)
            expected.sum().backward()
            assert same_bits(y, expected)
            assert same_bits(each[0].weight.grad, plain[0].weight.grad)
    all_graphed(pygraph.report(), graphs=4)
