"""What cannot be captured or proven falls back, says why, and leaves no trace."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers import Mlp, assert_replays, assert_same, only_graph, randn

import pygraph

Compile = Callable[..., Any]


@pytest.fixture(scope="module")
def operators() -> Iterator[Any]:
    """Custom operators that a capture cannot take."""
    with torch.library._scoped_library("pygraph_test", "DEF") as library:
        calls = {"n": 0}

        def synchronize(x: torch.Tensor) -> torch.Tensor:
            torch.cuda.synchronize()
            return x * 2

        def read_value(x: torch.Tensor) -> torch.Tensor:
            return x * float(x.sum().item())

        def allocate_unusually(x: torch.Tensor) -> torch.Tensor:
            calls["n"] += 1
            torch.empty((16 + 4 * (calls["n"] % 5)) << 20, dtype=torch.uint8, device=x.device)
            return x * 2

        def draw(x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

        def raise_in_capture(x: torch.Tensor) -> torch.Tensor:
            if torch.cuda.is_current_stream_capturing():
                raise ValueError("this operator dislikes captures")
            return x * 2

        for operator in (synchronize, read_value, allocate_unusually, draw, raise_in_capture):
            name = operator.__name__
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, operator, "CUDA")
            torch.library.register_fake(f"pygraph_test::{name}", torch.empty_like, lib=library)
        yield torch.ops.pygraph_test


def state() -> tuple[Any, ...]:
    torch.cuda.synchronize()
    return (
        torch.cuda.get_rng_state().tolist(),
        torch.cuda.current_stream().cuda_stream,
        torch.cuda.is_current_stream_capturing(),
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("synchronize", "not allow during a capture"),
        ("read_value", "not allow during a capture"),
        ("raise_in_capture", "dislikes captures"),
    ],
)
def test_a_failing_capture_rolls_back(
    compiled: Compile, operators: Any, name: str, expected: str
) -> None:
    operator = getattr(operators, name)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(operator(x + 1))

    fast = compiled(function)
    x = randn(8, 8)
    before = state()
    for _ in range(5):
        assert_same(fast(x), function(x))
    assert state() == before
    graph = pygraph.report().graphs[0]
    assert graph.state == "replaced"  # test_around_culprits.py has what becomes of it
    assert graph.replays == 0
    assert graph.reason is not None and expected in graph.reason
    assert graph.operator is not None and name in graph.operator
    assert graph.source is not None and "test_faults.py" in graph.source
    # The process is as before: other work captures and draws random numbers.
    torch.rand(4, device="cuda")
    model = Mlp().cuda()
    other = compiled(model)
    for _ in range(4):
        y = randn(4, 64)
        assert_same(other(y), model(y))
    assert pygraph.report().graphs[-1].state == "graphed"


def test_unusual_allocation_falls_back(compiled: Compile, operators: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return operators.allocate_unusually(x) + 1

    fast = compiled(function)
    for _ in range(5):
        x = randn(8, 8)
        assert_same(fast(x), x * 2 + 1)
    graph = only_graph()
    assert graph.state == "fallback"
    assert graph.reason is not None and "allocate" in graph.reason


def test_random_numbers_of_an_opaque_operator(compiled: Compile, operators: Any) -> None:
    """The same numbers as uncaptured from the same seed, and others at each call."""

    def draw(function: Any) -> list[torch.Tensor]:
        torch.manual_seed(5)
        return [function(x) for _ in range(6)]

    x = torch.zeros(64, device="cuda")
    drawn = draw(compiled(lambda x: operators.draw(x) * 2))
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(drawn))
    for found, expected in zip(drawn, draw(lambda x: operators.draw(x) * 2), strict=True):
        assert torch.equal(found, expected)
    assert_replays()


def test_random_numbers_from_the_host_are_drawn_anew(compiled: Compile) -> None:
    fast = compiled(lambda x: x * torch.rand(()))
    x = torch.ones(64, device="cuda")
    drawn = [fast(x) for _ in range(8)]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(drawn, 2))


def test_memory_of_a_failed_capture_comes_back(compiled: Compile, operators: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return operators.synchronize(torch.relu(x @ x))

    x = randn(2048, 2048)
    function(x)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    fast = compiled(function)
    for _ in range(4):
        fast(x)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + (2 << 20)


def test_a_wrong_link_is_caught_by_the_proof(
    compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One region is bound beside its place: the proof must see it, and the ladder must answer."""
    from pygraph.capturing import arguments

    original = arguments.specifications

    def wrong(request: Any, attempt: Any, capture: Any, regions: Any, *args: Any, **kw: Any) -> Any:
        numbers = list(regions.of_argument.values())
        numbers[:2] = reversed(numbers[:2])
        swapped = dict(zip(regions.of_argument, numbers, strict=True))
        regions = dataclasses.replace(regions, of_argument=swapped)
        return original(request, attempt, capture, regions, *args, **kw)

    monkeypatch.setattr(arguments, "specifications", wrong)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 3 - y

    fast = compiled(function)
    for _ in range(6):
        x, y = randn(64), randn(64)
        assert_same(fast(x, y), function(x, y))
    graph = only_graph()
    assert graph.state != "graphed"
    assert graph.reason is not None and "differs" in graph.reason


