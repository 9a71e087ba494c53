"""pygraph.capture: any callable, its arguments, what it reads besides, and what it returns."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import gc
import linecache
import pickle
import threading
import weakref
from typing import Any, NamedTuple

import pytest
import torch
from callable_support import UNGRAPHED, Program, Unseen, agree, runs_as_it_is
from places import Place, assert_bits
from torch import nn
from torch._library import simple_registry

import pygraph
from pygraph import _engine
from pygraph.frontends.callable.captured import Captured
from pygraph.reporting import GRAPHED

SCALE = 2.0


def graphed() -> Any:
    graphs = pygraph.report().graphs
    assert len(graphs) == 1, str(pygraph.report())
    assert graphs[0].state == GRAPHED, str(pygraph.report())
    return graphs[0]


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float
    more: dict[str, Any]


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def test_arguments_are_any_tree_and_results_may_be_kept(place: Place) -> None:
    def function(first: Any, *rest: Any, batch: Batch, flag: bool, name: str) -> Any:
        x = first["a"][0] + batch.x * batch.scale + batch.more["y"]
        for each in rest:
            x = x + each.left - each.right if isinstance(each, Pair) else x
        return {"sum": x, "all": [x * 2, (None, name, x)], "first": first["a"][0]}

    def inputs(number: int) -> Any:
        make = functools.partial(place.randn, 3, 4)
        return ({"a": [make()], "n": None}, Pair(make(), make()), None)

    def build() -> Program:
        def step(*args: Any) -> Any:
            return function(*args[:-1], batch=args[-1], flag=True, name="n")

        def given(number: int) -> Any:
            batch = Batch(place.randn(3, 4), 0.5, {"y": place.randn(4)})
            return (*inputs(number), batch)

        return Program(step, lambda: [], given)

    report = agree(place, build)
    assert report.inputs == 5
    assert report.bytes_copied == 0


def test_a_result_that_is_an_argument_is_that_very_object(place: Place) -> None:
    weight = place.randn(4)

    @pygraph.capture(device=place.name)
    def function(x: torch.Tensor) -> Any:
        return x, weight, x + weight, x.view(2, 2)

    for _ in range(6):
        x = place.randn(4)
        first, second, total, view = function(x)
        assert first is x
        assert second is weight
        assert torch.equal(total, x + weight)
        assert view.data_ptr() == x.data_ptr()
    assert graphed().replays == 6 - UNGRAPHED


class Cache:
    """As transformers' static ones: made when first used, then written in place."""

    def __init__(self) -> None:
        self.made = False
        self.rows = self.length = torch.empty(0)

    def update(self, row: torch.Tensor) -> torch.Tensor:
        if not self.made:
            self.rows = torch.zeros(8, *row.shape, device=row.device)
            self.length = torch.zeros(1, device=row.device, dtype=torch.int64)
            self.made = True
        self.rows.index_copy_(0, self.length, row[None])
        self.length.add_(1)
        return self.rows.sum(0)


def test_an_object_that_is_returned_is_that_very_object(place: Place) -> None:
    class Owner:
        def __init__(self) -> None:
            self.kept = [place.randn(4)]
            self.settings = {"scale": place.randn(4)}

        def __call__(self, x: Any, caches: list[Cache], batch: dict[str, Any]) -> Any:
            y = caches[0].update(x * self.settings["scale"] + self.kept[0] + batch["y"])
            return {"y": y, "cache": caches[0]}, (self.kept, self.settings, batch), self

    def made() -> tuple[Any, list[Cache], Any]:
        cache = Cache()
        cache.update(torch.zeros(4, device=place.torch))
        return place.randn(4), [cache], {"y": place.randn(4)}

    owner = Owner()
    fast = pygraph.capture(owner, device=place.name)
    for _ in range(7):
        x, caches, batch = made()
        expected, _, _ = owner(x, [copy.deepcopy(caches[0])], batch)
        for _ in range(2):
            found, others, itself = fast(x, caches, batch)
            assert itself is owner
            assert found["cache"] is caches[0]
            assert others[0] is owner.kept
            assert others[1] is owner.settings
            assert others[2] is batch
            if expected is not None:
                assert_bits([found["y"]], [expected["y"]])
                expected = None
        assert caches[0].length.item() == 3
        owner.kept[:] = [place.randn(4)]
    assert graphed().replays == 14 - UNGRAPHED


