"""Obstacles are taken out of a program before it is compiled: one graph, the untransformed results
bit for bit, on every call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers import randn
from torch._dynamo.exc import TorchRuntimeError
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._inductor.utils import fresh_cache

import pygraph
from benchmarks.harness.program import with_code_of_its_own
from pygraph.frontends.compile import speculation
from pygraph.reporting import GraphReport

N = 64


def layers(x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = torch.tanh(x @ x) + 0.1
    return x


def graphs_used() -> list[GraphReport]:
    return [graph for graph in pygraph.report().graphs if graph.replays and graph.passes]


def check(
    function: Callable[..., Any],
    given: Callable[[int], tuple[Any, ...]],
    *,
    calls: int = 12,
    graphs: int = 1,
    replays: int = 5,
    dynamic: bool | None = None,
) -> GraphReport:
    """`given` makes the arguments of a call; they are made twice, since a call may write them. The
    other program is the untransformed one: torch's own default computes numbers on the CPU in fp16
    otherwise than torch's code for CUDA graphs."""
    untransformed = {"backend": "pygraph", "options": {"transform": "none"}}
    own = with_code_of_its_own(function) if inspect.isfunction(function) else function
    plain = torch.compile(own, dynamic=dynamic, **untransformed)
    fast = torch.compile(function, backend="pygraph", dynamic=dynamic)
    with torch.no_grad():
        for n in range(calls):
            torch.manual_seed(n)
            one = given(n)
            torch.manual_seed(n)
            other = given(n)
            torch.manual_seed(n)
            expected = plain(*one)
            torch.manual_seed(n)
            found = fast(*other)
            # At once, so that a result which is not there yet is seen.
            assert_alike(found, expected)
            assert_alike(other, one)
    used = graphs_used()
    assert len(used) == graphs, [(g.name, g.state, g.reason) for g in pygraph.report().graphs]
    assert all(graph.replays >= replays and graph.state == "graphed" for graph in used), [
        (graph.replays, graph.reason) for graph in used
    ]
    return used[0]


def assert_alike(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert (found.device, found.dtype, found.shape) == (
            expected.device,
            expected.dtype,
            expected.shape,
        )
        assert found.is_pinned() == expected.is_pinned()
        left, right = found.contiguous().reshape(-1), expected.contiguous().reshape(-1)
        assert torch.equal(left.view(torch.uint8), right.view(torch.uint8))
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
    else:
        assert found == expected or (found != found and expected != expected)


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=str)
def x_of(request: Any) -> Iterator[Callable[[], torch.Tensor]]:
    yield lambda: randn(N, N).to(request.param)


def test_a_float_that_differs_in_each_call(x_of: Callable[[], torch.Tensor]) -> None:
    graph = check(lambda x, s: layers(x * s) / s, lambda n: (x_of(), 0.37 + 0.11 * n))
    assert graph.programs == 1 and {each.name for each in graph.passes} == {"bring"}


TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int64]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("value", [11, float("nan")])
def test_a_constant_number_of_any_type(dtype: torch.dtype, value: float) -> None:
    """As the scale of DeBERTa's attention, which is computed on the CPU."""
    if value != value and not dtype.is_floating_point:
        pytest.skip("integers are never NaN")

    def function(x: torch.Tensor) -> torch.Tensor:
        scale = torch.sqrt(torch.tensor(value, dtype=torch.float)).to(dtype)
        return layers(x / scale) * scale

    kind = dtype if dtype.is_floating_point else torch.float32
    graph = check(function, lambda n: (randn(N, N).to(kind),))
    assert {each.name for each in graph.passes} == {"fold"}


