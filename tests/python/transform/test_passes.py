"""Each pass before and after, and what it refuses."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from places import assert_bits
from torch._inductor.compile_fx import compile_fx_inner
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from transform_support import DEVICE, Case, OnDevice, on_cpu, trace

import pygraph
from pygraph.frontends.compile.parts import run_by_operators
from pygraph.transform import pipeline, reading

X = torch.randn(4, 4)


def number(value: float = 1.5) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def assert_runs(case: Case, *arguments: Any) -> None:
    found, expected = reversed(case.run(*arguments))
    assert_bits(found, expected)


def by_inductor(case: Case) -> Any:
    """The body as Inductor compiles it for the CPU."""
    body = on_cpu(case.body)
    examples = [
        reading.moved(node.meta["val"], torch.device("cpu"))
        for node in reading.placeholders(body.graph)
    ]
    FakeTensorProp(body, examples[0].fake_mode).propagate_dont_convert_inputs(*examples)
    with torch.no_grad():
        return compile_fx_inner(body, examples)


# ----------------------------------------------------------------------------------------- bring


def test_a_number_becomes_a_cell() -> None:
    case = Case(lambda x, s: (x * s,), OnDevice(X), number())
    assert case.split is not None
    assert case.before == case.after == ["mul.Tensor"]
    assert case.split.staged == {1} and case.split.transparent and not case.split.is_body
    assert [each.name for each in case.split.applied] == ["bring"]
    for value in (1.5, -3.0, float("nan"), float("inf"), 1e-310):
        assert_runs(case, X, number(value))


def test_what_is_computed_of_it_moves_to_the_front() -> None:
    case = Case(lambda x, s: (x * (1 - s**2) + torch.exp(s),), OnDevice(X), number())
    assert case.split is not None and case.split.front is not None
    assert case.before == ["pow.Tensor_Scalar", "rsub.Scalar", "mul.Tensor", "exp", "add.Tensor"]
    assert case.after == ["mul.Tensor", "add.Tensor"]
    assert case.split.staged == {2, 3} and case.split.unused == {1}
    assert_runs(case, X, number(0.3))


def test_what_is_computed_by_few_operations_comes_in_the_arguments_cell() -> None:
    """As torch has Python's numbers: of tensors, and constants that are tensors, too."""
    power, full = torch.ops.aten.pow.Tensor_Tensor, torch.ops.aten.full.default
    constant = lambda value: full([], value, dtype=torch.float64, device="cpu")  # noqa: E731

    rounded = lambda s: torch.ops.prims.convert_element_type.default(s, torch.float32)  # noqa: E731

    def function(x: Any, s: Any, t: Any) -> Any:
        root = power(constant(1.0) + constant(-1.0) * power(s, constant(2.0)), constant(0.5))
        return x * rounded(root) + x * rounded(s), x / (t - s), x - rounded(2 / t)

    case = Case(function, OnDevice(X), number(), number())
    assert case.split is not None and case.split.transparent
    assert {index: len(each) for index, each in case.split.computed.items()} == {1: 2, 2: 2}
    assert [tuple(each.shape) for each in case.split.examples[1:]] == [(2,), (2,)]
    for value in (0.3, 0.9, -0.0, float("nan")):
        assert_runs(case, X, number(value), number(0.7))


def test_a_number_that_follows_from_arguments_which_the_device_has_not_is_computed_in_front() -> (
    None
):
    """A call that is led past the graph's front would leave them out."""
    case = Case(lambda x, s, t: (x * (s - t),), OnDevice(X), number(), number())
    assert case.split is not None and case.split.front is not None and not case.split.computed
    assert_runs(case, X, number(0.3), number(0.7))
    case = Case(lambda x, s, t: (x * (s - t) * t,), OnDevice(X), number(), number())
    assert case.split is not None and case.split.transparent
    assert_runs(case, X, number(0.3), number(0.7))


def test_an_argument_that_is_needed_on_the_host_as_well_keeps_its_place() -> None:
    def function(x: Any, s: Any) -> Any:
        return x * (s - 1), x + (x.sum().cpu() * s).to(DEVICE)

    case = Case(function, OnDevice(X), number())
    assert case.split is not None and case.split.front is not None and not case.split.computed
    assert_runs(case, X, number(0.3))


