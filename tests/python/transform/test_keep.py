"""Reads of numbers in Dynamo's graph: what becomes of each, and what is left alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._inductor.compile_fx import compile_fx
from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from pygraph.transform import keep

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Kept:
    """A function whose graph goes through the pass."""

    def __init__(self, function: Callable[..., Any], generated: bool = True) -> None:
        self.remaining: list[Any] = []
        self.applied: list[Any] = []
        self.targets: list[Any] = []

        def backend(module: torch.fx.GraphModule, _: Any) -> Any:
            before = str(module.graph)
            applied, remaining = keep.apply(module, generated=generated)
            module.graph.lint()
            assert applied or str(module.graph) == before
            self.applied += applied
            self.remaining += remaining
            self.targets += [node.target for node in module.graph.nodes]
            return module.forward

        self.function = function
        self.fast = torch.compile(function, backend=backend, fullgraph=True)

    def same(self, *arguments: Any) -> None:
        """Results, and what is left in the arguments, are those of the function bit for bit."""
        ours, theirs = [
            [each.clone() if isinstance(each, torch.Tensor) else each for each in arguments]
            for _ in range(2)
        ]
        found, expected = self.fast(*ours), self.function(*theirs)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def fill(x: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    start, stop = bounds[0], bounds[1]  # no inputs: what those have on the CPU Dynamo reads at once
    x[1, start:] = 0
    x[:, 2, stop:] = 3
    x[0, 0:2, : stop[()]] = -1
    x[start:stop, 1] = 7
    x[-1, 0, start:-1] = True
    return x * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
@pytest.mark.parametrize("bound", [torch.int8, torch.int32, torch.int64])
def test_slices_are_clipped_and_counted_as_slices_are(
    dtype: torch.dtype, bound: torch.dtype
) -> None:
    kept = Kept(fill)
    for start in (-100, -7, -6, -1, 0, 1, 5, 6, 7, 100):
        for stop in (-100, -3, 0, 2, 6, 100):
            x = torch.randn(4, 5, 6).mul(10).to(dtype)
            kept.same(x, torch.tensor([start, stop], dtype=bound))
    assert not kept.remaining
    assert {each.name for each in kept.applied} == {"keep"}
    assert all("test_keep.py:" in each.source for each in kept.applied)


def test_elements_that_are_not_written_keep_their_bits() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        x[n:] = 1
        return x.clone()

    x = torch.tensor([float("nan"), -0.0, float("inf"), 2.0])
    fast, plain = Kept(function).fast(x.clone(), torch.tensor(3)), function(x, torch.tensor(3))
    assert torch.equal(fast.view(torch.int32), plain.view(torch.int32))


def arithmetic(x: torch.Tensor, t: torch.Tensor) -> Any:
    s = t.view(1, 1).item()
    return x * s, s * x, x + s, s + x, x - s, s - x, torch.mul(x, s), x.add(s), x * s * s


VALUES = (0.1, 1 / 3, -7.3, 0.0, 1e-6, 6e4, float("inf"), float("nan"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("read", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(64,), ()], ids=str)
def test_arithmetic_with_a_float(dtype: torch.dtype, read: torch.dtype, shape: Any) -> None:
    kept, plain = Kept(arithmetic), Kept(arithmetic, generated=False)
    for value in VALUES:
        for each in (kept, plain):
            each.same(torch.randn(shape, dtype=dtype), torch.full((1, 1), value, dtype=read))
    assert not kept.remaining and not plain.remaining


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("read", DTYPES, ids=str)
def test_the_shorter_types_are_computed_with_in_fp32(dtype: torch.dtype, read: torch.dtype) -> None:
    """As compiled code does, and torch's own kernels on a GPU."""
    kept, plain = Kept(arithmetic), Kept(arithmetic, generated=False)
    for value in VALUES:
        x, t = torch.randn(64, dtype=dtype), torch.full((1, 1), value, dtype=read)
        wide, s = x.float(), t.float().view(())
        *once, twice = kept.fast(x, t)
        product = (wide * s).to(dtype)
        expected = [product, product, wide + s, wide + s, wide - s, s - wide, product, wide + s]
        for found, each in zip(once, expected, strict=True):
            torch.testing.assert_close(found, each.to(dtype), rtol=0, atol=0, equal_nan=True)
        again = (product.float() * s).to(dtype)
        torch.testing.assert_close(twice, again, rtol=0, atol=0, equal_nan=True)
        plain.same(x, t)
    assert not kept.remaining and plain.remaining and not plain.applied


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("read", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_arithmetic_with_an_integer(dtype: torch.dtype, read: torch.dtype) -> None:
    kept = Kept(arithmetic)
    for value in (0, 1, 3, 100, 16_777_217, -(2**60) - 1):
        if read == torch.int64 or 0 <= value <= 100:
            kept.same(torch.randn(64, dtype=dtype), torch.tensor([value], dtype=read))
    assert not kept.remaining


@pytest.mark.parametrize("generated", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("read", [*DTYPES, torch.int64], ids=str)
def test_comparisons(dtype: torch.dtype, read: torch.dtype, generated: bool) -> None:
    def function(x: torch.Tensor, t: torch.Tensor) -> Any:
        s = t.item()
        ordered = x < s, x <= s, s > x, s >= x, torch.gt(x, s), x.ge(s), torch.where(x > s, x, 0.0)
        return *ordered, x == s, s != x, x.eq(s), torch.ne(x, s)

    kept = Kept(function, generated)
    for value in VALUES if read.is_floating_point else (0, -3, 16_777_217, 2**62 + 1):
        near = torch.tensor(value, dtype=read).to(dtype)
        x = torch.stack([near, near + 1e-7, near - 1, near * 1.0001, -near, near * float("nan")])
        kept.same(x, torch.full((1,), value, dtype=read))
    assert not kept.remaining


def computed_numbers(x: torch.Tensor, t: torch.Tensor, u: torch.Tensor) -> Any:
    s = t.item()
    differences = x * (1 - s), x - (s - 0.1), x + (s - u.item()), x * -s
    products = x * (s * 3.3), x + 7 * s, x - s * u.item()
    return *differences, *products, x * (s / 7), x / (s + 1e-6), (x * s) * (s + 1), 0.1 * s


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("read", DTYPES, ids=str)
def test_what_one_operation_makes_of_a_float(dtype: torch.dtype, read: torch.dtype) -> None:
    kept = Kept(computed_numbers)
    for value in VALUES:
        x = torch.randn(64, dtype=dtype)
        kept.same(x, *(torch.full((1, 1), each, dtype=read) for each in (value, 0.3)))
    assert not kept.remaining
    lines = {each.what for each in kept.applied}
    assert len(lines) == 2 and any("computed" in each for each in lines)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, s: x * (2 * s.item() + 1),
        lambda x, s: x * (1 / s.item()),
        lambda x, s: x * (s.item() / s.item()),
        lambda x, s: x * (s.item() // 0.1),
        lambda x, s: x * s.item() ** 2,
        lambda x, s: x * (s.item() + (2**53 + 1)),
        lambda x, s: x * abs(s.item()),
        lambda x, s: torch.add(x, x, alpha=1 - s.item()),
        lambda x, s: (x * (1 - s.item()), x.new_full((2,), 1 - s.item())),
        lambda x, s: x.long() * (1 - s.item()),
    ],
)
def test_other_numbers_that_follow_from_a_float_are_left_alone(function: Any) -> None:
    kept = Kept(function)
    kept.same(torch.randn(6), torch.tensor([0.3]))
    assert kept.remaining and not kept.applied


@pytest.mark.parametrize("function", [lambda x, n: x * (1 - n), lambda x, n: x * (n * 0.5)])
def test_a_number_of_an_integer_is_left_alone(function: Any) -> None:
    kept = Kept(lambda x, n: function(x, n.item()))
    kept.same(torch.randn(6), torch.tensor([3]))
    assert kept.remaining and not kept.applied


def test_a_read_with_another_use_leaves_those_alone_that_it_is_computed_with() -> None:
    def function(x: torch.Tensor, t: torch.Tensor) -> Any:
        s = t[1].item()
        return x * (t[0].item() - s), x.new_full((2,), s)

    kept = Kept(function)
    kept.same(torch.randn(6), torch.tensor([0.3, 0.4]))
    assert len(kept.remaining) == 2 and not kept.applied


def test_reads_of_two_devices_are_left_alone() -> None:
    """Their number would be on neither for sure."""
    for devices, applies in ((("cpu", "cpu"), True), (("cpu", "cuda"), False)):
        with FakeTensorMode(shape_env=ShapeEnv()):
            x, *read = [torch.ones(3), *(torch.ones(1, device=each) for each in devices)]
            values = [x, *read, *(each.item() for each in read)]
            values += [values[3] - values[4], x]
        graph = torch.fx.Graph()
        nodes = [graph.placeholder(name) for name in ("x", "t", "u")]
        nodes += [graph.call_method("item", (each,)) for each in nodes[1:]]
        nodes.append(graph.call_function(operator.sub, (nodes[3], nodes[4])))
        nodes.append(graph.call_function(operator.mul, (nodes[0], nodes[5])))
        for node, value in zip(nodes, values, strict=True):
            node.meta["example_value"] = value
        graph.output((nodes[6],))
        applied, _ = keep.apply(torch.fx.GraphModule({}, graph), generated=True)
        assert bool(applied) == applies


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quotients_are_divided(dtype: torch.dtype) -> None:
    """In the type that the operator computes in, and not multiplied by a reciprocal."""
    computed = torch.float32 if dtype.itemsize == 2 else dtype
    x, t = torch.randn(1000, dtype=dtype), torch.tensor(0.7)
    found = Kept(lambda x, t: x / t.item()).fast(x, t)
    assert torch.equal(found, (x.to(computed) / t.to(computed)).to(dtype))


def rows_of_ones(bounds: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(len(bounds), 6)
    for row in range(len(bounds)):
        mask[row, bounds[row].item() :] = 0
    return mask


def test_what_is_written_is_stored_behind_the_last_write() -> None:
    def function(x: torch.Tensor, bounds: torch.Tensor) -> Any:
        mask = rows_of_ones(bounds)
        return x * mask, x - mask, mask

    kept = Kept(function)
    kept.same(torch.randn(3, 6), torch.tensor([2, -1, 9]))
    targets = kept.targets
    assert len(kept.applied) == 1 and targets.count("masked_fill_") == 3
    assert targets.count(torch.as_strided) == 1
    assert targets[::-1].index(torch.as_strided) < targets[::-1].index("masked_fill_")


def test_the_last_write_is_the_program_s_not_that_of_the_last_read() -> None:
    def function(x: torch.Tensor, bounds: torch.Tensor) -> Any:
        mask, first = torch.ones(3, 6), bounds[0].item()
        mask[1, bounds[1].item() :] = 0
        mask[0, first:] = 0
        return x * mask

    kept = Kept(function)
    kept.same(torch.randn(3, 6), torch.tensor([2, -1, 9]))
    assert len(kept.applied) == 2 and kept.targets.count(torch.as_strided) == 1


def test_inductor_stores_what_is_written() -> None:
    """What it does not store, no memory is made for: each reader computes it."""

    def function(x: torch.Tensor, bounds: torch.Tensor) -> Any:
        mask = rows_of_ones(bounds).double()
        mask[0, bounds[0].item() :] = 2
        return x.masked_fill(mask.lt(1), -torch.inf).softmax(1)

    def backend(module: torch.fx.GraphModule, example: Any) -> Any:
        assert keep.apply(module, generated=True)[0]
        return compile_fx(module, example)

    fast = torch.compile(function, backend=backend, fullgraph=True)
    x, bounds = torch.randn(3, 6), torch.tensor([2, -1, 9])
    found, codes = run_and_get_code(fast, x, bounds)
    torch.testing.assert_close(found, function(x, bounds))
    assert "empty_strided_cpu((3, 6), (6, 1), torch.float64)" in codes[0]


def test_what_is_stored_is_written_further() -> None:
    def function(x: torch.Tensor, bounds: torch.Tensor) -> Any:
        mask = rows_of_ones(bounds)
        before = x - mask
        mask.mul_(2)
        return x * mask, mask, before

    kept = Kept(function)
    kept.same(torch.randn(3, 6), torch.tensor([2, -1, 9]))
    assert kept.applied and torch.as_strided in kept.targets


@pytest.mark.parametrize("other", ["an argument", "an argument's", "a part", "a gradient"])
def test_what_is_not_whole_or_has_gradients_is_not_stored(other: str) -> None:
    def function(x: torch.Tensor, bounds: torch.Tensor) -> Any:
        if other == "an argument":
            mask = x
        elif other == "an argument's":
            mask = x.view(3, 6)
        else:
            mask = torch.ones(4, 6)[1:] if other == "a part" else x.exp()
        mask[0, bounds[0].item() :] = 0
        return x * mask

    kept = Kept(function)
    kept.same(torch.randn(3, 6).requires_grad_(other == "a gradient"), torch.tensor([2, -1, 9]))
    assert kept.applied and torch.as_strided not in kept.targets


def test_a_number_is_what_it_was_when_it_was_read() -> None:
    def function(x: torch.Tensor, t: torch.Tensor) -> Any:
        n, s = t[0].item(), x.sum().item()
        t.add_(1)
        x[n:] = 0
        return x * s + t.sum()

    kept = Kept(function)
    kept.same(torch.randn(6), torch.tensor([2, 3]))
    assert len(kept.applied) == 2


def test_a_read_has_no_gradient() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * x.sum().item()
        y[x.argmax() :] = 0
        return y

    kept, x = Kept(function), torch.tensor([1.0, -2, 3, 0.5, 7, 2])  # one element is written
    grads = []
    for each in (kept.fast, function):
        leaf = x.clone().requires_grad_()
        each(leaf).square().sum().backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads) and not kept.remaining


def test_a_float_as_result() -> None:
    kept = Kept(lambda x: (x * float(x.mean()), float(x.mean())))
    kept.same(torch.randn(8))
    assert not kept.remaining
    assert isinstance(kept.fast(torch.randn(8))[1], float)


def written(where: Callable[[Any], Any], what: Any = 0) -> Callable[..., Any]:
    def function(x: torch.Tensor, n: torch.Tensor) -> Any:
        x[where(n.item())] = what if isinstance(what, int) else what(x)
        return x.clone()

    return function


def multiplied(x: torch.Tensor, n: torch.Tensor) -> Any:
    y = x.clone()
    y *= n.item()
    return y


REFUSED: dict[str, Callable[..., Any]] = {
    "an integer as result": lambda x, n: (x + n.item(), n.item()),
    "a size": lambda x, n: x.new_ones(n.item()),
    "a slice that is read": lambda x, n: x[: n.item()].sum(),
    "arithmetic of numbers": lambda x, n: x * (n.item() + 1),
    "a check": lambda x, n: (torch._check(n.item() > 0), x * n.item())[1],
    "an index": written(lambda n: n),
    "a step": written(lambda n: slice(0, n, 2)),
    "a written tensor": written(lambda n: slice(n, None), lambda x: x.sum()),
    "a tensor of integers": lambda x, n: x.long() * n.item(),
    "a quotient of an integer": lambda x, n: x / n.item(),
    "a short type and an integer": lambda x, n: x.half() * n.item(),
    "a truth value": lambda x, n: x * (n > 2).item(),
    "written in place": multiplied,
    "an operator's parameter": lambda x, n: torch.add(x, x, alpha=n.item()),
    "a comparison of a short type": lambda x, n: x.half() > n.item(),
    "a comparison of numbers": lambda x, n: x * (n.item() > 2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_uses_are_left_alone(name: str) -> None:
    kept = Kept(REFUSED[name])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        kept.same(torch.randn(6), torch.tensor([3]))
    assert kept.remaining and not kept.applied


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.int32, 0.5), (torch.bool, 2), (torch.bool, 0.0)], ids=str
)
def test_numbers_that_the_type_does_not_have_are_left_alone(dtype: torch.dtype, value: Any) -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        x[n:] = value
        return x.clone()

    kept = Kept(function)
    kept.same(torch.ones(6, dtype=dtype), torch.tensor([3]))
    assert kept.remaining


