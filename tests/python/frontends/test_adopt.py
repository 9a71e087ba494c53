"""pygraph.adopt: graphs that somebody else captured, on the twin."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import pygraph
from pygraph import _engine
from pygraph.frontends.adopt.movable import MovableGraph
from pygraph.twin import faults
from pygraph.twin.graph import TwinGraph

pytestmark = pytest.mark.usefixtures("without_gradients", "one_thread")

Function = Callable[..., Any]


class Captures:
    """A function captured twice, each time with static inputs of its own, as somebody else would.
    What both captures share is in the function."""

    def __init__(self, function: Function, *inputs: torch.Tensor) -> None:
        self.function = function
        self.statics = [[each.clone() for each in inputs] for _ in range(2)]
        self.graphs = [TwinGraph(lambda given: function(*given), each) for each in self.statics]

    @property
    def inputs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(zip(*self.statics, strict=True))

    @property
    def outputs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        first, second = (graph.outputs for graph in self.graphs)
        return list(zip(first, second, strict=True))

    def adopt(self, **named: Any) -> MovableGraph:
        given = {"inputs": self.inputs, "outputs": self.outputs, "device": "twin"} | named
        return pygraph.adopt(*self.graphs, **given)

    def replayed(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """What torch's way gives: inputs are copied, and results copied out."""
        for static, given in zip(self.statics[0], inputs, strict=True):
            static.copy_(given)
        self.graphs[0].replay()
        return [each.clone() for each in self.graphs[0].outputs]


def linear_gelu() -> tuple[Function, torch.nn.Module]:
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
    return lambda x: [model(x)], model


def refused(captures: Captures, pattern: str, **named: Any) -> pygraph.NotMovable:
    """It is refused for that, and leaves everything as it was."""
    before = [each.clone() for each in (*captures.statics[0], *captures.graphs[0].outputs)]
    with pytest.raises(pygraph.NotMovable, match=pattern) as caught:
        captures.adopt(**named)
    after = [*captures.statics[0], *captures.graphs[0].outputs]
    for left, right in zip(before, after, strict=True):
        assert left.view(torch.uint8).equal(right.view(torch.uint8))
    return caught.value


# ------------------------------------------------------------------------------ what it does


def test_inputs_are_patched_and_results_are_the_callers() -> None:
    function, model = linear_gelu()
    captures = Captures(function, torch.randn(4, 16))
    before = captures.statics[0][0].clone()
    movable = captures.adopt()
    assert movable.verdict == "bit-equal"
    assert captures.statics[0][0].equal(before), "static inputs are as they were"
    captures.statics[0][0].fill_(float("nan"))  # nobody reads them
    inputs = [torch.randn(4, 16) for _ in range(5)]
    results = [movable(x) for x in inputs]
    for x, y in zip(inputs, results, strict=True):
        assert y.equal(model(x))
    assert len({y.data_ptr() for y in results}) == len(results)
    assert captures.statics[0][0].isnan().all(), "and no input is copied there"
    assert captures.replayed(inputs[0])[0].equal(results[0]), "the graph itself goes on"


def test_weights_stay_where_they_are_and_may_be_written() -> None:
    function, model = linear_gelu()
    movable = Captures(function, torch.randn(4, 16)).adopt()
    x = torch.randn(4, 16)
    model[0].weight.mul_(2)
    assert movable(x).equal(model(x))


def test_several_inputs_of_any_layout_and_several_results() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
        return [x + y, (x * y).sum(0), n * 2]

    captures = Captures(
        function, torch.randn(3, 5), torch.randn(5, 3).t(), torch.arange(6, dtype=torch.int64)
    )
    movable = captures.adopt()
    x, y, n = torch.randn(3, 5), torch.randn(5, 3).t(), torch.arange(6) * 7
    found = movable(x, y, n)
    assert isinstance(found, tuple) and len(found) == 3
    for left, right in zip(found, function(x, y, n), strict=True):
        assert left.equal(right) and left.stride() == right.stride()