def test_a_training_step_runs_on_two_graphs(compiled: Compile) -> None:
    model = Mlp().cuda()
    fast = compiled(model)
    with torch.enable_grad():
        for _ in range(4):
            x = randn(4, 64)
            found = torch.autograd.grad(fast(x).square().mean(), list(model.parameters()))
            expected = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
            assert_same(found, expected)
    assert [graph.state for graph in pygraph.report().graphs] == ["graphed"] * 2
    assert all(graph.replays == 2 for graph in pygraph.report().graphs)


def test_tables_of_addresses_made_on_the_host_fall_back() -> None:
    """Pointers that hide in device memory, as in grouped products: the table is copied from the
    host, so that nothing in the graph's words would tell it that an argument has moved."""
    triton = pytest.importorskip("triton")
    import triton.language as tl
    from table_kernels import double_through_table

    with torch.library._scoped_library("pygraph_tables", "DEF") as library:

        def through_table(x: torch.Tensor) -> torch.Tensor:
            table = torch.tensor([x.data_ptr()], dtype=torch.int64).pin_memory()
            out = torch.empty_like(x)
            double_through_table[(1,)](table.to(x.device, non_blocking=True), out, x.numel(), 256)
            return out

        assert triton is not None and tl is not None
        library.define("through_table(Tensor x) -> Tensor")
        library.impl("through_table", through_table, "CUDA")
        torch.library.register_fake("pygraph_tables::through_table", torch.empty_like, lib=library)
        fast = torch.compile(
            torch.ops.pygraph_tables.through_table, backend="pygraph", options={"compiler": "aot"}
        )
        kept = []
        for _ in range(6):
            x = randn(200)
            kept.append((x, fast(x)))
            x_before = x.clone()
            assert torch.equal(kept[-1][1], x_before * 2)
        graph = only_graph()
        assert graph.state == "replaced", graph.reason
        assert graph.operator == "pygraph_tables.through_table.default"


def through_kept_tables(make_table: Callable[[int], torch.Tensor]) -> Any:
    """The report after six calls, all right, of a callable that makes a table of addresses for each
    argument once and keeps it: in a graph it would name memory that has moved."""
    from table_kernels import double_through_table

    from pygraph.runtime.compiled_graph import CompiledGraph

    tables: dict[int, torch.Tensor] = {}

    def function(arguments: list[Any]) -> list[Any]:
        (x,) = arguments
        address = x.data_ptr()
        if address not in tables:
            with torch.cuda.stream(side):
                tables[address] = make_table(address)
        out = torch.empty_like(x)
        double_through_table[(1,)](tables[address], out, x.numel(), 256)
        return [out]

    side = torch.cuda.Stream()
    graph = CompiledGraph(function, name="graph 0 (tables)")
    for _ in range(6):
        x = randn(200)
        (found,) = graph.dispatcher([x])
        torch.cuda.synchronize()
        assert torch.equal(found, x * 2)
    return graph.report