def test_what_torchs_own_kernels_compute_is_left_to_them() -> None:
    """A power of theirs need not be libm's."""
    case = Case(lambda x, s: (x + (s * 2).to(DEVICE),), OnDevice(X), number(), generated=False)
    assert case.split is not None and case.split.front is not None and not case.split.computed
    assert_runs(case, X, number(0.3))


def test_what_would_take_many_operations_is_computed_in_front() -> None:
    def function(x: Any, s: Any) -> Any:
        for _ in range(6):  # each of them twice as long
            s = s * s + 0.1
        return (x * s,)

    def deep(x: Any, s: Any) -> Any:
        made = torch.sqrt(s)
        for _ in range(16):  # each `s` waits for what follows
            made = torch.ops.aten.sub.Tensor(s, torch.sqrt(made))
        return (x * made,)

    for each in (function, deep):
        case = Case(each, OnDevice(X), number())
        assert case.split is not None and case.split.front is not None and not case.split.computed
        assert_runs(case, X, number(0.3))


def test_the_device_rounds_a_number_of_pythons() -> None:
    """They come in fp64, and graphs of fp32 take them rounded: that needs no part in front."""
    convert = torch.ops.prims.convert_element_type.default

    def function(x: Any, s: Any) -> Any:
        rounded = convert(convert(s, torch.float64), torch.float32)
        return (x * rounded, x / rounded)

    case = Case(function, OnDevice(X), number())
    assert case.split is not None and case.split.transparent
    for value in (1.1, 1e-42, -1e300, 0.1 + 2**-30):
        assert_runs(case, X, number(value))


def test_a_tensor_that_is_copied_to_the_device_is_staged() -> None:
    mask = torch.rand(4, 4) > 0.5
    case = Case(lambda x, m: (x.masked_fill(m.to(DEVICE), 0.0),), OnDevice(X), mask)
    assert case.split is not None and case.split.transparent
    assert case.after == ["masked_fill.Scalar"] and case.split.staged == {1}
    assert_runs(case, X, mask)
    assert_runs(case, X, ~mask)


def test_a_copy_that_converts_is_left_alone() -> None:
    """Not every value is converted alike by host and device. (Generated code converts apart.)"""
    case = Case(lambda x, t: (x + t.to(DEVICE, torch.int32),), OnDevice(X), torch.randn(4, 4))
    assert case.split is None


def test_indices_and_written_values_may_be_on_the_host() -> None:
    rows = torch.tensor([2, 0])
    case = Case(
        lambda x, i, v: (
            torch.ops.aten.index.Tensor(x, [i]),
            torch.ops.aten.index_put.default(x, [i], v),
        ),
        OnDevice(X),
        rows,
        torch.tensor(7.0),
    )
    assert case.split is not None and case.split.staged == {1, 2}
    assert_runs(case, X, rows, torch.tensor(-1.0))


def test_an_argument_that_the_body_also_takes_on_the_host_keeps_its_place() -> None:
    """Something that must stay in the body reads it: the sum of the device decides what."""

    def function(x: Any, t: Any) -> Any:
        return (x + t.to(DEVICE), (x.sum().cpu() + t).to(DEVICE) * x)

    case = Case(function, OnDevice(X), torch.randn(4, 4))
    assert case.split is not None
    assert case.split.staged == {2} and 1 not in case.split.unused
    assert_runs(case, X, torch.randn(4, 4))


def test_torchs_own_kernels_get_numbers_as_they_are() -> None:
    """They divide by a number of the host in another way than by one of the device."""
    case = Case(lambda x, s: (x / s,), OnDevice(X), number(), generated=False)
    assert case.split is None


def test_random_numbers_of_the_host_keep_their_order() -> None:
    def function(x: Any, t: Any) -> Any:
        noise = torch.rand(4, 4)
        other = torch.rand(4, 4)
        return (x + noise.to(DEVICE), other + t)

    case = Case(function, OnDevice(X), torch.randn(4, 4))
    t = torch.randn(4, 4)
    assert case.split is not None and case.split.front is not None
    torch.manual_seed(3)
    (expected, _) = case.run(X, t)
    torch.manual_seed(3)
    (_, found) = (case._plain, list(case.callable()([X, t])))
    assert_bits(found, expected)


