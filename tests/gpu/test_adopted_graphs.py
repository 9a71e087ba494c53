"""pygraph.adopt: torch's own CUDA graphs, made movable."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import randn

import pygraph
from pygraph.frontends.adopt.movable import MovableGraph

Function = Callable[..., Any]


class Captures:
    """A function captured twice by torch, each time with static inputs of its own."""

    def __init__(
        self, function: Function, *inputs: torch.Tensor, keep: bool = True, share_pool: bool = False
    ) -> None:
        self.function = function
        self.statics = [[each.clone() for each in inputs] for _ in range(2)]
        self.outputs: list[list[torch.Tensor]] = []
        self.graphs: list[torch.cuda.CUDAGraph] = []
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                function(*(each.clone() for each in inputs))
        torch.cuda.current_stream().wait_stream(side)
        for statics in self.statics:
            graph = torch.cuda.CUDAGraph(keep_graph=keep)
            pool = self.graphs[0].pool() if share_pool and self.graphs else None
            with torch.cuda.graph(graph, pool=pool):
                results = function(*statics)
            self.graphs.append(graph)
            self.outputs.append(list(results))

    @property
    def inputs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(zip(*self.statics, strict=True))

    def adopt(self, **named: Any) -> MovableGraph:
        pairs = list(zip(*self.outputs, strict=True))
        return pygraph.adopt(*self.graphs, **({"inputs": self.inputs, "outputs": pairs} | named))

    def replayed(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        for static, given in zip(self.statics[0], inputs, strict=True):
            static.copy_(given)
        self.graphs[0].replay()
        return [each.clone() for each in self.outputs[0]]


def linear_gelu(width: int = 256, dtype: torch.dtype = torch.float32) -> Function:
    model = torch.nn.Sequential(
        torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
    ).to("cuda", dtype)
    return lambda x: [model(x)]


def refused(captures: Captures, pattern: str, **named: Any) -> None:
    """It is refused for that, and the graph, its tensors and the generator are as before."""
    statics = [*captures.statics[0], *captures.outputs[0]]
    values = [each.clone() for each in statics]
    state = torch.cuda.get_rng_state()
    with pytest.raises(pygraph.NotMovable, match=pattern):
        captures.adopt(**named)
    for static, value in zip(statics, values, strict=True):
        assert torch.equal(static.view(torch.uint8), value.view(torch.uint8))
    assert torch.equal(torch.cuda.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("share_pool", [False, True])
def test_inputs_are_patched(dtype: torch.dtype, share_pool: bool) -> None:
    function = linear_gelu(dtype=dtype)
    captures = Captures(function, randn(32, 256, dtype=dtype), share_pool=share_pool)
    before = captures.statics[0][0].clone()
    movable = captures.adopt()
    assert movable.verdict == "bit-equal", movable
    assert movable.figures["copied outputs"] == 1
    assert torch.equal(captures.statics[0][0], before)
    inputs = [randn(32, 256, dtype=dtype) for _ in range(6)]
    expected = [captures.replayed(x)[0] for x in inputs]
    captures.statics[0][0].fill_(float("nan"))  # nobody reads them
    found = [movable(x) for x in inputs]  # all kept
    for left, right in zip(found, expected, strict=True):
        assert torch.equal(left, right)
    assert captures.statics[0][0].isnan().all()
    assert torch.equal(captures.replayed(inputs[2])[0], expected[2])


def test_attention_and_reductions() -> None:
    projection = torch.nn.Linear(64, 192).cuda()

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        q, k, v = (
            each.view(4, 128, 4, 16).transpose(1, 2) for each in projection(x).chunk(3, dim=-1)
        )
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return [attended, x.softmax(-1), x.sum(0)]

    captures = Captures(function, randn(4, 128, 64))
    movable = captures.adopt()
    for _ in range(3):
        x = randn(4, 128, 64)
        for left, right in zip(movable(x), captures.replayed(x), strict=True):
            torch.testing.assert_close(left, right)
            assert left.stride() == right.stride()


def test_a_convolution() -> None:
    """It may be given an address in front of its input, which real memory has neighbours at."""
    convolution = torch.nn.Conv1d(64, 64, 3, padding=1).cuda()
    captures = Captures(lambda x: [convolution(x)], randn(4, 64, 128))
    try:
        movable = captures.adopt()
    except pygraph.NotMovable as error:
        assert "which no input, no output and no private pool explains" in str(error)
        pytest.skip(str(error))
    x = randn(4, 64, 128)
    torch.testing.assert_close(movable(x), captures.replayed(x)[0])


def test_compiled_code() -> None:
    function = torch.compile(lambda x, y: [(x.relu() + y).sum(-1), x * y])
    captures = Captures(function, randn(64, 64), randn(64, 64))
    movable = captures.adopt()
    for _ in range(3):
        x, y = randn(64, 64), randn(64, 64)
        for left, right in zip(movable(x, y), captures.replayed(x, y), strict=True):
            assert torch.equal(left, right)


def test_scratch_and_static_outputs_stay() -> None:
    captures = Captures(linear_gelu(), randn(32, 256))
    movable = captures.adopt(static_outputs=True)
    gc.collect()
    torch.cuda.synchronize()
    x = randn(32, 256)
    before = torch.cuda.memory_allocated()
    results = [movable(x) for _ in range(4)]
    assert torch.cuda.memory_allocated() == before, "neither arena nor outputs are taken"
    assert all(each is captures.outputs[0][0] for each in results)
    assert torch.equal(results[0], captures.replayed(x)[0])


def test_an_output_of_its_own_is_new_memory() -> None:
    def function(x: torch.Tensor, out: torch.Tensor) -> list[torch.Tensor]:
        out.copy_(x.relu() * 2)
        return []

    captures = Captures(function, randn(1000), randn(1000))
    x_pair, out_pair = captures.inputs
    movable = captures.adopt(inputs=[x_pair], outputs=[out_pair])
    assert movable.figures["new outputs"] == 1
    x = randn(1000)
    found = movable(x), movable(x)
    assert found[0].data_ptr() != found[1].data_ptr()
    assert torch.equal(found[0], x.relu() * 2) and torch.equal(found[1], found[0])


def test_slices_of_larger_buffers_and_unaligned_inputs() -> None:
    buffers = [randn(8, 100), randn(8, 100)]
    graphs, outputs = [], []
    (buffers[0][:3].relu() + 1).sum()
    for buffer in buffers:
        graphs.append(torch.cuda.CUDAGraph(keep_graph=True))
        with torch.cuda.graph(graphs[-1]):
            outputs.append(buffer[:3].relu() + 1)
    movable = pygraph.adopt(
        *graphs, inputs=[(buffers[0][:3], buffers[1][:3])], outputs=[tuple(outputs)]
    )
    for rows in (buffers[0][5:], buffers[0][1:4], randn(301)[1:].view(3, 100)):
        assert torch.equal(movable(rows), rows.relu() + 1)


def test_a_cache_that_both_captures_write() -> None:
    cache = torch.zeros(128, 64, device="cuda")

    def function(x: torch.Tensor, where: torch.Tensor) -> list[torch.Tensor]:
        cache.index_copy_(0, where, x)
        return [cache.sum(0)]

    where = torch.tensor([3, 4], device="cuda")
    captures = Captures(function, randn(2, 64), where)
    cache.zero_()
    movable = captures.adopt()
    assert not cache.any(), "the proof leaves no trace"
    x = randn(2, 64)
    found = movable(x, where + 7)
    assert torch.equal(cache[10:12], x) and torch.equal(found, cache.sum(0))


def test_an_input_that_is_written() -> None:
    def function(x: torch.Tensor, state: torch.Tensor) -> list[torch.Tensor]:
        state.add_(x)
        return [state * 2]

    captures = Captures(function, randn(500), randn(500))
    static = captures.statics[0][1].clone()
    movable = captures.adopt()
    x, state = randn(500), randn(500)
    after = x + state
    assert torch.equal(movable(x, state), after * 2) and torch.equal(state, after)
    assert torch.equal(captures.statics[0][1], static)


def test_on_another_stream() -> None:
    captures = Captures(linear_gelu(), randn(32, 256))
    movable, x = captures.adopt(), randn(32, 256)
    expected = movable(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = movable(x)
    stream.synchronize()
    assert torch.equal(found, expected)


def test_it_is_no_part_of_another_graph() -> None:
    captures = Captures(linear_gelu(), randn(32, 256))
    movable, x = captures.adopt(), randn(32, 256)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(RuntimeError, match="is being captured"):
        movable(x)
    assert torch.equal(movable(x), captures.replayed(x)[0])


def test_a_graph_that_was_not_kept() -> None:
    captures = Captures(linear_gelu(), randn(32, 256), keep=False)
    refused(captures, r"the first graph: found no cudaGraph_t .*keep_graph=True")


def test_a_graph_that_was_not_captured() -> None:
    captures = Captures(linear_gelu(), randn(32, 256))
    captures.graphs[1] = torch.cuda.CUDAGraph(keep_graph=True)
    refused(captures, "the second graph: found")


def test_random_numbers() -> None:
    captures = Captures(lambda x: [torch.nn.functional.dropout(x)], randn(1000))
    refused(captures, "draws random numbers")


def test_random_numbers_of_a_registered_generator() -> None:
    generator = torch.Generator("cuda")
    statics, outputs, graphs = [randn(1000), randn(1000)], [], []
    for static in statics:
        graphs.append(torch.cuda.CUDAGraph(keep_graph=True))
        graphs[-1].register_generator_state(generator)
        with torch.cuda.graph(graphs[-1]):
            outputs.append(static + torch.rand(1000, device="cuda", generator=generator))
    with pytest.raises(pygraph.NotMovable, match=r"random numbers|the proof"):
        pygraph.adopt(*graphs, inputs=[tuple(statics)], outputs=[tuple(outputs)])


@pytest.mark.parametrize("size", [1000, 1 << 21])
def test_a_static_tensor_that_was_not_named(size: int) -> None:
    """Elementwise kernels take addresses in a struct, where others may be padding."""
    captures = Captures(lambda x, y: [x + y], randn(size), randn(size))
    reasons = "which no input, no output and no private pool|right behind input 0"
    refused(captures, reasons, inputs=captures.inputs[:1])


def test_other_work() -> None:
    one = Captures(linear_gelu(), randn(32, 256))
    other = Captures(lambda x: [x.relu()], randn(32, 256))
    one.graphs[1], one.statics[1] = other.graphs[1], other.statics[1]
    one.outputs[1] = other.outputs[1]
    refused(one, "the second graph: found other work")


def test_tensors_that_cannot_be_told_apart() -> None:
    captures = Captures(lambda x: [x.relu()], randn(64))
    (a, b) = captures.inputs[0]
    refused(captures, "input 0: found the same memory in both", inputs=[(a, a)])
    refused(captures, r"input 1: .*shares memory with input 0", inputs=[(a, b), (a[8:], b[8:])])
    refused(captures, r"input 0: .* whose elements do not fill", inputs=[(a[::2], b[::2])])
    refused(captures, "input 1: found a tensor on cpu", inputs=[(a, b), (a.cpu(), b.cpu())])
    refused(
        captures,
        "input 0: found a tensor in the private pool",
        inputs=[(captures.outputs[0][0], captures.outputs[1][0])],
    )
    refused(captures, "input 1: found no node", inputs=[(a, b), (randn(64), randn(64))])


def test_wrong_calls() -> None:
    captures = Captures(linear_gelu(), randn(32, 256))
    movable = captures.adopt()
    for wrong in (
        randn(31, 256),
        randn(32, 256).double(),
        randn(32, 256).cpu(),
        randn(256, 32).t(),
    ):
        with pytest.raises(ValueError, match="needed: float32 of sizes"):
            movable(wrong)
    with pytest.raises(ValueError, match="memory that the graph itself uses"):
        movable(captures.outputs[0][0])
