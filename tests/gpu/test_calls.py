"""Right results on every call: changing inputs, kept outputs, moved weights, odd inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import Mlp, assert_replays, assert_same, only_graph, randn

import pygraph

Compile = Callable[..., Any]


def test_fresh_inputs_are_patched_not_copied(compiled: Compile) -> None:
    model = Mlp().cuda()
    fast = compiled(model)
    for _ in range(8):
        x = randn(4, 64)
        assert_same(fast(x), model(x))
    graph = assert_replays()
    assert graph.replays == 6
    assert graph.bytes_copied == 0
    assert graph.private_pool_bytes == 0


def test_bit_equal_to_the_uncaptured_compiled_callable() -> None:
    model = Mlp().cuda()
    inputs = [randn(4, 64) for _ in range(6)]
    plain = torch.compile(model)
    expected = [plain(x) for x in inputs]
    torch._dynamo.reset()
    fast = torch.compile(model, backend="pygraph")
    found = [fast(x) for x in inputs]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert_replays()


@pytest.mark.parametrize("cached", [False, True])
def test_a_plain_graph_is_called_directly(compiled: Compile, cached: bool) -> None:
    """Past AOTAutograd's and Inductor's wrappers, also when their caches hit."""
    model = Mlp().cuda()
    if cached:
        for _ in range(2):
            torch._dynamo.reset()
            compiled(model)(randn(4, 64))
        pygraph.reset()
        torch._dynamo.reset()
    fast = compiled(model)
    for _ in range(5):
        x = randn(4, 64)
        assert_same(fast(x), model(x))
    assert assert_replays().past_wrappers


def test_a_graph_behind_work_of_wrappers_is_not_called_directly(compiled: Compile) -> None:
    fast = compiled(lambda x, y: (x @ y, x[1:], y.t()))
    for _ in range(5):
        x, y = randn(8, 8), randn(8, 8)
        assert_same(fast(x, y), (x @ y, x[1:], y.t()))
    assert not only_graph().past_wrappers


def test_inference_mode(compiled: Compile) -> None:
    model = Mlp().cuda()
    fast = compiled(model)
    with torch.inference_mode():
        for _ in range(5):
            x = randn(4, 64)
            assert_same(fast(x), model(x))
    assert_replays()


def test_a_kept_output_stays_unchanged(compiled: Compile) -> None:
    model = Mlp().cuda()
    fast = compiled(model)
    inputs = [randn(4, 64) for _ in range(12)]
    kept = [fast(x) for x in inputs]
    for x, y in zip(inputs, kept, strict=True):
        assert_same(y, model(x))
    assert len({y.data_ptr() for y in kept}) == len(kept)


def test_weights_that_change_are_never_stale(compiled: Compile) -> None:
    model = Mlp().cuda()
    fast = compiled(model)
    x = randn(4, 64)

    def check() -> None:
        assert_same(fast(x), model(x))

    for _ in range(4):
        check()
    model.first.weight.add_(0.5)
    check()
    model.first.weight.data = randn(64, 64)
    check()
    model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()})
    check()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    check()
    model.load_state_dict(
        {k: torch.randn_like(v) for k, v in model.state_dict().items()}, assign=True
    )
    check()
    assert any(graph.replays for graph in pygraph.report().graphs)


def test_ten_thousand_calls_do_not_grow_memory() -> None:
    model = Mlp().cuda()
    fast = torch.compile(model, backend="pygraph")
    inputs = [randn(4, 64) for _ in range(4)]
    for x in inputs * 4:
        fast(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    free = torch.cuda.mem_get_info()[0]
    for i in range(10_000):
        fast(inputs[i % 4])
    torch.cuda.synchronize()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
    assert torch.cuda.mem_get_info()[0] >= free
    assert assert_replays().replays >= 10_000


def test_a_capture_takes_no_gpu_memory() -> None:
    model = torch.nn.Sequential(*[Mlp(512) for _ in range(4)]).cuda()
    fast = torch.compile(model, backend="pygraph")
    x = randn(8192, 512)
    for _ in range(6):
        fast(x)
    assert assert_replays().capture_bytes == 0


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: randn(64, 4).t(), id="transposed"),
        pytest.param(lambda: randn(8, 128)[::2, ::2], id="strided"),
        pytest.param(lambda: randn(1, 64).expand(4, 64), id="expanded"),
        pytest.param(lambda: randn(5, 64)[1:], id="slice"),
    ],
)
def test_non_contiguous_inputs(compiled: Compile, make: Callable[[], torch.Tensor]) -> None:
    model = Mlp().cuda()
    fast = compiled(model)
    for _ in range(6):
        x = make()
        assert_same(fast(x), model(x))
    assert_replays()


def test_inputs_misaligned_by_four_bytes(compiled: Compile) -> None:
    model = Mlp().cuda()
    fast = compiled(model)
    for i in range(12):
        x = randn(4 * 64 + 1)[1:].view(4, 64) if i % 3 == 2 else randn(4, 64)
        assert_same(fast(x), model(x))
    graph = only_graph()
    assert graph.state == "graphed", graph.reason
    assert graph.copies == 4  # calls 2, 5, 8, 11


def test_first_input_misaligned(compiled: Compile) -> None:
    fast = compiled(lambda x: torch.sin(x) * 2 + x)
    for _ in range(6):
        x = randn(1025)[1:]
        assert_same(fast(x), torch.sin(x) * 2 + x)


def test_zero_sized_inputs(compiled: Compile) -> None:
    fast = compiled(lambda x, y: (torch.cat([x, y]) * 2, y + 1))
    for _ in range(6):
        x, y = randn(4, 8), randn(0, 8)
        found = fast(x, y)
        assert_same(found, (torch.cat([x, y]) * 2, y + 1))
        assert found[1].shape == (0, 8)


def test_inputs_that_alias_each_other(compiled: Compile) -> None:
    fast = compiled(lambda x, y: x @ y + x)
    base = randn(64, 64)
    for i in range(12):
        x = randn(64, 64)
        pairs = [(x, x), (x, randn(64, 64)), (base[:32], base), (base, base.t())]
        a, b = pairs[i % 4]
        assert_same(fast(a, b), a @ b + a)


def test_inputs_on_another_device(compiled: Compile) -> None:
    fast = compiled(lambda x, y: x * 2 + y.to("cuda"))
    for _ in range(6):
        x, y = randn(8, 8), torch.randn(8, 8)
        assert_same(fast(x, y), x * 2 + y.cuda())
    scalar = compiled(lambda x, s: x * s)
    for i in range(6):
        x, s = randn(8, 8), torch.tensor(float(i))
        assert_same(scalar(x, s), x * s)


def test_outputs_of_every_kind(compiled: Compile) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = torch.relu(x @ y)
        return z, z[1:], z.t(), x, x[2:], (y + 1).sum(), x.shape[0], None

    fast = compiled(function)
    for _ in range(6):
        x, y = randn(16, 16), randn(16, 16)
        found, expected = fast(x, y), function(x, y)
        assert_same(found[:6], expected[:6])
        assert found[6:] == expected[6:]
        assert found[3] is x
        assert found[4].data_ptr() == x[2:].data_ptr()
        assert [t.stride() for t in found[:6]] == [t.stride() for t in expected[:6]]


def test_mutated_inputs(compiled: Compile) -> None:
    def function(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.add_(x.sum(0))
        return state * 2

    fast = compiled(function)
    state, reference = randn(8), None
    for i in range(10):
        if i == 5:
            state = randn(8)
        reference = state.clone()
        x = randn(4, 8)
        expected = function(x, reference)
        assert_same(fast(x, state), expected)
        assert_same(state, reference)


def test_changing_sizes(compiled: Compile) -> None:
    model = Mlp().cuda()
    fast = compiled(model, dynamic=True)
    for i in range(30):
        x = randn(2 + i % 3, 64)
        assert_same(fast(x), model(x))


def test_another_stream(compiled: Compile) -> None:
    model = Mlp().cuda()
    fast = compiled(model)
    x = randn(4, 64)
    for _ in range(4):
        fast(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(4):
            torch.cuda._sleep(20_000_000)  # work of another stream would find y unwritten
            y = randn(4, 64)
            assert_same(fast(y), model(y))
    stream.synchronize()
    assert_replays()


def test_two_threads(compiled: Compile) -> None:
    model = Mlp().cuda()
    fast = compiled(model)
    x = randn(4, 64)
    for _ in range(4):
        fast(x)
    wrong: list[int] = []

    def work(seed: int) -> None:
        with torch.no_grad():
            generator = torch.Generator("cuda").manual_seed(seed)
            for i in range(200):
                y = torch.randn(4, 64, device="cuda", generator=generator)
                if not torch.allclose(fast(y), model(y), rtol=2e-3, atol=2e-3):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_two_threads_on_streams_of_their_own(compiled: Compile) -> None:
    """From the first call on: one thread links while the others call, and every launch, arena and
    output belongs to the stream of its call."""
    model = Mlp().cuda()
    fast = compiled(model)
    fast(randn(4, 64))
    torch.cuda.synchronize()
    wrong: list[Any] = []

    def work(seed: int) -> None:
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            generator = torch.Generator("cuda").manual_seed(seed)
            kept = []
            for _ in range(100):
                torch.cuda._sleep(500_000)
                y = torch.randn(4, 64, device="cuda", generator=generator)
                kept.append((y, fast(y)))
            for y, found in kept:
                if not torch.allclose(found, model(y), rtol=2e-3, atol=2e-3):
                    wrong.append(y)
        stream.synchronize()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert_replays()


def test_an_output_out_of_a_large_shared_cell_is_copied() -> None:
    """An operator that frees a large buffer and returns a small one in its place: the output must
    not keep the large one alive."""
    with torch.library._scoped_library("pygraph_cells", "DEF") as library:

        def reuse(x: torch.Tensor) -> torch.Tensor:
            large = torch.empty((16, *x.shape), device=x.device)
            large.copy_(x.expand_as(large))
            total, zeros = large.sum(0), torch.zeros_like(x)
            del large
            return total.mul_(0.5) + zeros  # takes the large buffer's place

        library.define("reuse(Tensor x) -> Tensor")
        library.impl("reuse", reuse, "CUDA")
        torch.library.register_fake("pygraph_cells::reuse", torch.empty_like, lib=library)
        fast = torch.compile(
            torch.ops.pygraph_cells.reuse, backend="pygraph", options={"compiler": "aot"}
        )
        kept = []
        for _ in range(6):
            x = randn(1 << 20)
            kept.append((x, fast(x)))
        for x, y in kept:
            assert torch.equal(y, reuse(x))
        graph = assert_replays()
        assert graph.outputs_copied == 1, (graph.outputs_direct, graph.outputs_copied)
        assert graph.output_bytes <= 4 << 20


def test_inside_a_capture_of_the_user(compiled: Compile) -> None:
    model = Mlp().cuda()
    fast = compiled(model)
    x = randn(4, 64)
    for _ in range(4):
        fast(x)
    replays = only_graph().replays
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fast(x)
    assert only_graph().replays == replays
    x.copy_(randn(4, 64))
    graph.replay()
    assert_same(y, model(x))


def test_reset_gives_memory_back() -> None:
    model = Mlp(1024).cuda()
    x = randn(4096, 1024)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free = torch.cuda.memory_reserved()
    fast = torch.compile(model, backend="pygraph")
    for _ in range(6):
        fast(x)
    assert_replays()
    pygraph.reset()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= free + (2 << 20)
    assert_same(fast(x), model(x))


def test_copied_inputs_on_two_streams(compiled: Compile) -> None:
    """What is copied on one stream waits for the launch on another that reads the last copy."""
    options = {"arguments": "copied", "launch": "after_guards", "select": "always"}
    fast = compiled(lambda x: (x @ x).relu() @ x, options=options)
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(4):
        fast(torch.randn(64, 64, device="cuda"))
    here, kept = torch.cuda.current_stream(), []
    for number in range(200):
        x = torch.randn(64, 64, device="cuda")
        stream = streams[number % 2]
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            y = fast(x)
        x.record_stream(stream)
        y.record_stream(here)
        kept.append((x, y))
    for stream in streams:
        here.wait_stream(stream)
    assert only_graph().replays >= 200
    assert all(torch.allclose((x @ x).relu() @ x, y, rtol=1e-3, atol=1e-3) for x, y in kept)