def test_one_other_use_leaves_a_read_alone_and_its_slices() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> Any:
        first, last = n[0].item(), n[1].item()
        x[first:last] = 0
        return x * 2, torch.ones(4)[:last].sum()

    kept = Kept(function)
    kept.same(torch.randn(6), torch.tensor([1, 3]))
    assert len(kept.remaining) == 2


def test_a_truth_value_is_no_number() -> None:
    """Dynamo makes an integer of one before anything is computed; other traces may not."""
    with FakeTensorMode(shape_env=ShapeEnv()):
        x, t = torch.ones(3), torch.ones(1, dtype=torch.bool)
        graph = torch.fx.Graph()
        nodes = [graph.placeholder("x"), graph.placeholder("t")]
        nodes.append(graph.call_method("item", (nodes[1],)))
        nodes.append(graph.call_function(operator.mul, (nodes[0], nodes[2])))
        for node, value in zip(nodes, (x, t, t.item(), x), strict=True):
            node.meta["example_value"] = value
    graph.output((nodes[3],))
    module = torch.fx.GraphModule({}, graph)
    assert keep.apply(module, generated=True) == ([], [nodes[2]])


def test_torchs_own_kernels_do_not_divide_by_a_tensor() -> None:
    assert Kept(lambda x: x / x.sum().item(), generated=False).fast(torch.ones(3)) is not None
    kept = Kept(lambda x: x / x.sum().item(), generated=False)
    kept.same(torch.randn(100))
    assert kept.remaining
    kept = Kept(lambda x: x * x.sum().item(), generated=False)
    kept.same(torch.randn(100))
    assert not kept.remaining
