"""An operator that breaks a capture costs only itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pygraph
from pygraph.decide import culprits as decided
from pygraph.frontends.compile import aot, culprits
from pygraph.reporting import GraphReport
from pygraph.runtime.training_pair import PairLayout, TrainingPair
from pygraph.twin import recorder


@pytest.fixture(autouse=True)
def fresh(one_thread: None) -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    pygraph.reset()
    yield
    torch._dynamo.reset()
    pygraph.reset()


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Operators that the twin records, but for those that are asked to be refused."""
    refused: set[str] = set()
    original = recorder._Recorder._record

    def record(self: Any, func: Any, *args: Any) -> Any:
        if func.name().split(".")[0] in refused:
            raise recorder.NotRecordable(str(func), "synchronises")
        return original(self, func, *args)

    monkeypatch.setattr(recorder._Recorder, "_record", record)
    with torch.library._scoped_library("pygraph_culprit", "DEF") as library:
        for name, scale in (("one", 2.0), ("two", 3.0), ("three", 4.0), ("four", 5.0)):
            define(library, name, scale)
        define_pair(library)

        def refuse(*names: str) -> Any:
            refused.update(f"pygraph_culprit::{name}" for name in names)
            return torch.ops.pygraph_culprit

        yield refuse


def define(library: Any, name: str, scale: float) -> None:
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, lambda x: x * scale, "CPU")
    qualified = f"pygraph_culprit::{name}"
    torch.library.register_fake(qualified, torch.empty_like, lib=library)
    torch.library.register_autograd(qualified, lambda context, grad: grad * scale, lib=library)


def define_pair(library: Any) -> None:
    library.define("pair(Tensor x) -> (Tensor, Tensor)")
    library.impl("pair", lambda x: (x * 2, x + 1), "CPU")
    torch.library.register_fake(
        "pygraph_culprit::pair", lambda x: (torch.empty_like(x), torch.empty_like(x)), lib=library
    )


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="pygraph", options={"device": "twin", **options})


def by_state(state: str) -> list[GraphReport]:
    return [graph for graph in pygraph.report().graphs if graph.state == state]


def agree(
    function: Callable[..., Any], calls: int = 7, make: Any = None, **options: Any
) -> Callable[..., Any]:
    """Calls the compiled function on fresh inputs; every result is the function's own."""
    graph = compiled(function, **options)
    with torch.no_grad():
        for _ in range(calls):
            given = torch.randn(3, 4) if make is None else make()
            assert torch.equal(graph(given), function(given))
    return graph


def test_graphs_run_on_both_sides_of_a_culprit(breaking: Any) -> None:
    ops = breaking("one")
    agree(lambda x: torch.relu(ops.one(x + 1) * 3))
    (old,) = by_state("replaced")
    assert old.operator == "pygraph_culprit.one.default"
    assert old.reason is not None
    assert old.reason.startswith(
        "pygraph_culprit.one.default synchronises; "
        "compiled once more with pygraph_culprit::one outside, in "
    )
    new = by_state("graphed")
    assert len(new) == 2 and len(pygraph.report().graphs) == 3
    for graph in new:
        assert graph.culprits == ["pygraph_culprit::one"]
        assert graph.compiled_again_s > 0
        assert graph.proof == "bit-equal" and graph.replays >= 1
    said = str(pygraph.report())
    assert "2 of 2 compiled graphs run" in said
    assert "compiled once more with pygraph_culprit::one outside, in" in said


def test_a_graph_that_is_about_to_be_compiled_again_is_warming(breaking: Any) -> None:
    ops = breaking("one")
    agree(lambda x: ops.one(x + 1) * 3, calls=2)
    (graph,) = pygraph.report().graphs
    assert (graph.state, graph.operator) == ("warming", "pygraph_culprit.one.default")


def test_calls_come_to_the_first_new_graph_before_the_wrappers(breaking: Any) -> None:
    ops = breaking("one")
    agree(lambda x: torch.relu(ops.one(x + 1) * 3))
    first, second = by_state("graphed")
    assert (first.before_wrappers, second.before_wrappers) == (True, False)


def test_an_operator_that_would_break_its_library_is_outside(breaking: Any) -> None:
    """The first call of a callable is watched for these: it is not captured at all."""
    agree(lambda x: torch.linalg.eigh((x @ x.T) + 1)[0] * 2)
    (old,) = by_state("replaced")
    assert old.operator == "aten._linalg_eigh.default"
    assert len(by_state("graphed")) == 2
    assert by_state("graphed")[0].culprits == ["aten::_linalg_eigh"]


def test_a_backward_finishes_in_the_code_that_it_belongs_to(breaking: Any) -> None:
    """A forward is compiled again while the backward of an earlier call is still to come."""
    ops = breaking("one")
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        return ops.one(model(x)).tanh()

    fast = compiled(function)
    waiting = []
    for _ in range(6):
        x = torch.randn(3, 4)
        waiting.append((fast(x), function(x)))
    for found, expected in reversed(waiting):
        gradients = [torch.autograd.grad(each.sum(), model.weight)[0] for each in (found, expected)]
        assert torch.equal(*gradients)
    assert by_state("replaced")


def test_a_culprit_that_is_known_is_outside_from_the_start(breaking: Any) -> None:
    ops = breaking("one")
    agree(lambda x: ops.one(x + 1) * 3)
    agree(lambda x: ops.one(x.relu()).tanh() - 1, calls=4)
    new = [each for each in by_state("graphed") if each.compiled_again_s == 0]
    assert len(new) == 2 and len(by_state("replaced")) == 1
    assert "compiled with pygraph_culprit::one outside, in which captures" in str(pygraph.report())
    pygraph.reset()
    assert decided.CULPRITS.among(["pygraph_culprit::one"]) == ()