@pytest.mark.parametrize("training", [False, True])
def test_a_graph_with_constants_of_the_host_is_not_traced_again(training: bool) -> None:
    """As in a program that is started once more: AOTAutograd's cache has the code."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        scale = torch.sqrt(torch.tensor(11, dtype=torch.float)).to(torch.bfloat16)
        return layers(x @ w / scale) * scale

    def call(run: Callable[..., Any], n: int) -> list[torch.Tensor]:
        torch.manual_seed(n)
        x, w = randn(N, N), randn(N, N).requires_grad_(training)
        out = run(x, w)
        return [out.detach(), *(torch.autograd.grad(out.sum(), w) if training else ())]

    plain = torch.compile(
        with_code_of_its_own(function), backend="pygraph", options={"transform": "none"}
    )
    with (
        fresh_cache(),
        functorch_config.patch(enable_autograd_cache=True),
        torch.set_grad_enabled(training),
    ):
        expected = [call(plain, n) for n in range(8)]
        sources = []
        for hits in (0, 1):
            torch._dynamo.reset()
            pygraph.reset()
            counters.clear()
            fast = torch.compile(function, backend="pygraph")
            for n in range(8):
                assert_alike(call(fast, n), expected[n])
            assert counters["aot_autograd"]["autograd_cache_hit"] == hits
            graphs = pygraph.report().graphs
            assert [graph.state for graph in graphs] == ["graphed"] * (1 + training)
            assert {each.name for graph in graphs for each in graph.passes} == {"fold"}
            sources.append([str(each) for graph in graphs for each in graph.passes])
        assert sources[0] == sources[1]


@pytest.mark.parametrize("make", [float, np.float32, np.float64, int], ids=lambda m: m.__name__)
def test_a_graph_with_a_number_is_launched_before_the_guards(make: Any) -> None:
    def function(x: torch.Tensor, s: Any) -> torch.Tensor:
        return layers(x * s)

    fast = torch.compile(function, backend="pygraph", options={"launch": "always"})
    plain = torch.compile(
        with_code_of_its_own(function), backend="pygraph", options={"transform": "none"}
    )
    with torch.no_grad():
        for n in range(40):
            x, s = randn(N, N), make(3 + 2 * n)
            assert_alike(fast(x, s), plain(x, s))
        launched, claimed, _ = speculation.counts(fast)
    assert claimed == launched > 10


def test_a_graph_with_a_number_of_the_module_is_launched_before_the_guards() -> None:
    class Scaled(torch.nn.Module):
        by = np.float64(1.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return layers(x * self.by)

    model = Scaled()
    fast = torch.compile(model, backend="pygraph", options={"launch": "always"})
    with torch.no_grad():
        for n in range(40):
            model.by = np.float64(1.5 if n < 20 else 2.5)
            x = randn(N, N)
            assert torch.allclose(fast(x), model(x), atol=1e-4)
        launched, claimed, _ = speculation.counts(fast)
    assert launched > claimed > 10


def test_a_float_that_is_computed_with(x_of: Callable[[], torch.Tensor]) -> None:
    graph = check(
        lambda x, s: layers(x * s) * (1 - s**2) + s**0.5, lambda n: (x_of(), 0.37 + 0.01 * n)
    )
    assert graph.programs == 1


def test_what_one_operation_makes_of_a_number_that_is_read() -> None:
    """`dynamic`, and what uses the number itself: torch compiles its value in otherwise, and then
    multiplies by the reciprocal. Separate results: which product of a sum is fused with it, ptxas
    decides."""

    def function(x: torch.Tensor) -> Any:
        s = x.abs().amax().item()
        return layers(x) * (1 - s), x / (s + 1e-6), x * (s / 7), x * s

    graph = check(function, lambda n: (randn(N, N),), dynamic=True)
    assert {each.name for each in graph.passes} == {"keep"}


def test_a_quotient_of_a_number_that_is_read_has_the_bits_of_pythons() -> None:
    """On a GPU Inductor multiplies by a constant's reciprocal, which rounds otherwise in fp64."""

    def function(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return x * (t.item() / 7) + 0 * x.sum()

    fast = torch.compile(function, backend="pygraph")
    x = torch.ones(N, device="cuda", dtype=torch.float64)
    with torch.no_grad():
        for value in torch.rand(40).tolist():
            t = torch.tensor(value, device="cuda", dtype=torch.float64)
            assert torch.equal(fast(x, t), x * (value / 7))
    (graph,) = graphs_used()
    assert {each.name for each in graph.passes} == {"keep"}


def test_what_is_computed_of_floats_is_launched_before_the_guards() -> None:
    def function(x: torch.Tensor, s: float, t: float) -> torch.Tensor:
        return layers(x * (1 - s**2) ** 0.5 + s) * (t - s) / t

    fast = torch.compile(function, backend="pygraph", options={"launch": "always"})
    plain = torch.compile(
        with_code_of_its_own(function), backend="pygraph", options={"transform": "none"}
    )
    with torch.no_grad():
        for n in range(40):
            x, s = randn(N, N), 0.3 + 0.01 * n
            assert_alike(fast(x, s, 2.5 + n), plain(x, s, 2.5 + n))
        launched, claimed, _ = speculation.counts(fast)
    assert launched == claimed > 20
    (graph,) = graphs_used()
    assert graph.programs == 1


def test_an_integer_that_differs_in_each_call(x_of: Callable[[], torch.Tensor]) -> None:
    graph = check(lambda x, n: layers(x * n) + n, lambda n: (x_of(), 3 + 5 * n))
    assert graph.programs == 1 and {each.name for each in graph.passes} == {"count"}


def test_what_is_computed_of_an_integer(x_of: Callable[[], torch.Tensor]) -> None:
    graph = check(
        lambda x, n: layers(x) * (n + 1) / (2 * n + 4) + 1 / (n + 3), lambda n: (x_of(), 3 + 5 * n)
    )
    assert graph.programs == 1 and "count" in {each.name for each in graph.passes}


def test_an_integer_that_says_which_row_is_written() -> None:
    def function(x: torch.Tensor, cache: torch.Tensor, n: int) -> Any:
        cache[n] = x[0]
        cache.select(1, n + 1).fill_(2)  # torch 2.11 guards the value of n in `cache[:, n + 1]`
        there = torch.arange(N, device=x.device) <= n
        return layers(x).masked_fill(~there, 0.0) + cache[n], cache.sum(0)

    graph = check(function, lambda n: (randn(N, N), randn(N, N), (5 * n + 2) % (N - 1)), calls=16)
    assert graph.programs == 1 and "count" in {each.name for each in graph.passes}


def test_a_row_that_is_counted_from_the_end() -> None:
    def function(x: torch.Tensor, cache: torch.Tensor, n: int) -> Any:
        cache[n] = x[0]
        return layers(x) + cache[n]

    fast = torch.compile(function, backend="pygraph")
    with torch.no_grad():
        for n in (3, 9, -2, -7, 5, 0, 1, -1, N - 1, -N):
            x, cache = randn(N, N), randn(N, N)
            same, plain = cache.clone(), layers(x)
            found = fast(x, cache, n)
            same[n] = x[0]
            assert torch.equal(cache, same)
            torch.testing.assert_close(found, plain + same[n])
        for n in (N, -N - 1):
            with pytest.raises((IndexError, TorchRuntimeError), match=r"out of (bounds|range)"):
                fast(randn(N, N), randn(N, N), n)


def test_an_integer_that_sizes_follow_from_is_guarded() -> None:
    function = lambda x, n: torch.tanh(x[:n]) * n  # noqa: E731
    fast = torch.compile(function, backend="pygraph")
    for n in range(24):
        x, size = randn(N, N), 3 + n % 4
        torch.testing.assert_close(fast(x, size), function(x, size))


def test_a_number_on_the_cpu(x_of: Callable[[], torch.Tensor]) -> None:
    graph = check(
        lambda x, s: layers(x + s) * torch.sqrt(s), lambda n: (x_of(), torch.tensor(0.1 * n))
    )
    assert graph.programs == 1 and graph.bytes_staged > 0


def test_the_host_computes_as_it_does_without_graphs() -> None:
    """Torch's code for CUDA graphs moves this to the device, whose exp() is another one."""

    def function(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return layers(x) * torch.exp(s)

    plain, fast = torch.compile(function), torch.compile(function, backend="pygraph")
    for n in range(8):
        x, s = randn(N, N), torch.tensor(0.1 * n)
        assert_alike(fast(x, s), plain(x, s))


def test_a_result_that_is_a_view(x_of: Callable[[], torch.Tensor]) -> None:
    """Generated code makes the view outside of the graph, which brings its arguments, too."""
    graph = check(
        lambda x, s: layers(x * s).reshape(N // 2, 2, N), lambda n: (x_of(), torch.tensor(0.5 + n))
    )
    assert graph.bytes_staged > 0


def test_a_read_that_stays_on_the_device(x_of: Callable[[], torch.Tensor]) -> None:
    def function(x: torch.Tensor) -> Any:
        most = x.float().abs().amax().item()
        return (layers(x) * most - most) / most, layers(x + most), most

    graph = check(function, lambda n: (x_of() * (0.3 + n),))
    assert "keep" in {each.name for each in graph.passes}


def test_an_integer_that_stays_on_the_device() -> None:
    def function(x: torch.Tensor) -> Any:
        above = int((x > 0.1).sum())
        return layers(x) * above - above

    graph = check(function, lambda n: (randn(N, N),))
    assert {each.name for each in graph.passes} == {"keep"} and graph.programs == 1


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_slices_with_bounds_of_the_device_are_written(device: str) -> None:
    def function(x: torch.Tensor, lengths: torch.Tensor) -> Any:
        mask = x.new_ones(x.size(0), x.size(1))
        for row in range(5):
            mask[row, lengths[row] :] = 0
        mask[7, lengths[0] : lengths[1]] = 0.5
        return layers(x) * mask

    def given(n: int) -> tuple[Any, ...]:
        lengths = torch.randint(-2 * N, 2 * N, (5,), dtype=torch.int32)
        return randn(N, N), lengths.to(device)

    graph = check(function, given)
    assert "keep" in {each.name for each in graph.passes} and graph.programs == 1


def test_a_branch_on_the_device() -> None:
    def function(x: torch.Tensor) -> Any:
        y = layers(x)
        return torch.cond(x.sum() > 0, lambda y: y + 0.25, lambda y: 0.5 - y, (y,))

    fast = torch.compile(function, backend="pygraph")
    with torch.no_grad():
        for n in range(12):
            x = randn(N, N) + (0.2 if n % 2 else -0.2)
            y = layers(x)
            torch.testing.assert_close(fast(x), y + 0.25 if n % 2 else 0.5 - y)
    (graph,) = graphs_used()
    assert graph.replays >= 5 and {each.name for each in graph.passes} == {"predicate"}


def test_a_numpy_scalar() -> None:
    check(lambda x, s: layers(x) / s, lambda n: (randn(N, N), np.float64(1.5 + n)))


class Owns(torch.nn.Module):
    def __init__(self, buffer: bool) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(N, N)
        if buffer:
            self.register_buffer("temperature", torch.tensor(2.0))
            self.register_buffer("mask", torch.rand(N, N) > 0.5)
        else:
            self.temperature = torch.tensor(2.0)
            self.mask = torch.rand(N, N) > 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = layers(self.linear(x) / self.temperature)
        return y.masked_fill(self.mask.to(x.device), 0.0)


@pytest.mark.parametrize("buffer", [False, True])
def test_what_a_module_has_on_the_cpu(buffer: bool) -> None:
    model = Owns(buffer).requires_grad_(False)
    model.linear.cuda()

    def given(n: int) -> tuple[Any, ...]:
        model.temperature.fill_(1.0 + n)
        model.mask.copy_(torch.rand(N, N) > 0.5)
        return (randn(N, N),)

    check(model, given)


def test_constants_of_the_cpu() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(N).to(x.device)
        mask = torch.ones(N, N).tril().to(x.device)
        return layers(x * torch.tensor(3.0) + rows) * mask + torch.tensor([0.5]).to(x.device)

    graph = check(function, lambda n: (randn(N, N),))
    assert graph.bytes_staged == 0


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("rows", [N, 40 * N])
def test_a_tensor_of_the_cpu(pinned: bool, blocking: bool, rows: int) -> None:
    def given(n: int) -> tuple[Any, ...]:
        t = torch.randn(rows, N)
        return randn(N, N), t.pin_memory() if pinned else t

    function = lambda x, t: layers(  # noqa: E731
        x + t.to("cuda", non_blocking=not blocking).view(-1, N, N).amax(0)
    )
    check(function, given)


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("rows", [N, 40 * N])
def test_a_tensor_may_be_written_as_soon_as_the_call_returns(rows: int, pinned: bool) -> None:
    """The device is so far behind that all staging slots are in use."""
    function = lambda x, t: layers(  # noqa: E731
        x + t.to("cuda", non_blocking=True).view(-1, N, N).amax(0)
    )
    fast = torch.compile(function, backend="pygraph")
    big = torch.empty(2048, 2048, device="cuda")
    kept = []
    with torch.no_grad():
        for _ in range(60):
            x, t = randn(N, N), torch.randn(rows, N, pin_memory=pinned)
            kept.append((x, t.clone()))
            big @ big  # the device is behind
            kept[-1] += (fast(x, t),)
            t.fill_(float("nan"))
        plain = torch.compile(function)
        for x, t, found in kept:
            assert_alike(found, plain(x, t))


def test_results_on_the_cpu() -> None:
    def function(x: torch.Tensor) -> Any:
        y = layers(x)
        return y + 1, y.cpu(), y.argmax(-1).cpu(), y.sum().cpu()

    graph = check(function, lambda n: (randn(N, N),))
    assert graph.bytes_fetched > 0


def test_what_the_cpu_does_with_results() -> None:
    def function(x: torch.Tensor, t: torch.Tensor) -> Any:
        y = layers(x)
        return y, (y.sum().cpu() * t).sin(), y.to("cpu", non_blocking=False)[:, ::2]

    check(function, lambda n: (randn(N, N), torch.randn(5)))


def test_host_work_on_both_sides() -> None:
    def function(x: torch.Tensor, t: torch.Tensor) -> Any:
        y = layers(x + torch.exp(t).to("cuda"))
        return y.cpu() + t

    check(function, lambda n: (randn(N, N), torch.randn(N, N)))


def test_a_state_on_the_cpu_is_counted() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = layers(x) * self.steps
            self.steps += 1
            return y

    one, other = Counts(), Counts()
    plain, fast = torch.compile(one), torch.compile(other, backend="pygraph")
    with torch.no_grad():
        for _ in range(10):
            x = randn(N, N)
            assert_alike(fast(x), plain(x))
    assert other.steps.item() == one.steps.item() == 10
    assert graphs_used()


def test_training_with_a_float_that_differs() -> None:
    linear = torch.nn.Linear(N, N).cuda()

    def function(x: torch.Tensor, s: float) -> torch.Tensor:
        return (torch.tanh(linear(x)) * s).square().mean()

    plain, fast = torch.compile(function), torch.compile(function, backend="pygraph")
    torch.set_grad_enabled(True)
    for n in range(14):
        x, s = randn(N, N), 0.5 + 0.1 * n
        gradients = []
        for each in (plain, fast):
            linear.zero_grad()
            loss = each(x, s)
            loss.backward()
            gradients.append([loss.detach(), *(p.grad.clone() for p in linear.parameters())])
        assert_alike(*reversed(gradients))
    assert len(graphs_used()) >= 2
    assert all(graph.programs == 1 for graph in graphs_used())


def test_without_passes_a_number_has_a_program_of_its_own() -> None:
    fast = torch.compile(
        lambda x, s: layers(x) * s, backend="pygraph", options={"transform": "none"}
    )
    with torch.no_grad():
        for n in range(8):
            x, s = randn(N, N), torch.tensor(0.1 * n)
            torch.testing.assert_close(fast(x, s), layers(x) * s, rtol=1e-3, atol=1e-3)
    assert all(not graph.passes for graph in pygraph.report().graphs)


def test_nan_and_infinity_and_none_of_a_type() -> None:
    values = [1.0, float("nan"), float("inf"), -0.0, 2.0, 1e-300, -5.0, 3.0]
    check(lambda x, s: x * s, lambda n: (randn(N), torch.tensor(values[n])), calls=8)


def test_a_value_that_changes_its_type_or_device() -> None:
    fast = torch.compile(lambda x, s: layers(x) * s, backend="pygraph")
    made: list[Any] = [1.5, torch.tensor(2.0), torch.tensor(3), torch.tensor(2.5).cuda(), 7, 2.5]
    with torch.no_grad():
        for n in range(24):
            x, s = randn(N, N), made[n % len(made)]
            torch.testing.assert_close(fast(x, s), layers(x) * s, rtol=1e-3, atol=1e-3)


def test_dynamic_sizes_with_host_tensors() -> None:
    def function(x: torch.Tensor, t: torch.Tensor, s: float) -> Any:
        y = torch.tanh(x + t.to("cuda")) * s
        return y, y.sum().cpu()

    sizes = [8, 8, 8, 12, 12, 12, 12, 8, 12]
    check(
        function,
        lambda n: (randn(sizes[n], N), torch.randn(sizes[n], N), 0.5 + n),
        calls=len(sizes),
        replays=3,
        dynamic=True,
    )