def test_random_numbers_that_are_needed_later_are_drawn_in_their_turn() -> None:
    """The first one drawn is what nothing in front needs."""

    def function(x: Any, t: Any) -> Any:
        first = torch.rand(4, 4)
        second = torch.rand(4, 4)
        return (x + second.to(DEVICE), first + t)

    case, t = Case(function, OnDevice(X), torch.randn(4, 4)), torch.randn(4, 4)
    assert case.split is not None and case.split.front is not None
    torch.manual_seed(3)
    expected = case._plain(X, t)
    torch.manual_seed(3)
    assert_bits(list(case.callable()([X, t])), list(expected))


def test_random_numbers_behind_one_that_needs_the_device_are_not_brought() -> None:
    def function(x: Any) -> Any:
        first = torch.bernoulli(x.sum(0).sigmoid().cpu())
        second = torch.rand(4, 4)
        return (x + second.to(DEVICE), first + 1)

    case = Case(function, OnDevice(X))
    assert case.split is None or not case.split.staged


def test_a_copy_to_the_device_with_another_layout_is_left_alone() -> None:
    def function(x: Any, t: Any) -> Any:
        return (x + torch.ops.aten.slice.Tensor(t, 1, 0, 8, 2).to(DEVICE),)

    case = Case(function, OnDevice(X), torch.randn(4, 8))
    assert case.split is None or not case.split.staged


def test_what_follows_from_the_device_is_not_brought() -> None:
    case = Case(lambda x: (x * x.sum().cpu(),), OnDevice(X))
    assert case.split is None


def test_an_expanded_tensor_is_not_brought() -> None:
    case = Case(
        lambda x, t: (torch.ops.aten.copy.default(x, t),),
        OnDevice(X),
        torch.randn(4, 1).expand(4, 4),
    )
    assert case.split is None


# ------------------------------------------------------------------------------------- predicate

cond = torch.ops.higher_order.cond


def test_of_branches_by_element_one_is_chosen() -> None:
    def up(y: torch.Tensor, z: torch.Tensor) -> Any:
        return y + 0.25, y.t() * z.t()

    def down(y: torch.Tensor, z: torch.Tensor) -> Any:
        return y / 0, (y.t() - 1).exp()

    def function(x: torch.Tensor) -> Any:
        first, second = cond(x.sum() > 0, up, down, (x * 2, x))
        third, _ = cond(x.view(-1).narrow(0, 0, 1) > 0, down, up, (first, x))
        return first + 1, second, third

    case = Case(function, OnDevice(X))
    assert case.split is not None and case.split.transparent
    assert case.before.count("cond") == 2 and "cond" not in case.after
    assert {each.name for each in case.split.applied} == {"predicate"}
    assert set(case.split.cleared.values()) == {"predicate"}
    for x in (X.abs(), -X.abs(), X, -X, torch.zeros(4, 4), torch.full((4, 4), float("nan"))):
        assert_runs(case, x)


def test_a_condition_on_the_host_is_brought() -> None:
    def function(x: torch.Tensor, t: torch.Tensor) -> Any:
        """One branch computes on the host, too."""
        return cond(t > 0, lambda y, t: (y + t.exp(),), lambda y, t: (0.5 - y,), (x, t))

    case = Case(function, OnDevice(X), torch.tensor(1.0))
    assert case.split is not None and len(case.split.staged) == 2
    assert {each.name for each in case.split.applied} == {"predicate", "bring"}
    for value in (1.0, -1.0, float("nan")):
        assert_runs(case, X, torch.tensor(value))