def test_an_object_is_returned_beside_results_that_wait(place: Place) -> None:
    weight = torch.nn.Parameter(place.randn(4))

    def forward(x: torch.Tensor, cache: Cache) -> Any:
        return cache, (x * weight).exp()

    fast = pygraph.capture(forward, device=place.name)
    for _ in range(6):
        x, cache = place.randn(4), Cache()
        weight.grad = None
        found, y = fast(x, cache)
        y.sum().backward()
        assert found is cache
        assert weight.grad is not None
        assert_bits([y, weight.grad], [(x * weight).exp(), x * (x * weight).exp()])
    assert any(graph.replays for graph in pygraph.report().graphs)


def test_calls_that_begin_something_run_as_they_are_beside_those_that_go_on(place: Place) -> None:
    def step(x: torch.Tensor, cache: Cache) -> Any:
        return cache.update(x), cache

    fast = pygraph.capture(step, device=place.name)
    sizes = (4, 5, 6)
    for size in sizes:  # what has begun so often does not keep other sizes from their graphs
        for _ in range(6):
            ours, theirs = Cache(), Cache()
            for _ in range(5):
                x = place.randn(size)
                (found, cache), (expected, _) = fast(x, ours), step(x, theirs)
                assert cache is ours
                assert_bits([found, ours.rows, ours.length], [expected, theirs.rows, theirs.length])
    going_on = [graph for graph in pygraph.report().graphs if graph.state == GRAPHED]
    beginning = [graph for graph in pygraph.report().graphs if graph.state != GRAPHED]
    assert [graph.replays for graph in going_on] == [6 * 4 - 2] * len(sizes)
    assert len(beginning) == len(sizes)
    why = "each call changes what it reads: argument[1]."
    assert all(why in str(graph.reason) for graph in beginning)


def test_each_structure_has_a_program_and_each_miss_is_explained(place: Place) -> None:
    @pygraph.capture(device=place.name)
    def function(x: torch.Tensor, power: int = 2, *, negative: bool = False) -> torch.Tensor:
        y = x.pow(power)
        return -y if negative else y

    with torch.no_grad():
        for _ in range(5):
            for arguments, named in (
                ((place.randn(4),), {}),
                ((place.randn(8),), {}),
                ((place.randn(4), 3), {}),
                ((place.randn(4),), {"negative": True}),
                ((place.randn(4).double(),), {}),
                ((place.randn(8)[::2],), {}),
            ):
                found = function(*arguments, **named)
                assert_bits([found], [function.function(*arguments, **named)])
    report = pygraph.report()
    assert len(report.graphs) == 6
    assert all(graph.state == GRAPHED for graph in report.graphs)
    assert sum(graph.replays for graph in report.graphs) >= 6 * 2
    told = " ".join(report.events)
    assert "argument[0] is a float64 tensor [4]" in told, told
    assert "argument is a dict of 0, and was a dict of 1" in told, told


def test_programs_are_bounded(place: Place) -> None:
    captured = pygraph.capture(lambda x: x * 2, device=place.name, max_programs=2)
    for size in range(1, 6):
        for _ in range(4):
            x = place.randn(size)
            assert torch.equal(captured(x), x * 2)
    assert len(captured._entries) == 2
    assert len(pygraph.report().graphs) >= 2


@pytest.mark.parametrize("mode", ["grad", "autocast", "training"])
def test_modes_have_programs_of_their_own(place: Place, mode: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(place.torch)
    captured = pygraph.capture(model, device=place.name)
    kind = place.torch.type
    for number in range(12):
        on = bool(number % 2)
        model.train(mode == "training" and on)
        x = place.randn(2, 4)
        with (
            torch.set_grad_enabled(False),
            torch.autocast(kind, dtype=torch.bfloat16, enabled=mode == "autocast" and on),
        ):
            torch.manual_seed(number)
            expected = model(x)
            torch.manual_seed(number)
            found = captured(x)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


@pytest.mark.parametrize("around", [False, True], ids=["inside", "around"])
@pytest.mark.parametrize("kept", [False, True], ids=["ordinary cache", "inference cache"])
def test_views_in_inference_mode(place: Place, around: bool, kept: bool) -> None:
    """Of what the callable reads and writes: of tensors that autograd knows, and of others."""

    def build() -> Program:
        with torch.inference_mode(kept):
            cache = torch.zeros(2, 4, 8, device=place.torch)

        @torch.inference_mode()
        def step(row: torch.Tensor, number: torch.Tensor) -> Any:
            keys, values = cache
            keys.index_copy_(0, number, row)
            values[0].add_(row[0])
            return keys @ values.t(), number + 1

        def inputs(number: int) -> Any:
            return place.randn(1, 8), torch.tensor([number % 4], device=place.torch)

        return Program(step, lambda: [cache], inputs)

    with torch.inference_mode(around):
        agree(place, build)


def test_one_region_of_autocast_around_calls(place: Place) -> None:
    """It keeps the weights that it has cast until its end: none of a capture's."""
    model = nn.Linear(4, 4).to(place.torch)
    captured = pygraph.capture(lambda x: model(x), device=place.name)
    with torch.no_grad(), torch.autocast(place.torch.type, dtype=torch.bfloat16):
        for _ in range(6):
            x = place.randn(2, 4)
            assert torch.equal(captured(x), model(x))
    assert graphed().replays == 6 - UNGRAPHED


class Counter(nn.Module):
    """Reads a global, a class attribute, a buffer and attributes of its own."""

    factor = 1.5

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))
        self.settings = {"scale": 0.5, "on": True}
        self.calls = 0
        self.unrelated = [1, 2, 3]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x) * self.settings["scale"] * self.factor * SCALE + self.shift
        return y if self.settings["on"] else -y