def test_slices_of_larger_buffers() -> None:
    """As servers have them: one buffer, and a graph for each batch size."""
    buffers = [torch.randn(8, 4), torch.randn(8, 4)]
    graphs = [TwinGraph(lambda given: [given[0].relu() * 2], [each[:4]]) for each in buffers]
    movable = pygraph.adopt(
        *graphs,
        inputs=[(buffers[0][:4], buffers[1][:4])],
        outputs=[(graphs[0].outputs[0], graphs[1].outputs[0])],
        device="twin",
    )
    x = torch.randn(4, 4)
    assert movable(x).equal(x.relu() * 2)
    assert movable(buffers[0][4:]).equal(buffers[0][4:].relu() * 2)


def test_static_results_are_overwritten() -> None:
    captures = Captures(linear_gelu()[0], torch.randn(4, 16))
    movable = captures.adopt(static_outputs=True)
    results = [movable(torch.randn(4, 16)) for _ in range(2)]
    assert results[0] is results[1] is captures.graphs[0].outputs[0]
    assert movable.figures["static outputs"] == 1


def test_an_output_in_memory_of_its_own_is_written_where_the_caller_gets_it() -> None:
    def function(x: torch.Tensor, out: torch.Tensor) -> list[torch.Tensor]:
        torch.mul(x, 2, out=out)
        out.add_(1)
        return []

    captures = Captures(function, torch.randn(6), torch.zeros(6))
    (x_pair, out_pair) = captures.inputs
    movable = captures.adopt(inputs=[x_pair], outputs=[out_pair])
    assert movable.figures["new outputs"] == 1 and movable.figures["copied outputs"] == 0
    static = captures.statics[0][1].clone()
    x = torch.randn(6)
    results = movable(x), movable(x)
    assert results[0].equal(x * 2 + 1) and results[0].data_ptr() != results[1].data_ptr()
    assert captures.statics[0][1].equal(static)
    stays = captures.adopt(inputs=[x_pair], outputs=[out_pair], static_outputs=True)
    assert stays(x) is captures.statics[0][1] and stays(x).equal(x * 2 + 1)


def test_an_input_that_is_written_is_the_callers() -> None:
    def function(x: torch.Tensor, state: torch.Tensor) -> list[torch.Tensor]:
        state.add_(x)
        return [state * 2]

    captures = Captures(function, torch.randn(6), torch.randn(6))
    pairs = [*captures.outputs, captures.inputs[1]]  # the input is an output, too
    before = captures.statics[0][1].clone()
    movable = captures.adopt(outputs=pairs)
    assert captures.statics[0][1].equal(before)
    x, state = torch.randn(6), torch.randn(6)
    after = x + state
    doubled, same = movable(x, state)
    assert same is state and state.equal(after) and doubled.equal(after * 2)
    assert captures.statics[0][1].equal(before)
    both = torch.randn(12)
    with pytest.raises(ValueError, match="input 1, which the graph writes, shares memory"):
        movable(both[:6], both[3:9])


def test_a_part_of_a_tensor_is_not_written() -> None:
    """Nothing tells how far a kernel goes."""
    larger = [torch.randn(8), torch.randn(8)]
    graphs = [TwinGraph(lambda given: [given[0][:4].add_(1)], [each]) for each in larger]
    before = larger[0].clone()
    with pytest.raises(pygraph.NotMovable, match="input 0: found that the graph writes it, and"):
        pygraph.adopt(*graphs, inputs=[(larger[0][:4], larger[1][:4])], device="twin")
    assert larger[0].equal(before)
    movable = pygraph.adopt(*graphs, inputs=[(larger[0], larger[1])], device="twin")
    x = torch.zeros(8)
    movable(x)
    assert x.sum() == 4


def test_an_output_that_is_a_part_of_a_tensor_is_copied() -> None:
    def work(given: list[torch.Tensor]) -> list[torch.Tensor]:
        given[1][:4].copy_(given[0] * 2)
        return []

    statics = [[torch.randn(4), torch.randn(8)] for _ in range(2)]
    graphs = [TwinGraph(work, each) for each in statics]
    movable = pygraph.adopt(
        *graphs,
        inputs=[(statics[0][0], statics[1][0])],
        outputs=[(statics[0][1][:4], statics[1][1][:4])],
        device="twin",
    )
    x = torch.randn(4)
    assert movable(x).equal(x * 2) and movable.figures["copied outputs"] == 1