def test_tables_that_outlive_their_call_are_found_out() -> None:
    """The table is allocated in the capture, which fails."""

    def make_table(address: int) -> torch.Tensor:
        host = torch.tensor([address], dtype=torch.int64).pin_memory()
        return host.to("cuda", non_blocking=True)

    report = through_kept_tables(make_table)
    assert report.state == "fallback", (report.state, report.proof)
    assert report.reason


def test_tables_in_memory_of_others_fail_the_proof() -> None:
    """What is made while capturing with phantom arguments holds phantom addresses. Where the input
    is copied to one place, though, the table that was made for that place holds."""
    hosts = torch.zeros(16, 64, dtype=torch.int64).pin_memory()
    slots = torch.zeros(16, 64, dtype=torch.int64, device="cuda")
    returned = torch.zeros(16, 64, dtype=torch.int64).pin_memory()
    unused = iter(range(16))

    def make_table(address: int) -> torch.Tensor:
        number = next(unused)
        hosts[number, 0] = address
        slots[number].copy_(hosts[number], non_blocking=True)
        returned[number].copy_(slots[number], non_blocking=True)
        # A capture may forbid to wait for the stream; what the stream has copied back, it has.
        deadline = time.monotonic() + 30
        while returned[number, 0] != address:
            assert time.monotonic() < deadline, "the table has not been copied"
            time.sleep(0.001)
        return slots[number]

    report = through_kept_tables(make_table)
    assert report.state != "graphed"
    assert "everything relocated: failed" in (report.reason or "")


@pytest.fixture
def hidden() -> Iterator[int]:
    """The address of a MiB of zeros that torch knows nothing of, as libraries have."""
    driver = ctypes.CDLL("libcuda.so.1")
    address = ctypes.c_uint64()
    torch.cuda.synchronize()  # whose context is current
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)) == 0
    assert driver.cuMemsetD8_v2(address, ctypes.c_ubyte(0), ctypes.c_size_t(1 << 20)) == 0
    torch.cuda.synchronize()
    yield address.value
    torch.cuda.synchronize()
    assert driver.cuMemFree_v2(address) == 0


@pytest.mark.parametrize("tells", [False, True])
def test_constants_move_where_unknown_memory_does_not_lead_to_them(
    hidden: int, tells: bool
) -> None:
    """A library's workspace may hold anything, but no address of a weight; a table that it made of
    weights does, and would not hear of a move."""
    from table_kernels import double_through_table

    from pygraph.capturing import tensors
    from pygraph.runtime.compiled_graph import CompiledGraph

    words = torch.empty(1 << 17, dtype=torch.int64, device="meta")
    memory = tensors.at_address(words, hidden, 1 << 20, torch.device("cuda", 0))
    source = memory[-100:].view(torch.float32)
    source.copy_(randn(200))
    memory[0] = source.data_ptr()
    weight = randn(200)

    def function(arguments: list[Any]) -> list[Any]:
        x, held = arguments
        out = torch.empty_like(x)
        double_through_table[(1,)](memory, out, x.numel(), 256)
        return [out.add_(x).mul_(held)]

    memory[77] = weight.data_ptr() if tells else 0
    graph = CompiledGraph(function, name="graph 0 (unknown memory)", constants=(1,))
    for call in range(8):
        if call == 4:
            before, weight = weight, randn(200)
            assert before.data_ptr() != weight.data_ptr()
            memory[77] = weight.data_ptr() if tells else 0
        x = randn(200)
        (found,) = graph.dispatcher([x, weight])
        assert torch.equal(found, (2 * source + x) * weight)
    report = graph.refresh_report()
    assert (report.state, report.unknown_words) == ("graphed", 1 if tells else 0)
    assert report.relinks == (1 if tells else 0)