def test_state_that_is_read_is_compared_in_each_call(place: Place) -> None:
    model = Counter().to(place.torch)
    captured = pygraph.capture(model, device=place.name)

    def check(calls: int = 4) -> int:
        before = sum(graph.replays for graph in pygraph.report().graphs)
        with torch.no_grad():
            for _ in range(calls):
                x = place.randn(2, 4)
                assert_bits([captured(x)], [model(x)])
        return sum(graph.replays for graph in pygraph.report().graphs) - before

    global SCALE
    check()
    assert check() == 4
    model.settings["scale"] = 0.25
    assert check() == 2
    model.settings = {"scale": 0.25, "on": True}
    assert check() == 4  # an equal dictionary
    model.settings["on"] = False
    assert check() == 2
    Counter.factor = 3.0
    assert check() == 2
    Counter.factor = 1.5
    SCALE = 4.0
    try:
        assert check() == 2
    finally:
        SCALE = 2.0
    model.linear = nn.Linear(4, 4).to(place.torch)
    model.settings["on"] = True
    model.settings["scale"] = 0.5
    assert check() == 4  # other weights of the same shape: bound anew
    model.shift = torch.zeros(4, device=place.torch)
    assert check() == 4
    with torch.no_grad():
        model.linear.weight.data = place.randn(4, 4)
    assert check() == 4
    model.unrelated.append(4)
    model.calls += 1
    assert check() == 4
    model.linear.register_forward_hook(lambda module, args, out: out * 2)
    assert check() == 1  # watched once more, for the hook's own names


def test_tensors_swapped_behind_a_graph_are_seen(place: Place) -> None:
    tensors = {"a": place.randn(4), "b": place.randn(4)}
    captured = pygraph.capture(lambda x: x * tensors["a"] - tensors["b"], device=place.name)
    for number in range(8):
        if number == 5:
            tensors["a"], tensors["b"] = tensors["b"], tensors["a"]
        x = place.randn(4)
        assert torch.equal(captured(x), x * tensors["a"] - tensors["b"])
    assert graphed().replays == 8 - UNGRAPHED


def test_a_tensor_that_died_is_not_read(place: Place) -> None:
    class Holder:
        pass

    holder: Any = Holder()
    holder.weight = place.randn(1000)
    captured = pygraph.capture(lambda x: x + holder.weight, device=place.name)
    for _ in range(5):
        captured(place.randn(1000))
    gone = weakref.ref(holder.weight)
    holder.weight = place.randn(1000)
    gc.collect()
    assert gone() is None, "the graph keeps it"
    x = place.randn(1000)
    assert torch.equal(captured(x), x + holder.weight)
    assert graphed().replays == 3


def test_attributes_that_get_new_tensors(place: Place) -> None:
    class Cell:
        def __init__(self) -> None:
            self.hidden = torch.zeros(3, device=place.torch)
            self.cell = {"c": torch.zeros(3, device=place.torch)}
            self.history = [torch.zeros(3, device=place.torch)]

        def step(self, x: torch.Tensor) -> torch.Tensor:
            self.hidden = torch.tanh(self.hidden + x)
            self.cell["c"], self.history[0] = self.hidden * 2, self.cell["c"]
            return self.hidden

    def build() -> Program:
        cell = Cell()
        return Program(
            cell.step,
            lambda: [cell.hidden, cell.cell["c"], cell.history[0]],
            lambda number: (torch.full((3,), number / 10, device=place.torch),),
        )

    agree(place, build)


def test_variables_that_get_new_tensors(place: Place) -> None:
    def build() -> Program:
        total = torch.zeros(3, device=place.torch)

        def step(x: torch.Tensor) -> torch.Tensor:
            nonlocal total
            total = total + x
            return total * 2

        return Program(step, lambda: [total], lambda number: (place.randn(3),))

    agree(place, build)


HIDDEN = torch.zeros(3)


def step_of_a_module(x: torch.Tensor) -> torch.Tensor:
    global HIDDEN
    HIDDEN = HIDDEN.to(x.device) * 0.5 + x
    return HIDDEN * 2