@pytest.mark.parametrize(
    "branch",
    [
        lambda y: (y @ y,),
        lambda y: (y.sum(0, keepdim=True).expand(4, 4) + 0,),
        lambda y: (torch.rand_like(y),),
        lambda y: (torch.ops.aten.rrelu.default(y, 0.1, 0.3, True),),  # by element, and drawn
        lambda y: (y.index_select(0, torch.arange(4, device=y.device)),),
        lambda y: (y + torch.ones(4, 4).to(y.device),),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_other_branches_are_left_alone(branch: Any, first: bool) -> None:
    plain = lambda y: (y * 2,)  # noqa: E731

    def function(x: torch.Tensor) -> Any:
        branches = (branch, plain) if first else (plain, branch)
        return cond(x.sum() > 0, *branches, (x,))

    module = trace(function, OnDevice(X))
    split = pipeline.in_parts(module, pipeline.ALL, generated=True)
    assert split is None or "predicate" not in {each.name for each in split.applied}


# ----------------------------------------------------------------------------------------- count


def test_an_integer_becomes_a_cell() -> None:
    case = Case(lambda x, n: (x * n + n,), OnDevice(X), 7)
    assert case.split is not None and case.split.transparent
    assert case.split.staged == {1} and {each.name for each in case.split.applied} == {"count"}
    for value in (7, 0, -3, 1 << 40):
        assert_runs(case, X, value)


def of_integer(x: torch.Tensor, n: Any) -> Any:
    return x * (n + 1) / (2 * n + 4) + n, x - n / 3, x * (-n) - (n * n - 3)


@pytest.mark.parametrize("hint", [7, 1 << 20, (1 << 31) - 1])
def test_what_is_computed_of_a_small_integer_is_computed_on_the_device(hint: int) -> None:
    case = Case(of_integer, OnDevice(X.double()), hint)
    assert case.split is not None and case.split.transparent and case.split.staged == {1}
    for value in (7, 0, -3, 12345, (1 << 31) - 1, 1 - (1 << 31)):
        found, expected = reversed(case.run(X.double(), value))
        torch.testing.assert_close(found, expected)  # torch's kernels divide otherwise


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        (of_integer, 1 << 31),
        (lambda x, n: (x * (n // 3), x + n), 7),
        (lambda x, n: (x * (n * n * n), x + n), 7),  # may need more than 64 bits
    ],
)
def test_what_else_is_computed_of_an_integer_is_computed_in_front(function: Any, hint: int) -> None:
    case = Case(function, OnDevice(X.double()), hint)
    assert case.split is not None and case.split.front is not None
    for value in (7, 1, 12345):
        found, expected = reversed(case.run(X.double(), value))
        torch.testing.assert_close(found, expected)


def test_an_argument_within_32_bits_is_guarded() -> None:
    module = trace(of_integer, OnDevice(X), 7)
    argument = list(module.graph.nodes)[1].meta["val"]
    guards = argument.node.shape_env.guards
    before = len(guards)
    assert pipeline.in_parts(module, pipeline.ALL, generated=True) is not None
    assert len(guards) == before + 1 and str(1 << 31) in str(guards[-1].expr)


def test_an_integer_that_says_which_row_becomes_a_cell() -> None:
    def function(x: torch.Tensor, n: Any) -> Any:
        written = torch.select_scatter(x, x.select(0, 0) * 2, 0, n)
        again = torch.select_scatter(written, written.select(1, 1) + 1, -1, n + 1)
        return (
            again * 2,
            x.select(0, n) + 1,
            x.select(-1, n) * 3,
            torch.arange(8, device=x.device) <= n,
        )

    x = torch.randn(8, 8)
    case = Case(function, OnDevice(x), 2)
    assert case.split is not None and {each.name for each in case.split.applied} == {"count"}
    assert "select_scatter" not in case.after and case.after.count("index_put") == 2
    for value in range(7):
        assert_runs(case, x, value)


def test_a_row_of_another_type_is_left_alone() -> None:
    def function(x: torch.Tensor, n: Any) -> Any:
        return torch.select_scatter(x, x.select(0, 0).double(), 0, n), x + 1

    assert Case(function, OnDevice(torch.randn(8, 8)), 2).split is None


@pytest.mark.parametrize("compare", [operator.gt, operator.le, operator.eq, operator.ne])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int32], ids=str)
def test_what_is_compared_with_an_integer(dtype: torch.dtype, compare: Any) -> None:
    x = torch.arange(-4, 12).reshape(4, 4).to(dtype)
    case = Case(lambda x, n: (compare(x, n), x + 1), OnDevice(x), 7)
    assert case.split is not None and case.split.transparent
    for value in (7, 0, -3, 1 << 20):
        assert_runs(case, x, value)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: (x.new_zeros(n, 4),),
        lambda x, n: (x * n, x.new_zeros(n)),
        lambda x, n: (torch.add(x, x, alpha=n),),
        lambda x, n: ((x > 0) + n,),
        lambda x, n: ((x > 0) == n,),
        lambda x, n: (x.select(0, n - 9),),
        lambda x, n: (x.select(0, n - 5).unsqueeze(0) * 2,),
        lambda x, n: (x.sum() * n,),
        lambda x, n: (x * (n + 1), x.new_zeros(n)),
        lambda x, n: (x.int() * (n / 3),),
        lambda x, n: (x * (n**0.5),),
        lambda x, n: (x * (n / 3 + 1),),
    ],
)
def test_integers_that_shape_the_graph_or_its_types_are_left_alone(function: Any) -> None:
    assert Case(function, OnDevice(X), 7).split is None