def test_several_culprits_one_after_the_other(breaking: Any) -> None:
    ops = breaking("one", "two")
    agree(lambda x: ops.two(ops.one(x + 1) * 3).tanh(), calls=12)
    new = by_state("graphed")
    assert len(new) == 3
    assert new[0].culprits == ["pygraph_culprit::one", "pygraph_culprit::two"]
    assert not by_state("fallback")


def test_no_more_culprits_than_a_few(breaking: Any) -> None:
    ops = breaking("one", "two", "three", "four")
    agree(lambda x: ops.four(ops.three(ops.two(ops.one(x + 1) - 3) * 3).tanh()) + 1, calls=20)
    assert sum(each.operator is not None for each in by_state("replaced")) == 3
    (given_up,) = by_state("fallback")
    assert given_up.operator == "pygraph_culprit.four.default"


def test_no_more_compilations_than_a_few(breaking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decided, "MOST_COMPILATIONS", 0)
    ops = breaking("one")
    agree(lambda x: ops.one(x + 1) * 3)
    (graph,) = pygraph.report().graphs
    assert graph.state == "fallback" and not graph.culprits


def test_an_operator_with_several_results(breaking: Any) -> None:
    ops = breaking("pair")

    def function(x: torch.Tensor) -> torch.Tensor:
        left, right = ops.pair(x + 1)
        return left * right + x

    agree(function)
    assert len(by_state("graphed")) == 2


def test_a_culprit_at_either_end(breaking: Any) -> None:
    ops = breaking("one")
    agree(lambda x: ops.one(x).tanh() + 1)
    agree(lambda x: ops.one(x.tanh() + 1))
    assert len(by_state("graphed")) == 2 and not by_state("fallback")


def test_sizes_that_change(breaking: Any) -> None:
    ops = breaking("one")
    sizes = iter([3, 5] * 10)
    agree(
        lambda x: torch.relu(ops.one(x + 1).view(-1, x.shape[0]) * 3),
        calls=16,
        make=lambda: torch.randn(next(sizes), 4),
    )
    assert len(by_state("graphed")) >= 2 and not by_state("fallback")


def test_parameters_stay_constants_and_written_buffers_are_written(breaking: Any) -> None:
    ops = breaking("one")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = ops.one(self.linear(x))
            self.seen += y.sum(0)
            return y.tanh() + self.seen

    torch.manual_seed(1)
    model, twin = Net(), Net()
    twin.load_state_dict(model.state_dict())
    graph = compiled(model)
    with torch.no_grad():
        for _ in range(8):
            x = torch.randn(3, 4)
            assert torch.equal(graph(x), twin(x))
            assert torch.equal(model.seen, twin.seen)
    new = by_state("graphed")
    assert [each.constants for each in new] == [2, 1]


def train(function: Any, model: Any, calls: int) -> list[torch.Tensor]:
    torch.manual_seed(2)
    found = []
    for _ in range(calls):
        x = torch.randn(3, 4)
        model.zero_grad()
        loss = function(x).sum()
        loss.backward()
        found += [loss.detach(), model.weight.grad.clone()]
    return found


def test_training_around_a_culprit_of_the_forward(breaking: Any) -> None:
    ops = breaking("one")
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        return ops.one(model(x)).tanh()

    found = train(compiled(function), model, 8)
    for left, right in zip(found, train(function, model, 8), strict=True):
        assert torch.equal(left, right)
    roles = sorted(each.name.split("(")[1] for each in by_state("graphed"))
    assert roles == ["backward)", "forward)", "forward)"]
    assert len(by_state("replaced")) == 1


def test_a_culprit_of_the_backward_leaves_the_forward_alone(breaking: Any) -> None:
    ops = breaking("two")
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 4)

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return ops.two(grad * 2)

    def function(x: torch.Tensor) -> torch.Tensor:
        return Scale.apply(model(x).tanh())

    found = train(compiled(function), model, 8)
    for left, right in zip(found, train(function, model, 8), strict=True):
        assert torch.equal(left, right)
    roles = sorted(each.name.split("(")[1] for each in by_state("graphed"))
    assert roles == ["backward)", "backward)", "forward)"]
    (old,) = by_state("replaced")
    assert "backward" in old.name


def test_what_cannot_stand_in_is_thrown_away(
    breaking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = aot._Source.compile_again

    def unfit(self: Any, outside: Any) -> Any:
        compiled = original(self, outside)
        if outside:
            raise culprits.Unfit("tested")
        return compiled

    monkeypatch.setattr(aot._Source, "compile_again", unfit)
    ops = breaking("one")
    agree(lambda x: ops.one(x + 1) * 3)
    (graph,) = pygraph.report().graphs
    assert graph.state == "fallback" and "synchronises" in (graph.reason or "")
    assert pygraph.report().events == [
        "compiling once more with pygraph_culprit::one outside came to nothing: tested"
    ]


def test_callables_of_a_backward_are_counted_anew() -> None:
    pair = TrainingPair(PairLayout)
    pair.add_backward(None)
    restore = pair.set_backward_aside()
    assert not pair.backward_is_compiled
    for _ in range(2):
        pair.add_backward(None)
    assert pair.callables == 2
    restore()
    assert pair.callables == 1


@pytest.mark.parametrize(("is_backward", "aside"), [(False, 0), (True, 1)])
def test_only_a_backward_is_set_aside(is_backward: bool, aside: int) -> None:
    calls: list[None] = []

    def set_aside() -> Callable[[], None]:
        calls.append(None)
        return lambda: None

    units = culprits.Units(lambda unit: None, set_aside)
    source: Any = SimpleNamespace(is_backward=is_backward, operators=frozenset())
    units.make_room(culprits.Unit(source, (), units))
    assert len(calls) == aside
