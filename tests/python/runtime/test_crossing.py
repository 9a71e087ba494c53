"""Arguments that callers have on the host, results that they get there, in graphs and without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from places import Place, assert_bits

from pygraph import _engine
from pygraph.frontends.compile.parts import Transformed
from pygraph.runtime.crossing import Crossing
from pygraph.runtime.partition import Partition
from pygraph.twin import faults

Formula, Step, Operation = _engine.Formula, _engine.Formula.Step, _engine.Formula.Operation
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


def host(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes)


def scaled(arguments: list[Any]) -> list[Any]:
    """By a cell and a tensor that come from the host."""
    x, cell, rows = arguments
    made = torch.relu(x * cell.to(x.dtype) + rows)
    return [made, made.sum(), made.t()]


CROSSING = Crossing(staged=frozenset((1, 2)), fetched=frozenset((1, 2)))


def expected(x: torch.Tensor, cell: torch.Tensor, rows: torch.Tensor) -> list[Any]:
    return scaled([x, cell.to(x.device), rows.to(x.device)])


def test_values_that_differ_in_each_call_have_one_program(place: Place) -> None:
    graph = place.graphed(scaled, crossing=CROSSING)
    for n in range(12):
        x, cell, rows = place.randn(5, 3), torch.tensor(0.5 + n, dtype=torch.float64), host(5, 3)
        found = graph.dispatcher([x, cell, rows])
        assert_bits(
            found, [each.cpu() if i else each for i, each in enumerate(expected(x, cell, rows))]
        )
        assert [each.device.type for each in found[1:]] == ["cpu", "cpu"]
        assert found[2].stride() == (1, 3) and not found[2].is_pinned()
    report = graph.refresh_report()
    assert (report.state, report.programs, report.replays) == ("graphed", 1, 10)
    assert report.bytes_staged == 10 * (8 + 5 * 3 * 4)
    assert report.bytes_fetched == 10 * (4 + 5 * 3 * 4)
    assert report.bytes_copied == 0


def test_a_tensor_may_be_written_and_freed_as_soon_as_the_call_returns(place: Place) -> None:
    graph = place.graphed(lambda a: [a[0] + a[1]], crossing=Crossing(staged=frozenset((1,))))
    kept = []
    for _ in range(40):
        x, rows = place.randn(2000), host(2000)
        wanted = x + rows.to(x.device)
        kept.append((graph.dispatcher([x, rows])[0], wanted))
        rows.fill_(float("nan"))
        del rows
    for found, wanted in kept:
        assert_bits([found], [wanted])
    assert graph.refresh_report().replays == 38


@pytest.mark.parametrize("count", [1 << 18, (1 << 18) + 1, 1_000_000])
def test_what_is_larger_than_a_slot_comes_in_pieces(place: Place, count: int) -> None:
    graph = place.graphed(
        lambda a: [a[0] + a[1] * a[2]],
        crossing=Crossing(staged=frozenset((1, 2)), fetched=frozenset((0,))),
    )
    for n in range(5):
        x, rows, cell = place.randn(count), host(count), torch.tensor(float(n))
        wanted = x + rows.to(x.device) * cell.to(x.device)
        assert_bits(graph.dispatcher([x, rows, cell]), [wanted.cpu()])
    assert graph.refresh_report().replays == 3


def test_nan_and_infinity_are_values_like_others(place: Place) -> None:
    graph = place.graphed(lambda a: [a[0] * a[1]], crossing=Crossing(staged=frozenset((1,))))
    x = place.randn(7)
    for value in (1.0, 2.0, float("nan"), float("inf"), -0.0, 5e-324):
        cell = torch.tensor(value)
        assert_bits(graph.dispatcher([x, cell]), [x * cell.to(x.device)])
    assert graph.refresh_report().replays == 4


def test_a_call_computes_what_it_brings(place: Place) -> None:
    """Of two numbers: (1 - s) / t, and t."""
    steps = [
        Step(Operation.CONSTANT, constant=1.0),
        Step(Operation.ARGUMENT, argument=1),
        Step(Operation.SUBTRACT),
        Step(Operation.ARGUMENT, argument=2),
        Step(Operation.DIVIDE),
    ]
    formulas = [Formula(steps), Formula([Step(Operation.ARGUMENT, argument=2)])]
    crossing = Crossing(staged=frozenset((1, 2)), computed={1: formulas})
    graph = place.graphed(lambda a: [a[0] * a[1][0] + a[1][1] * a[2]], crossing=crossing)
    for n in range(12):
        x, s, t = place.randn(7), 0.1 * n, 3.0 + n
        of_fp64 = [torch.tensor(each, dtype=torch.float64) for each in (s, t)]
        found = graph.dispatcher([x, *of_fp64])
        assert_bits(found, [x * ((1 - s) / t) + t * t])
    assert graph.refresh_report().replays == 10
    # What a formula does not take is taken by the callable.
    x = place.randn(7)
    assert_bits(graph.dispatcher([x, torch.tensor(0.5), of_fp64[1]]), [x * (0.5 / t) + t * t])
    assert_bits(graph.dispatcher([x, of_fp64[1], torch.tensor(0.5)]), [x * ((1 - t) / 0.5) + 0.25])
    assert graph.refresh_report().replays == 10


@pytest.mark.parametrize(
    "other",
    [torch.tensor(2.0), torch.tensor([2.0], dtype=torch.float64), 2.0, torch.tensor(2)],
    ids=["fp32", "a vector", "a float", "an integer"],
)
def test_what_a_call_computes_with_is_a_number_in_fp64(place: Place, other: Any) -> None:
    """Its bytes are read as such: another argument is the callable's."""
    doubled = [Step(Operation.ARGUMENT, argument=1)] * 2 + [Step(Operation.ADD)]
    crossing = Crossing(staged=frozenset((1,)), computed={1: [Formula(doubled)]})
    graph = place.graphed(lambda a: [a[0] * a[1][0]], crossing=crossing)
    x = place.randn(7)
    for n in range(5):
        given = torch.tensor(2.0 + n, dtype=torch.float64)
        assert_bits(graph.dispatcher([x, given]), [x * (2 * float(given))])
    replays = graph.refresh_report().replays
    assert replays == 3
    assert_bits(graph.dispatcher([x, other]), [x * 4.0])
    assert graph.refresh_report().replays == replays


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "leaves 0 values"),
        ([Step(Operation.ADD)], "step 0 of a formula takes 2 values, and finds 0"),
        (
            [Step(Operation.CONSTANT), Step(Operation.POWER)],
            "step 1 of a formula takes 2 values, and finds 1",
        ),
        ([Step(Operation.SQUARE_ROOT)], "step 0 of a formula takes 1 values, and finds 0"),
        ([Step(Operation.CONSTANT)] * 2, "leaves 2 values"),
        ([Step(Operation.CONSTANT)] * 17, "step 16 of a formula leaves 17 values; 16 are the most"),
    ],
)
def test_a_formula_that_is_none_is_refused(steps: list[Formula.Step], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Formula(steps)


def test_a_compiled_graph_has_other_numbers_for_arguments() -> None:
    """A partition takes some of the graph's arguments, in an order of its own."""
    pair = [Step(Operation.ARGUMENT, argument=each) for each in (1, 2)]
    formulas = {1: [Formula([*pair, Step(Operation.DIVIDE)])]}
    split = SimpleNamespace(staged=frozenset((1, 2)), fetched=frozenset(), computed=formulas)
    for inputs, found in (((2, 0, 1), {2: (2, 0)}), ((0, 1), None), ((0, 2), {})):
        made = Transformed(cast(Any, split))
        crossing = made.crossing(lambda arguments: arguments, Partition(inputs, (0,)))
        assert made.crosses == (found is not None)
        taken = {
            index: tuple(step.argument for step in formula.steps[:2])
            for index, (formula,) in crossing.computed.items()
        }
        assert taken == (found or {})
        assert [each.arguments for (each,) in crossing.computed.values()] == [{0, 2}] * len(taken)


def test_results_are_kept_apart(place: Place) -> None:
    """A result on the host is a tensor of its own, whatever is called afterwards."""
    graph = place.graphed(
        lambda a: [a[0] + 1, a[0] * 2], crossing=Crossing(fetched=frozenset((0, 1)))
    )
    kept = []
    for _ in range(20):
        x = place.randn(300)
        kept.append((graph.dispatcher([x]), [(x + 1).cpu(), (x * 2).cpu()]))
    for found, wanted in kept:
        assert_bits(found, wanted)
    assert graph.refresh_report().replays == 18


def test_an_argument_that_is_returned_and_fetched(place: Place) -> None:
    graph = place.graphed(lambda a: [a[0], a[0] + 1], crossing=Crossing(fetched=frozenset((0,))))
    for _ in range(5):
        x = place.randn(4)
        found = graph.dispatcher([x])
        assert found[0] is not x
        assert_bits(found, [x.cpu(), x + 1])


def test_nothing_is_bypassed(place: Place) -> None:
    """The callable would get its arguments where they are."""
    graph = place.graphed(lambda a: [a[0] + a[1]], crossing=Crossing(staged=frozenset((1,))))
    graph.release()
    for _ in range(4):
        x, rows = place.randn(9), host(9)
        assert_bits(graph.dispatcher([x, rows]), [x + rows.to(x.device)])


def test_an_integer_of_pythons(place: Place) -> None:
    graph = place.graphed(lambda a: [a[0] * a[1]], crossing=Crossing(staged=frozenset((1,))))
    x = place.randn(5)
    for value in (2, 3, -(1 << 62), 0, 7, 1 << 40):
        assert_bits(graph.dispatcher([x, value]), [x * torch.tensor(value).to(x.device)])
    report = graph.refresh_report()
    assert (report.programs, report.replays, report.bytes_staged) == (1, 4, 4 * 8)
    with pytest.raises((OverflowError, RuntimeError, ValueError)):
        graph.dispatcher([x, 1 << 64])


@pytest.mark.parametrize("crossing", [CROSSING, Crossing(fetched=frozenset((1, 2)))])
def test_without_pinned_memory_the_callable_serves_a_call(place: Place, crossing: Crossing) -> None:
    if place.name != "twin":
        pytest.skip("the twin alone has faults")
    graph = place.graphed(scaled, crossing=crossing)

    def call() -> int:
        x, cell, rows = place.randn(5, 3), torch.tensor(1.5), host(5, 3)
        assert_bits(graph.dispatcher([x, cell, rows]), expected(x, cell, rows))
        return graph.refresh_report().replays

    assert [call() for _ in range(4)] == [0, 0, 1, 2]
    _engine.release_staging()
    with faults.failing_call("cuMemAllocHost", OUT_OF_MEMORY, lasting=True):
        before = call()
    assert call() == before + 1
    assert graph.report.state == "graphed"


def test_slots_are_given_back_and_taken_anew(place: Place) -> None:
    graph = place.graphed(scaled, crossing=CROSSING)
    for n in range(8):
        x, cell, rows = place.randn(5, 3), torch.tensor(1.5 + n), host(5, 3)
        found = graph.dispatcher([x, cell, rows])
        assert_bits(
            found, [each.cpu() if i else each for i, each in enumerate(expected(x, cell, rows))]
        )
        if n % 3 == 2:
            _engine.release_staging()
    assert graph.refresh_report().replays == 6