# ------------------------------------------------------------------------------------------ fold


def test_a_constant_of_equal_elements_is_filled_in() -> None:
    case = Case(lambda x: (x + torch.full((4, 4), 2.5).to(DEVICE),), OnDevice(X))
    assert case.split is not None and case.split.transparent and case.split.is_body
    assert case.after == ["full", "add.Tensor"]
    assert_runs(case, X)


def test_others_are_attributes() -> None:
    case = Case(
        lambda x: (
            x + torch.ones(4, 4).tril().to(DEVICE) * torch.tensor([1.0, 2, 3, 4]).to(DEVICE),
        ),
        OnDevice(X),
    )
    assert case.split is not None
    assert case.split.transparent and "_folded_1" in dict(case.body.named_buffers())
    assert case.after == ["lift_fresh", "lift_fresh", "mul.Tensor", "add.Tensor"]
    assert_runs(case, X)


@pytest.mark.parametrize("value", [float("nan"), -0.0, float("-inf"), 3.0])
def test_a_constant_number_has_its_bits(value: float) -> None:
    case = Case(lambda x: (x * torch.tensor(value),), OnDevice(X))
    assert case.split is not None
    assert ("full" in case.after) == (value == value)
    assert_runs(case, X)


NUMBERS = [
    *(
        torch.tensor(value, dtype=dtype)
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64)
        for value in (-3.3, float("nan"), float("-inf"))
    ),
    *(torch.tensor(7, dtype=dtype) for dtype in (torch.uint8, torch.int16, torch.int64)),
    torch.tensor(True),
]


@pytest.mark.parametrize("value", NUMBERS, ids=str)
@pytest.mark.parametrize("shape", [(), (3, 1, 1)], ids=str)
def test_inductor_compiles_constants_of_every_type(
    value: torch.Tensor, shape: tuple[int, ...]
) -> None:
    given = value.expand(shape).clone()
    elements = given.tolist()

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        constant = torch.tensor(elements, dtype=value.dtype)
        return x / (constant.to(DEVICE) if shape else constant), x * 2

    case = Case(function, OnDevice(X))
    assert case.split is not None and case.split.transparent
    assert {each.name for each in case.split.applied} == {"fold"}
    assert_runs(case, X)
    with torch.no_grad():
        torch.testing.assert_close(list(by_inductor(case)([X])), [X / given, X * 2], equal_nan=True)


def test_random_values_are_no_constants() -> None:
    case = Case(lambda x: (x + torch.rand(4, 4).to(DEVICE),), OnDevice(X))
    assert case.split is not None and case.split.front is not None
    torch.manual_seed(1)
    (first,) = case.callable()([X])
    (second,) = case.callable()([X])
    assert not torch.equal(first, second)


# ----------------------------------------------------------------------------------------- fetch


def test_copies_to_the_host_move_behind() -> None:
    case = Case(lambda x: ((x + 1).cpu(), x.sum().cpu(), x * 2), OnDevice(X))
    assert case.split is not None and case.split.transparent
    assert case.split.fetched == {0, 1}
    assert case.after == ["add.Tensor", "sum", "mul.Tensor"]
    assert_runs(case, X)


def test_what_the_host_does_with_them_follows() -> None:
    def function(x: Any, t: Any) -> Any:
        y = (x + 1).cpu()
        return (x * 2, y * t, y)

    case = Case(function, OnDevice(X), torch.randn(4, 4))
    assert case.split is not None and case.split.behind is not None
    assert case.after == ["add.Tensor", "mul.Tensor"] and case.split.fetched == {2}
    assert_runs(case, X, torch.randn(4, 4))