def test_variables_of_a_module_that_get_new_tensors(place: Place) -> None:
    def build() -> Program:
        global HIDDEN
        HIDDEN = torch.zeros(3, device=place.torch)
        return Program(step_of_a_module, lambda: [HIDDEN], lambda number: (place.randn(3),))

    agree(place, build)


@pytest.mark.parametrize("kind", [list, dict, tuple])
def test_containers_that_are_made_anew_are_the_callables(place: Place, kind: Any) -> None:
    """A replay would put their tensors in the old ones."""

    def build() -> Program:
        class Cell:
            state = None

            def step(self, x: torch.Tensor) -> torch.Tensor:
                old, key = self.state, "h" if kind is dict else 0
                new = old[key] * 0.5 + x
                self.state = {"h": new} if kind is dict else kind([new])
                return x * 2

        cell = Cell()
        zeros = torch.zeros(3, device=place.torch)
        cell.state = {"h": zeros} if kind is dict else kind([zeros])
        return Program(cell.step, lambda: [cell.state], lambda number: (place.randn(3),))

    assert runs_as_it_is(place, build)


def test_iterators_move_on_once_a_call(place: Place) -> None:
    values = [place.randn(3) for _ in range(8)]
    batches = iter(values)
    captured = pygraph.capture(lambda x: x + next(batches), device=place.name)
    for value in values:
        x = place.randn(3)
        assert torch.equal(captured(x), x + value)
    assert "is a list_iterator: an iterator moves on" in str(pygraph.report())