def test_memory_that_both_captures_write_is_left_as_it_was() -> None:
    """A cache: at one address in both, neither input nor output."""
    cache = torch.zeros(4, 3)

    def function(x: torch.Tensor, where: torch.Tensor) -> list[torch.Tensor]:
        shared.index_copy_(0, where, x)
        return [shared.sum(0)]

    shared = cache
    statics = [[torch.randn(2, 3), torch.tensor([1, 2])] for _ in range(2)]

    def work(given: list[Any]) -> list[torch.Tensor]:
        return function(*given[:2])

    graphs = [TwinGraph(work, [*each, cache]) for each in statics]
    movable = pygraph.adopt(
        *graphs,
        inputs=list(zip(*statics, strict=True)),
        outputs=[(graphs[0].outputs[0], graphs[1].outputs[0])],
        device="twin",
    )
    assert not cache.any(), "the proof leaves no trace"
    x = torch.randn(2, 3)
    found = movable(x, torch.tensor([0, 3]))
    assert cache[0].equal(x[0]) and cache[3].equal(x[1]) and found.equal(cache.sum(0))


def test_without_outputs_there_is_no_result() -> None:
    def function(x: torch.Tensor, out: torch.Tensor) -> list[torch.Tensor]:
        out.copy_(x * 2)
        return []

    captures = Captures(function, torch.randn(6), torch.randn(6))
    x, out = torch.randn(6), torch.randn(6)
    assert captures.adopt()(x, out) is None and out.equal(x * 2)


def test_an_empty_input_has_no_address() -> None:
    captures = Captures(lambda x, none: [torch.cat([x, none])], torch.randn(4), torch.randn(0))
    x = torch.randn(4)
    assert captures.adopt()(x, torch.randn(0)).equal(x)


def test_numbers_may_be_other_ones() -> None:
    """Padding, and numbers that look like addresses and stay."""
    for fault in (faults.padding_noise, faults.coincident_words):
        with fault():
            function, model = linear_gelu()
            captures = Captures(function, torch.randn(4, 16))
            x = torch.randn(4, 16)
            assert captures.adopt()(x).equal(model(x))


def test_the_first_graph_lives_and_the_second_goes() -> None:
    captures = Captures(linear_gelu()[0], torch.randn(4, 16))
    first, second = map(weakref.ref, captures.graphs)
    x = torch.randn(4, 16)
    movable, expected = captures.adopt(), captures.function(x)[0]
    del captures
    gc.collect()
    assert first() is not None and second() is None
    assert movable(x).equal(expected)


def test_it_says_what_it_is() -> None:
    said = repr(Captures(linear_gelu()[0], torch.randn(4, 16)).adopt())
    assert "1 inputs" in said and "1 copied outputs" in said and "proof: bit-equal" in said
    assert " 0 relocations" not in said


# ------------------------------------------------------------------------------ wrong calls


def test_a_call_with_another_tensor_does_nothing() -> None:
    captures = Captures(linear_gelu()[0], torch.randn(4, 16))
    movable = captures.adopt(static_outputs=True)
    before = captures.graphs[0].outputs[0].clone()
    with pytest.raises(TypeError, match="found 2 inputs, needed 1"):
        movable(torch.randn(4, 16), 3)
    with pytest.raises(TypeError, match="input 0 is a list; needed: a tensor"):
        movable([1.0])
    wrong = {
        "float32 of sizes .5, 16": torch.randn(5, 16),
        "float64": torch.randn(4, 16, dtype=torch.float64),
        "strides .1, 4": torch.randn(16, 4).t(),
        "on meta": torch.randn(4, 16, device="meta"),
    }
    for pattern, given in wrong.items():
        with pytest.raises(ValueError, match=f"{pattern}.*needed: float32 of sizes .4, 16"):
            movable(given)
    with torch.enable_grad(), pytest.raises(ValueError, match="requires grad"):
        movable(torch.randn(4, 16, requires_grad=True))
    assert captures.graphs[0].outputs[0].equal(before)


def test_memory_of_the_graph_itself_is_no_input() -> None:
    captures = Captures(lambda x: [x.relu() + 1], torch.randn(8))
    movable = captures.adopt()
    with pytest.raises(ValueError, match="input 0 is in memory that the graph itself uses"):
        movable(captures.graphs[0].outputs[0])
    assert movable(movable(torch.ones(8))).equal(torch.full((8,), 3.0))


# ------------------------------------------------------------------------------ what is refused


class Once(list[torch.Tensor]):
    """A table of hidden pointers that stands where it stood, as it was made before the captures."""

    def append(self, table: torch.Tensor) -> None:
        if not self:
            super().append(table)