def test_an_argument_on_the_host_may_be_written_behind() -> None:
    def function(x: Any, t: Any) -> Any:
        y = x + t.to(DEVICE)
        torch.ops.aten.copy_.default(t, x.cpu())
        return (y,)

    case = Case(function, OnDevice(X), torch.randn(4, 4))
    assert case.split is not None and case.split.behind is not None
    first, second = torch.ones(4, 4), torch.ones(4, 4)
    (expected,) = case._plain(X, first)
    (found,) = case.callable()([X, second])
    assert_bits([found, second], [expected, first])
    assert torch.equal(second, X)


def test_an_argument_that_the_body_writes_is_not_read_behind() -> None:
    """What is written comes back to the device, too, and so it is written in the body."""

    def function(x: Any, t: Any) -> Any:
        new = x.sum(0).cpu() + 1
        y = x * new.to(DEVICE)
        behind = x.max(0)[0].cpu() * t
        torch.ops.aten.copy_.default(t, new)
        return (y, behind, x.mean().cpu())

    case = Case(function, OnDevice(X), torch.randn(4))
    first, second = torch.ones(4), torch.ones(4)
    expected = case._plain(X, first)
    split = case.split
    assert split is not None and "copy_" in case.after
    found = case.callable()([X, second])
    assert_bits([*found, second], [*expected, first])


def test_a_result_that_the_graph_writes_later_is_kept_first() -> None:
    def function(x: Any) -> Any:
        y = x.t().cpu()
        torch.ops.aten.copy_.default(x, x + 1)
        return (y,)

    case = Case(function, OnDevice(X))
    assert case.split is not None and "clone" in case.after
    one, other = X.clone(), X.clone()
    assert_bits(list(case.callable()([one])), list(case._plain(other)))
    assert_bits([one], [other])


def test_a_copy_that_is_not_waited_for_is_torchs() -> None:
    case = Case(lambda x: (x.to("cpu", non_blocking=True), x + 1), OnDevice(X))
    assert case.split is not None and case.split.behind is not None
    assert not case.split.fetched and case.after == ["add.Tensor"]
    assert_runs(case, X)


def test_the_host_copies_without_torchs_operator_in_python() -> None:
    graph = torch.fx.Graph()
    given = graph.placeholder("x")
    put = torch.ops.prims.device_put.default
    moved = [graph.call_function(put, (given, "meta", *more)) for more in ((), (True,), (False,))]
    graph.output(tuple(moved))
    run = run_by_operators(torch.fx.GraphModule({}, graph))
    assert [(each.device.type, each.shape) for each in run([X])] == [("meta", X.shape)] * 3
    called = [(each.target, dict(each.kwargs)) for each in graph.nodes if each in moved]
    assert called == [("to", {}), ("to", {"non_blocking": True}), ("to", {"non_blocking": False})]


def test_a_copy_with_another_layout_is_torchs() -> None:
    case = Case(lambda x: (torch.ops.aten.slice.Tensor(x, 1, 0, 2).cpu(), x + 1), OnDevice(X))
    assert case.split is not None and case.split.behind is not None
    assert_runs(case, X)


def test_what_goes_back_to_the_device_stays() -> None:
    case = Case(lambda x: (x * (x.sum().cpu() + 1).to(DEVICE), x.max().cpu()), OnDevice(X))
    assert case.split is not None
    assert case.split.fetched == {1} and len(pipeline.remaining(case.body.graph)) == 3
    assert_runs(case, X)


def test_one_value_that_is_returned_on_both() -> None:
    def function(x: Any) -> Any:
        y = x + 1
        z = y.cpu()
        return (y, z, z)

    case = Case(function, OnDevice(X))
    assert case.split is not None and case.split.fetched == {1}
    assert_runs(case, X)


def test_an_argument_is_returned_as_it_is() -> None:
    t = torch.randn(4, 4)
    case = Case(lambda x, t: (x + t.to(DEVICE), t), OnDevice(X), t)
    assert case.split is not None
    assert case.callable()([X, t])[1] is t