def test_generators_that_are_no_arguments(place: Place) -> None:
    def build() -> Program:
        generator = torch.Generator(place.torch).manual_seed(3)

        def step(x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn(3, generator=generator, device=place.torch)

        return Program(step, generator.get_state, lambda number: (place.randn(3),))

    agree(place, build)


def test_arguments_that_are_written(place: Place) -> None:
    def build() -> Program:
        buffer = torch.zeros(4, device=place.torch)

        def step(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            out.add_(x)
            buffer.mul_(0.5).add_(out)
            return buffer.sum()

        outs = [torch.ones(4, device=place.torch) for _ in range(3)]
        return Program(
            step, lambda: [buffer, *outs], lambda number: (place.randn(4), outs[number % 3])
        )

    agree(place, build)


def test_tensors_that_share_memory(place: Place) -> None:
    flat = place.randn(12)
    left, right, middle = flat[:6], flat[6:], flat[3:9]

    @pygraph.capture(device=place.name)
    def function(x: torch.Tensor) -> torch.Tensor:
        left.add_(x)
        right.mul_(0.5)
        return middle * 2 + flat.sum()

    expected = flat.clone()
    for _ in range(6):
        x = place.randn(6)
        found = function(x)
        expected[:6] += x
        expected[6:] *= 0.5
        assert torch.equal(flat, expected)
        assert torch.equal(found, expected[3:9] * 2 + expected.sum())
    assert graphed().replays == 6 - UNGRAPHED


def test_methods_partials_and_callable_objects(place: Place) -> None:
    class Model:
        def __init__(self, scale: float) -> None:
            self.weight = place.randn(4) * scale

        @pygraph.capture(device=place.name)
        def method(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.weight

    one, two = Model(1.0), Model(2.0)
    added = pygraph.capture(one, device=place.name)
    partial = pygraph.capture(functools.partial(torch.add, alpha=2), device=place.name)
    for _ in range(6):
        x = place.randn(4)
        for model in (one, two):
            assert torch.equal(model.method(x), x * model.weight)
        assert torch.equal(added(x), x + one.weight)
        assert torch.equal(partial(x, x), torch.add(x, x, alpha=2))
    assert Model.method.__name__ == "method"
    assert all(graph.state == GRAPHED for graph in pygraph.report().graphs), str(pygraph.report())


def test_a_context_that_drops_its_graphs(place: Place) -> None:
    with pygraph.capture(lambda x: x * 3, device=place.name) as fast:
        for _ in range(5):
            x = place.randn(4)
            assert torch.equal(fast(x), x * 3)
        assert graphed().replays == 2
    assert torch.equal(fast(x), x * 3)
    assert graphed().replays == 2
    assert fast._entries == []


def counting(place: Place) -> Program:
    class Agent:
        def __init__(self) -> None:
            self.steps = 3
            self.weight = place.randn(4)

        def step(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            return x * self.weight * self.steps

    agent = Agent()
    return Program(agent.step, lambda: [agent.steps], lambda number: (place.randn(4),))


def listing(place: Place) -> Program:
    log: list[Any] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        log.append(x)
        return x * len(log)

    return Program(step, lambda: [*log], lambda number: (place.randn(4),))


def drawing(place: Place) -> Program:
    import random

    random.seed(1)
    return Program(lambda x: x * random.random(), lambda: [], lambda number: (place.randn(4),))


def reading(place: Place) -> Program:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if float(x.sum()) > 0 else x * 3

    return Program(step, lambda: [], lambda number: (place.randn(4),))


def returning_numbers(place: Place) -> Program:
    return Program(lambda x: (x, x.sum().item()), lambda: [], lambda number: (place.randn(4),))


def shaped_by_data(place: Place) -> Program:
    return Program(lambda x: x[x > 0], lambda: [], lambda number: (place.randn(8),))


def returning_objects(place: Place) -> Program:
    return Program(lambda x: iter([x]), lambda: [], lambda number: (place.randn(8),))


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (counting, r"each call changes what it reads: .*\.steps was \d and is \d now"),
        (listing, "was a list"),
        (drawing, "random numbers"),
        (reading, "aten._local_scalar_dense|Tensor.item|synchronisation"),
        (returning_numbers, "aten._local_scalar_dense|Tensor.item|synchronisation"),
        (shaped_by_data, "aten|synchronisation"),
    ],
)
def test_what_a_replay_cannot_stand_for_runs_as_it_is(place: Place, build: Any, why: str) -> None:
    import re

    reason = runs_as_it_is(place, functools.partial(build, place))
    assert re.search(why, reason), reason


def test_a_refusal_names_the_line(place: Place) -> None:
    runs_as_it_is(place, functools.partial(reading, place))
    (source,) = [graph.source for graph in pygraph.report().graphs]
    assert source is not None
    file, _, line = source.rpartition(":")
    assert file == __file__ and "float(x.sum())" in linecache.getline(file, int(line))


def test_what_cannot_be_returned_runs_as_it_is(place: Place) -> None:
    captured = pygraph.capture(lambda x: iter([x]), device=place.name)
    for _ in range(5):
        x = place.randn(4)
        assert next(captured(x)) is x
    assert "list_iterator" in str(pygraph.report())


def test_a_print_is_told(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    @pygraph.capture(device=place.name)
    def function(x: torch.Tensor) -> torch.Tensor:
        print("here")
        return x * 2

    for _ in range(5):
        function(place.randn(4))
    assert graphed().not_repeated == ["print()"]
    assert "print()" in str(pygraph.report())


def test_an_error_comes_to_the_caller_and_nothing_is_left(place: Place) -> None:
    class Model:
        def __init__(self) -> None:
            self.weight = place.randn(4)
            self.fail = False

        def step(self, x: torch.Tensor) -> torch.Tensor:
            self.weight.add_(1)
            if self.fail:
                raise ValueError("as asked")
            return x * self.weight

    model = Model()
    captured = pygraph.capture(model.step, device=place.name)
    for number in range(12):
        model.fail = number in (1, 2, 5, 9)
        before = model.weight.clone()
        if model.fail:
            with pytest.raises(ValueError, match="as asked"):
                captured(place.randn(4))
        else:
            x = place.randn(4)
            assert torch.equal(captured(x), x * (before + 1))
        assert torch.equal(model.weight, before + 1)


def test_a_failed_capture_leaves_no_trace(place: Place) -> None:
    model = nn.Linear(4, 1).to(place.torch)
    log: list[int] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        if float(loss) > 1e9:  # read on the host
            log.append(1)
        return loss

    captured = pygraph.capture(step, device=place.name)
    twin = copy.deepcopy(model)
    for _ in range(6):
        x = place.randn(2, 4)
        captured(x)
        twin.zero_grad()
        twin(x).sum().backward()
        with torch.no_grad():
            for each in twin.parameters():
                each -= 0.1 * each.grad
        for left, right in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.allclose(left, right)
            assert torch.allclose(left.grad, right.grad)
    assert not log
    assert sum(graph.replays for graph in pygraph.report().graphs) == 0


def test_a_result_that_waits_for_its_backward(place: Place) -> None:
    model = nn.Linear(4, 1).to(place.torch)
    plain = copy.deepcopy(model)
    captured = pygraph.capture(model, device=place.name)
    for _ in range(8):
        x = place.randn(2, 4)
        captured(x).sum().backward()
        plain(x).sum().backward()
        assert_bits([model.weight.grad], [plain.weight.grad])
    forward, backward = pygraph.report().graphs
    assert (forward.state, backward.state) == (GRAPHED, GRAPHED), str(pygraph.report())
    assert (forward.replays, backward.replays) == (8 - UNGRAPHED, 8 - UNGRAPHED - 2)
    with torch.no_grad():
        for _ in range(5):
            x = place.randn(2, 4)
            assert torch.equal(captured(x), model(x))
    assert pygraph.report().graphs[-1].replays >= 2


def test_transforms_of_whole_functions_run_as_they_are(place: Place) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 2

    captured = pygraph.capture(function, device=place.name)
    for _ in range(6):
        x, many = place.randn(4), place.randn(3, 4)
        assert torch.equal(captured(x), function(x))
        assert torch.equal(torch.func.vmap(captured)(many), torch.func.vmap(function)(many))
        found, expected = (torch.func.jvp(f, (x,), (x,)) for f in (captured, function))
        assert all(map(torch.equal, found, expected))
        gradients = (torch.func.grad(lambda x, f=f: f(x).sum())(x) for f in (captured, function))
        assert torch.equal(*gradients)
    assert graphed().replays == 6 - UNGRAPHED


@pygraph.capture(device="twin")
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Decorated:
    @pygraph.capture(device="twin")
    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.mark.parametrize("captured", [doubled, Decorated.method], ids=["function", "method"])
def test_what_stands_in_its_module_is_pickled_by_name(captured: Any) -> None:
    """As a function is."""
    assert pickle.loads(pickle.dumps(captured)) is captured
    assert copy.deepcopy(captured) is captured


def test_captured_within_captured(place: Place) -> None:
    inner = pygraph.capture(lambda x: x * 2, device=place.name)
    outer = pygraph.capture(lambda x: inner(x) + 1, device=place.name)
    for _ in range(8):
        x = place.randn(4)
        assert torch.equal(outer(x), x * 2 + 1)
    assert graphed().replays == 8 - UNGRAPHED, "the inner one is a part of the outer one's graph"


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_torch_compile_inside(place: Place, backend: str) -> None:
    if backend == "inductor" and place.name == "twin":
        pytest.skip("the twin sees operators, and not what Inductor makes of them")
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).to(place.torch)
    compiled = torch.compile(model, backend=backend)
    captured = pygraph.capture(lambda x: compiled(x).sum(0), device=place.name)
    with torch.no_grad():
        for _ in range(9):
            x = place.randn(3, 4)
            assert torch.equal(captured(x), compiled(x).sum(0))
        model[0].bias.data = place.randn(8)
        x = place.randn(3, 4)
        assert torch.equal(captured(x), compiled(x).sum(0))
    # What Triton's kernels read is not known before a capture, and the first one may be replaced.
    graph = pygraph.report().graphs[-1]
    assert graph.state == GRAPHED and graph.replays >= 3, str(pygraph.report())


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.factor = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.factor


def test_what_compiled_code_reads_is_compared(place: Place) -> None:
    """No frame of the module's is seen to run: Dynamo has put one function in place of all."""
    model = nn.Sequential(Scaled(), nn.ReLU()).to(place.torch)
    compiled = torch.compile(model, backend="aot_eager")
    captured = pygraph.capture(lambda x: compiled(x), device=place.name)
    with torch.no_grad():
        for factor in (2.0, 3.0):
            model[0].factor = factor
            for _ in range(6):
                x = place.randn(3, 4)
                assert torch.equal(captured(x), model(x))
    # With torch 2.11, what Dynamo makes for the second factor allocates differently in each run.
    assert sum(graph.replays for graph in pygraph.report().graphs) >= 6 - UNGRAPHED


def test_state_that_changes_when_it_is_linked(place: Place) -> None:
    runs = Unseen("runs", 0)
    state = {"seen": 0}

    def step(x: torch.Tensor) -> torch.Tensor:
        number = runs.get()
        runs.set(number + 1)
        if number == UNGRAPHED - 1:
            state["seen"] = number
        return x * 2

    captured = pygraph.capture(step, device=place.name)
    for _ in range(6):
        x = place.randn(4)
        assert torch.equal(captured(x), x * 2)
    assert state == {"seen": UNGRAPHED - 1}
    assert "changes what a replay does not" in str(pygraph.report())


@pytest.mark.parametrize("when", [1, 2], ids=["watched", "linked"])
def test_state_that_cannot_be_described_any_more(place: Place, when: int) -> None:
    """The callable has run once, and its caller has the result."""
    state: dict[str, Any] = {"last": place.randn(2), "runs": place.randn(1).zero_()}
    runs = Unseen("runs", 0)

    def step(x: torch.Tensor) -> torch.Tensor:
        state["runs"] += 1
        runs.set(runs.get() + 1)
        if runs.get() == when + 1:
            state["last"] = x.to_sparse()
        return x * 2

    captured = pygraph.capture(step, device=place.name)
    for number in range(6):
        x = place.randn(4)
        assert torch.equal(captured(x), x * 2)
        assert state["runs"].item() == number + 1
        assert state["last"].is_sparse == (number >= when)


def test_threads_share_a_captured_callable(place: Place) -> None:
    weight = place.randn(16, 16)
    captured = pygraph.capture(lambda x: torch.tanh(x @ weight), device=place.name)
    problems: list[Any] = []

    def work(seed: int) -> None:
        generator = torch.Generator(place.torch).manual_seed(seed)
        for _ in range(30):
            x = torch.randn(8, 16, device=place.torch, generator=generator)
            if not torch.equal(captured(x), torch.tanh(x @ weight)):
                problems.append(seed)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_a_captured_callable_that_was_never_made() -> None:
    captured = Captured.__new__(Captured)
    with pytest.raises(RuntimeError, match="called before it has been made"):
        captured()
    with pytest.raises(TypeError, match="takes a CapturedFunction"):
        _engine.EngineCalled(lambda: None)


@pytest.mark.parametrize("forget", [False, True])
def test_what_torch_does_once_for_each_operator_is_not_the_callables(
    place: Place, monkeypatch: pytest.MonkeyPatch, forget: bool
) -> None:
    looked_up = simple_registry.singleton._data
    captured = pygraph.capture(lambda x: -x, device=place.name)
    for call in range(6):
        x = place.randn(4)
        assert torch.equal(captured(x), -x)
        if forget and call == 0:
            for name in [each for each in looked_up if each.endswith("::neg")]:
                monkeypatch.delitem(looked_up, name)
    assert graphed().replays == 6 - UNGRAPHED


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="takes a callable, found a int"):
        pygraph.capture(3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="device is 'gpu'; it must be one of 'cuda', 'twin'"):
        pygraph.capture(len, device="gpu")
    with pytest.raises(ValueError, match="max_programs is 0"):
        pygraph.capture(len, max_programs=0)


def test_containers_of_every_kind(place: Place) -> None:
    Point = collections.namedtuple("Point", "x y")
    state = collections.OrderedDict(a=place.randn(2))
    numbers = collections.defaultdict(int, a=1)
    tags = {"one", "two"}
    queue = collections.deque([1, 2], maxlen=3)

    def function(p: Any) -> Any:
        return Point(p.x * len(tags) + numbers["a"], state["a"] + queue[0])

    captured = pygraph.capture(function, device=place.name)
    for number in range(14):
        if number == 5:
            tags.add("three")
        if number == 8:
            queue.append(7)
        if number == 11:
            numbers["a"] = 5
        p = Point(place.randn(2), place.randn(2))
        found = captured(p)
        assert type(found) is Point
        assert_bits(list(found), list(function(p)))
    assert len([g for g in pygraph.report().graphs if g.state == GRAPHED]) >= 1


def test_both_comparisons_of_a_call_agree(place: Place) -> None:
    """What Python finds to be made of the same, the engine does, and stops where that differs."""
    from pygraph.frontends.callable.differences import same

    model = Counter().to(place.torch)
    captured = pygraph.capture(model, device=place.name)
    with torch.no_grad():
        for _ in range(5):
            captured(place.randn(2, 4))
        entry = captured._entries[-1]
        assert entry.installed
        call: Any = ((place.randn(2, 4),), {})

        def difference() -> str | None:
            tree = captured._describe(captured._scope, *call)
            stopped = captured._calls.first_mismatch(entry, *call)
            assert same(entry.tree, tree) == (stopped is None)
            return None if stopped is None else tree.path(stopped)

        assert difference() is None
        model.settings["scale"] = 0.125
        assert str(difference()).endswith(".settings['scale']")
        model.settings["scale"] = 0.5
        model.shift.requires_grad_(True)
        assert str(difference()).endswith(".shift")
        model.shift.requires_grad_(False)
        call = ((place.randn(2, 4).t().contiguous().t(),), {})
        assert difference() == "argument[0]"
        call = ((place.randn(2, 4), 1), {})
        assert difference() == "argument"


def test_a_result_whose_saved_tensors_were_written_still_waits(place: Place) -> None:
    """Its backward says what is wrong; cut off, a loss with other parts would lose a gradient."""
    weight = nn.Parameter(place.randn(3))
    other = nn.Parameter(place.randn(3))
    captured = pygraph.capture(lambda x: (x * 2).exp() * weight, device=place.name)
    for _ in range(5):
        out = captured(place.randn(3))
        assert out.requires_grad
        (out.sum() + other.sum()).backward()
    saved = place.randn(3)

    @pygraph.capture(device=place.name)
    def written() -> torch.Tensor:
        result = weight * saved
        saved.add_(1)
        return result

    for _ in range(5):
        assert written().requires_grad
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            written().sum().backward()


def test_what_a_replay_writes_counts_as_written(place: Place) -> None:
    """Autograd tells a graph that has saved the tensor."""
    state = nn.Parameter(place.randn(3), requires_grad=False)
    captured = pygraph.capture(lambda x: state.add_(x).sum(), device=place.name)
    for _ in range(6):
        weight = place.randn(3, requires_grad=True)
        out = (weight * state).sum()
        captured(place.randn(3))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.backward()
    assert graphed().replays == 6 - UNGRAPHED
    out = (place.randn(3, requires_grad=True) * state).sum()
    captured._miss((place.randn(3),), {})  # served on the slow path
    assert graphed().replays == 7 - UNGRAPHED
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_a_write_that_changes_nothing_in_the_linked_call_counts(place: Place) -> None:
    state = nn.Parameter(torch.zeros(3, device=place.torch), requires_grad=False)
    captured = pygraph.capture(lambda x: state.clamp_(max=9).sum() + x, device=place.name)
    for _ in range(6):
        out = (place.randn(3, requires_grad=True) * state).sum()
        captured(place.randn(3))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.backward()
    assert graphed().replays == 6 - UNGRAPHED


def test_what_is_written_may_be_saved_in_the_linked_call(place: Place) -> None:
    """Captures write to memory of their own, which does not count."""
    weight, total = nn.Parameter(place.randn(3)), torch.zeros(3, device=place.torch)

    def step(x: torch.Tensor) -> torch.Tensor:
        total.mul_(0.5).add_(x)
        return (weight * total).sum()

    captured = pygraph.capture(step, device=place.name)
    for _ in range(6):
        weight.grad = None
        captured(place.randn(3)).backward()
        assert torch.equal(weight.grad, total)


COLLECTIONS = 0.0


def note_collection(phase: str, info: dict[str, int]) -> None:
    global COLLECTIONS
    COLLECTIONS += 0.25


def test_what_a_collection_calls_is_not_the_callables(place: Place) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        cycles: list[Any] = [[] for _ in range(1000)]
        for each in cycles:
            each.append(each)
        return x * 2

    captured = pygraph.capture(step, device=place.name)
    gc.callbacks.append(note_collection)
    try:
        for _ in range(6):
            x = place.randn(4)
            assert torch.equal(captured(x), x * 2)
    finally:
        gc.callbacks.remove(note_collection)
    assert COLLECTIONS
    assert graphed().replays == 6 - UNGRAPHED


def test_a_program_that_takes_no_calls_is_given_up(place: Place) -> None:
    """And one that misses some, while another thread's call is served, is not."""
    captured = pygraph.capture(lambda x: x * 2, device=place.name)
    for _ in range(5):
        captured(place.randn(4))
    entry = captured._entries[-1]
    for _ in range(20):
        for call in (captured, lambda x: captured._miss((x,), {})):
            x = place.randn(4)
            assert torch.equal(call(x), x * 2)
    assert entry.reason is None
    for _ in range(20):
        x = place.randn(4)
        assert torch.equal(captured._miss((x,), {}), x * 2)
    assert entry.reason == "what must stay in place for its graph moves in each call"


OTHERS = Unseen("others", [])


def test_a_program_that_serves_another_thread_is_not_given_up(place: Place) -> None:
    """However many calls come meanwhile."""
    if place.name == "cuda":
        pytest.skip("a GPU's launch does not wait for an operator")
    OTHERS.set([])

    @torch.library.custom_op("pygraph_test::waiting", mutates_args=())
    def waiting(x: torch.Tensor) -> torch.Tensor:
        mine = OTHERS.get()
        OTHERS.set([])  # their calls come here, too
        for other in mine:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        return x * 2

    @waiting.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    captured = pygraph.capture(lambda x: waiting(x), device=place.name)
    for _ in range(5):
        captured(place.randn(4))
    entry = captured._entries[-1]
    found: list[torch.Tensor] = []
    x = place.randn(4)
    OTHERS.set([lambda: found.append(captured(x))] * 20)  # in a replay
    before = graphed().replays
    assert torch.equal(captured(x), x * 2)
    assert graphed().replays == before + 1 and entry.reason is None
    assert len(found) == 20 and all(torch.equal(each, x * 2) for each in found)


def test_an_object_that_gets_more_attributes_is_explained(place: Place) -> None:
    class Settings:
        scale = 2.0

    settings = Settings()
    captured = pygraph.capture(lambda x: x * settings.scale, device=place.name)
    for number in range(8):
        if number == 4:
            settings.scale = 2.0
        x = place.randn(4)
        assert torch.equal(captured(x), x * 2)
    assert "settings holds others than before" in " ".join(pygraph.report().events)