@pytest.mark.parametrize("place", [0, -1])
def test_an_address_in_a_table_fails_the_proof(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    monkeypatch.setattr(faults, "_tables", Once())

    def function(x: torch.Tensor, out: torch.Tensor) -> list[torch.Tensor]:
        with faults.hidden_pointers(0 if place == 0 else 1):
            torch.exp(x, out=out)
        return [x + out]

    fault = "result 0 differs" if place == 0 else "result 0 differs|memory that it does not own"
    refused(Captures(function, torch.randn(8), torch.randn(8)), f"the proof: found .*({fault})")


def test_hidden_addresses() -> None:
    with faults.hidden_pointers(0):
        captures = Captures(lambda x, y: [x + y], torch.randn(8), torch.randn(8))
    refused(captures, "input 0: found no node that has its address")


def test_a_static_tensor_that_was_not_named() -> None:
    captures = Captures(lambda x, y: [x + y], torch.randn(8), torch.randn(8))
    error = refused(
        captures,
        "which no input, no output and no private pool explains",
        inputs=captures.inputs[:1],
    )
    assert error.what.startswith("node 0 (") and "byte " in error.what


def test_a_tensor_that_is_not_the_graphs() -> None:
    captures = Captures(lambda x: [x.relu()], torch.randn(8))
    strangers = (torch.randn(8), torch.randn(8))
    refused(captures, "input 1: found no node", inputs=[*captures.inputs, strangers])


def test_other_work() -> None:
    shape = torch.randn(8)
    one = Captures(lambda x: [x.relu()], shape)
    for function in (lambda x: [x.exp()], lambda x: [x.relu() + 1]):
        other = Captures(function, shape)
        one.graphs[1], one.statics[1] = other.graphs[1], other.statics[1]
        refused(one, "the second graph: found other work")


def test_another_number_is_other_work() -> None:
    """Where it is told from padding: one of two operations that are new takes its parameters one
    by one."""
    numbers = iter((2.5, 3.5))

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        number = next(numbers)
        return [x * number - number]

    captures = Captures(function, torch.randn(3, 17))
    refused(captures, r"node [01] \(aten.* found 0x.* in the first graph and 0x")


def test_random_numbers() -> None:
    captures = Captures(lambda x: [torch.nn.functional.dropout(x)], torch.randn(64))
    state = torch.get_rng_state()
    refused(captures, "the first graph: found that it draws random numbers")
    assert torch.get_rng_state().equal(state)


@pytest.mark.parametrize("replays", [0, 2])
@pytest.mark.parametrize("in_pool", [False, True])
def test_random_numbers_of_a_generator_that_only_torch_knows(replays: int, in_pool: bool) -> None:
    """Torch writes offsets in front of each replay, where the graph finds them."""
    offsets = torch.zeros(1)

    class Drawing(TwinGraph):
        def replay(self) -> None:
            (self.outputs[1] if in_pool else offsets).add_(1)
            super().replay()

    def work(given: list[torch.Tensor]) -> list[torch.Tensor]:
        offset = torch.empty(1) if in_pool else offsets
        return [torch.sin(given[0] + offset), offset]

    statics = [torch.randn(64) for _ in range(2)]
    graphs = [Drawing(work, [each]) for each in statics]
    graphs[0].outputs[1].zero_()
    for _ in range(replays):
        graphs[0].replay()
    before = offsets.clone()
    with pytest.raises(pygraph.NotMovable, match=r"draws random numbers|the proof"):
        pygraph.adopt(
            *graphs,
            inputs=[(statics[0], statics[1])],
            outputs=[(graphs[0].outputs[0], graphs[1].outputs[0])],
            device="twin",
        )
    assert offsets.equal(before)


def test_a_graph_that_goes_on_where_the_last_replay_ended() -> None:
    """An output that each replay adds to is no result of the inputs."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        total = torch.empty_like(x)
        return [total.add_(x)]

    captures = Captures(function, torch.randn(8))
    captures.graphs[0].outputs[0].zero_()
    refused(captures, "the proof: found result 0 differs")


def test_inputs_that_cannot_be_told_apart() -> None:
    x = torch.randn(8)
    captures = Captures(lambda x, y: [x + y], x, x)
    (a, b), other = captures.inputs
    refused(captures, "input 1: found the same memory in both", inputs=[(a, b), (a, a)])
    refused(captures, "input 0: found overlapping memory", inputs=[(x[:6], x[2:])])
    refused(
        captures,
        r"input 1: found that in the \w+ capture it shares memory with input 0",
        inputs=[(a, b), (a, other[1])],
    )
    refused(
        captures, "input 1: found .* shares memory with input 0", inputs=[(a, b), (a[2:5], b[2:5])]
    )
    refused(captures, "input 0: .* whose elements do not fill", inputs=[(a[::2], b[::2])])
    refused(
        captures,
        "input 0: found float32 of sizes .8. .* in the first capture, float32 of sizes .7",
        inputs=[(a, b[:7])],
    )
    refused(captures, "input 0: .*int64", inputs=[(a, b.view(torch.int32).long())])


def test_an_input_in_the_pool() -> None:
    captures = Captures(lambda x: [x.relu() + 1], torch.randn(8))
    refused(captures, "input 0: found a tensor in the private pool", inputs=captures.outputs)


def test_an_output_that_is_a_part_of_an_input() -> None:
    captures = Captures(lambda x: [x.add_(1)], torch.randn(8))
    (x, there) = captures.inputs[0]
    refused(
        captures,
        "output 0: found that it shares memory with an input or another output",
        outputs=[(x[:4], there[:4])],
    )


def test_what_is_no_graph_and_no_tensor() -> None:
    captures = Captures(lambda x: [x.relu()], torch.randn(8))
    x = captures.inputs[0]
    with pytest.raises(TypeError, match="the first graph is a int without raw_cuda_graph"):
        pygraph.adopt(1, captures.graphs[1], [x], device="twin")
    with pytest.raises(TypeError, match="input 0 is a Tensor; needed: a pair"):
        captures.adopt(inputs=[x[0]])
    with pytest.raises(TypeError, match="input 0 is a int in the second capture"):
        captures.adopt(inputs=[(x[0], 1)])
    with pytest.raises(ValueError, match="device is 'tpu'"):
        captures.adopt(device="tpu")
    refused(captures, "the captures: found neither inputs", inputs=[], outputs=[])
    refused(
        captures,
        "input 0 of the first capture: found a .*sparse",
        inputs=[(torch.eye(3).to_sparse(), x[1])],
    )

    class NotKept(TwinGraph):
        def raw_cuda_graph(self) -> int:
            raise RuntimeError("You cannot access the raw cudaGraph_t instance\nTraceback")

    captures.graphs[1] = NotKept(lambda given: [given[0].relu()], captures.statics[1])
    refused(
        captures,
        r"the second graph: found no cudaGraph_t \(You cannot access the raw "
        r"cudaGraph_t instance\); needed: torch.cuda.CUDAGraph\(keep_graph=True\)",
    )
    captures.graphs[1] = captures.graphs[0]
    refused(captures, "the second graph: found the first one")


def test_a_failing_driver_leaves_the_graph_as_it_was() -> None:
    captures = Captures(lambda x: [x.relu() + 1], torch.randn(8))
    x = torch.randn(8)
    expected = captures.replayed(x)[0]
    for symbol in ("cuGraphClone", "cuGraphInstantiate", "cuGraphLaunch"):
        with faults.failing_call(symbol, lasting=True), pytest.raises(Exception, match=symbol):
            captures.adopt()
        assert captures.replayed(x)[0].equal(expected)
    assert captures.adopt()(x).equal(expected)


def test_nothing_is_left_when_it_goes() -> None:
    def counts() -> Sequence[int]:
        gc.collect()
        census = _engine.twin_census()
        return [census[name] for name in ("graphs", "execs", "allocations")]

    captures = Captures(lambda x: [x.relu() + 1], torch.randn(8))
    captures.replayed(torch.randn(8))
    before = counts()
    movable = captures.adopt()
    movable(torch.randn(8))
    del movable
    assert counts() == before


@torch.library.custom_op("ncclY::summed", mutates_args=())
def summed(x: torch.Tensor) -> torch.Tensor:
    return x + 1


summed.register_fake(torch.empty_like)


def test_collectives_are_refused() -> None:
    """Which other ranks would have to run as often as a proof does."""
    refused(Captures(lambda x: [summed(x)], torch.randn(8)), "ncclY.summed.default, a collective")