# ------------------------------------------------------------------------------------- all of them


def test_a_graph_without_obstacles_is_left_alone() -> None:
    case = Case(lambda x: (torch.relu(x) * 2,), OnDevice(X))
    assert case.split is None


def test_each_pass_can_be_left_out() -> None:
    from transform_support import trace

    def function(x: Any, s: Any) -> Any:
        return (x * s + torch.full((4, 4), 2.0).to(DEVICE), x.cpu())

    everything = ["bring", "fetch", "fold"]
    for left_out in everything:
        module = trace(function, OnDevice(X), number())
        split = pipeline.in_parts(
            module, pipeline.ALL - {left_out}, generated=True, home=torch.device("cpu")
        )
        assert split is not None
        applied = sorted({each.name for each in split.applied})
        # A constant is as well brought in each call.
        expected = (
            ["bring", "fetch"] if left_out == "fold" else [e for e in everything if e != left_out]
        )
        assert applied == expected


def test_it_is_told_which_pass_has_taken_an_obstacle_away() -> None:
    def function(x: Any, y: Any) -> Any:
        three = torch.tensor([3.0, 4.0, 5.0, 6.0]).to(DEVICE)
        return x * three + y.to(DEVICE), x.sum().cpu()

    module = trace(function, OnDevice(torch.randn(4)), torch.randn(4))
    obstacles = {node.name for node in pipeline.remaining(module.graph)}
    split = pipeline.transform(module, generated=True, home=torch.device("cpu"))
    assert split is not None and set(split.cleared) == obstacles
    assert sorted(set(split.cleared.values())) == ["bring", "fetch", "fold"]


def test_a_pass_that_fails_leaves_the_graph_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(draft: Any) -> None:
        draft.graph.erase_node(list(draft.graph.nodes)[-1])
        raise RuntimeError("planted\nin this line")

    monkeypatch.setitem(cast(Any, pipeline.PASSES), "bring", broken)
    module = trace(lambda x, s: (x * s,), OnDevice(X), number())
    before, told = str(module.graph), list[str]()
    assert pipeline.transform(module, generated=True, tell=told.append) is None
    assert str(module.graph) == before and "in this line" in caplog.text
    assert told == ["a graph is compiled as it is, for a pass has failed: planted"]


def test_an_edition_is_of_all_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compiled code that a cache has from another edition is not taken for what this one does."""
    package, inner = tmp_path / "__init__.py", tmp_path / "transform" / "fold.py"
    inner.parent.mkdir()
    package.touch()
    monkeypatch.setattr(pygraph, "__file__", str(package))

    def edition(code: str) -> str:
        inner.write_text(code)
        return pipeline.edition.__wrapped__()

    assert edition("a = 1") == edition("a = 1") != edition("a = 2")


def test_tensors_that_are_not_plain_memory_are_left_alone() -> None:
    case = Case(lambda x, t: (x * t.conj().to(DEVICE),), OnDevice(X), torch.randn(4, 4) + 1j)
    assert case.split is None


def test_a_tensor_that_the_program_may_write_is_no_constant() -> None:
    """Tracing takes a tensor of the program's that is no argument as an attribute, too."""
    own = torch.randn(4, 4)
    case = Case(lambda x: (x + own.to(DEVICE),), OnDevice(X))
    assert case.split is None


def test_inductor_compiles_what_takes_the_places_of_integers() -> None:
    """It has no code for some operators that it takes apart where it traces by itself."""

    def function(x: torch.Tensor, places: torch.Tensor, n: Any) -> Any:
        written = torch.select_scatter(x, x.select(0, 0) * 2, 0, n)
        again = torch.select_scatter(written, written.select(1, n) + 1, -1, n + 1)
        return again * (places <= n), x.select(-1, n) * (2 * n - 3), x / (n + 1) - (-n), x > n

    x, places = torch.randn(8, 8), torch.arange(8)
    case = Case(function, OnDevice(x), OnDevice(places), 2)
    assert case.split is not None and case.split.transparent
    compiled = by_inductor(case)
    with torch.no_grad():
        for value in range(7):
            found, expected = compiled([x, places, torch.tensor(value)]), function(x, places, value)
            torch.testing.assert_close(list(found), list(expected))
