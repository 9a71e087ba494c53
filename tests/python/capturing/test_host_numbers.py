"""Numbers on the host among the arguments of compiled callables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from host_numbers_support import (
    HALF,
    Apart,
    compiled,
    host_apart,
    number,
    replays,
    scaled,
)
from places import Place, assert_bits
from training_support import Attending, Compile, agree, fresh, gradients, serves

import pygraph
from pygraph.capturing import numbers
from pygraph.capturing.attempts import Policy as Rung
from pygraph.capturing.device import CaptureFailed
from pygraph.capturing.hold import hold_buffers
from pygraph.decide import budget, signatures
from pygraph.decide.signatures import SignatureRules, Signatures
from pygraph.reporting import FALLBACK, GRAPHED, PARTLY, WARMING
from pygraph.runtime import compiled_graph, devices


@pytest.fixture
def place() -> Iterator[Place]:
    with fresh("twin") as here:
        yield here


@pytest.fixture
def apart(place: Place) -> Iterator[Apart]:
    with host_apart() as device:
        yield device


@pytest.fixture
def target(apart: Apart, monkeypatch: pytest.MonkeyPatch) -> Apart:
    """What torch.compile compiles for."""
    there = dataclasses.replace(devices.PLATFORMS["twin"], device=lambda index: apart)
    monkeypatch.setitem(devices.PLATFORMS, "twin", there)
    return apart


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The numbers that programs were made for."""
    seen: list[torch.Tensor] = []
    original = numbers.argument_spec

    def argument_spec(number: torch.Tensor) -> Any:
        seen.append(number)
        return original(number)

    monkeypatch.setattr(numbers, "argument_spec", argument_spec)
    return seen


# ----------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    "value",
    [
        HALF,
        number(float("nan")),
        torch.tensor(True),
        torch.tensor(7),
        torch.tensor(0.75, dtype=torch.bfloat16),
        torch.tensor(1 - 2j),
    ],
    ids=lambda value: str(value.dtype).removeprefix("torch."),
)
def test_a_number_that_recurs_is_served(apart: Apart, value: torch.Tensor) -> None:
    apart.dtypes = (value.dtype,)
    graph = compiled(apart)
    kept = []
    for _ in range(5):
        x = torch.randn(6)
        kept.append((x, graph.dispatcher([x, value.clone()])))
    for x, found in kept:
        assert_bits(found, scaled([x, value]))
    assert replays(graph) == 3
    assert (graph.report.state, graph.report.proof) == (GRAPHED, "bit-equal")


def test_numbers_are_told_apart_by_their_bits(apart: Apart) -> None:
    graph = compiled(apart)
    for value in (2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 0.0, 0.0, 0.0, -0.0, 2.0, 3.0, -0.0, -0.0):
        x = torch.randn(6)
        assert_bits(graph.dispatcher([x, number(value)]), scaled([x, number(value)]))
    assert replays(graph) == 6
    assert graph.report.programs == 4


def test_another_dtype_or_dimension_takes_the_slow_path(apart: Apart) -> None:
    apart.dtypes = (torch.float64, torch.int64)
    graph = compiled(apart)
    x = torch.randn(6)
    for _ in range(3):
        graph.dispatcher([x, number(0.5)])
    assert replays(graph) == 1
    same_bits = number(0.5).view(torch.int64)
    for other in (same_bits, number(0.5).view(1)):
        assert_bits(graph.dispatcher([x, other]), scaled([x, other]))
    assert replays(graph) == 1


def test_a_number_that_differs_from_call_to_call_gets_no_program(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "_REMEMBERED", 64)
    graph = compiled(apart, sizes=SignatureRules(programs=1, capture_at=1))
    x = torch.randn(6)
    graph.dispatcher([x, number(-1.0)])  # watched
    for value in range(100):
        assert_bits(graph.dispatcher([x, number(value)]), scaled([x, number(value)]))
        told = "argument 1 is a number on the host that differs from call to call"
        assert graph.report.reason == (told if value + 1 >= signatures._SIGHTS else None)
    assert (graph.report.state, graph.refresh_report().programs) == (WARMING, 0)
    assert len(graph._signatures._known) <= 65
    for _ in range(2):
        graph.dispatcher([x, number(99.0)])
    assert (graph.report.state, graph.report.reason) == (GRAPHED, None)
    assert replays(graph) == 1


def test_a_call_with_a_number_is_looked_at_each_time(apart: Apart, heard: list[Any]) -> None:
    """Signatures that differ in integers alone may rest (test_bypass.py)."""
    graph = compiled(apart, sizes=SignatureRules(capture_at=9))
    values = [1.0, 2.0, 1.0, 2.0, 2.0]
    for value in values:
        x = torch.randn(6)
        assert_bits(graph.dispatcher([x, number(value)]), scaled([x, number(value)]))
    graph.release()
    for value in values:
        graph.dispatcher([torch.randn(6), number(value)])
    assert heard == [[value] for value in 2 * values]


def test_a_number_waits_for_a_place_as_long_as_a_size(apart: Apart) -> None:
    graph = compiled(apart, sizes=SignatureRules(programs=1))
    x = torch.randn(6)
    for _ in range(4):
        graph.dispatcher([x, number(1.0)])
    budget.BUDGET.clear()
    for sight in range(1, 8):
        graph.dispatcher([x, number(2.0)])
        assert graph.refresh_report().evictions == (sight >= 5), sight


def test_the_number_that_differs_is_named(apart: Apart) -> None:
    def function(arguments: list[Any]) -> list[Any]:
        steady, x, restless = arguments
        return [x * steady + restless]

    graph = compiled(apart, function)
    for value in range(signatures._SIGHTS + 1):
        graph.dispatcher([number(value // 8), torch.randn(6), number(value)])
    assert "argument 2 is a number" in str(graph.report.reason)


def test_a_number_that_recurs_is_no_habit(apart: Apart) -> None:
    known = Signatures(SignatureRules(capture_at=9), apart)

    def sights(*values: int) -> str | None:
        for value in values:
            known.of([torch.randn(6), number(value)]).calls += 1
        return known.against

    few = signatures._SIGHTS - 1
    assert sights(*range(few)) is None
    assert sights(0, *range(few, 2 * few)) is None
    assert sights(2 * few) is not None
    assert sights(0) is None


def test_listed_sizes_are_about_integers(apart: Apart) -> None:
    """A listed size is captured at its first sight, but only with the first numbers that it comes
    with; a size that is not listed never, whatever its numbers."""

    def function(arguments: list[Any]) -> list[Any]:
        size, x, value = arguments
        return [x[:size] * value]

    graph = compiled(apart, function, sizes=SignatureRules(sizes=signatures.sizes_of([3, 4])))
    x = torch.randn(6)
    graph.dispatcher([4, x, number(3.0)])  # watched
    for size, value, programs in (
        (5, 3.0, 0),
        (5, 3.0, 0),
        (3, 5.0, 1),
        (3, 6.0, 1),
        (3, 6.0, 2),
        (3, 7.0, 2),
    ):
        assert_bits(graph.dispatcher([size, x, number(value)]), [x[:size] * number(value)])
        assert graph.refresh_report().programs == programs


def test_seeds_are_no_part_of_a_signature(apart: Apart) -> None:
    """Known as such from the second call on: the first one counts all the same."""
    apart.dtypes = (torch.int64,)
    known = Signatures(SignatureRules(), apart)
    first = known.of([torch.randn(3), torch.tensor(1), torch.tensor(5)])
    first.calls = 1
    assert known.of([torch.randn(3), torch.tensor(1), torch.tensor(6)]) is not first
    assert known.of([torch.randn(3), torch.tensor(1), torch.tensor(7)], {2}) is first
    assert known.of([torch.randn(3), torch.tensor(2), torch.tensor(7)], {2}) is not first


def test_seeds_that_a_call_may_have_on_the_host_are_not_looked_at(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart.dtypes = (torch.int64,)
    graph = compiled(apart, lambda arguments: [torch.relu(arguments[0])])
    monkeypatch.setattr(graph._member, "taken_on_host", lambda arguments: frozenset((1,)))
    for seed in range(2):
        graph.dispatcher([torch.randn(6), torch.tensor(seed)])
    assert graph.refresh_report().programs == 1


def test_an_operator_that_reads_a_seed_on_the_device_is_not_given_one_on_the_host() -> None:
    attention = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
    q = torch.randn(1, 1, 8, 8)
    seed = torch.tensor(3)
    with hold_buffers((), []), pytest.raises(CaptureFailed, match="seed on the host"):
        attention(q, q, q, q, None, q, q, seed, seed, 0.0, [True, True, True, False])


def added(arguments: list[Any]) -> list[Any]:
    x, value = arguments
    return [x + value.add_(1)]


def test_one_that_is_written_falls_back(apart: Apart) -> None:
    graph = compiled(apart, added)
    for calls in range(1, 5):
        x, value = torch.randn(6), number(2.0)
        assert_bits(graph.dispatcher([x, value]), [x + 3.0])
        assert value == 3.0, calls
    assert graph.report.state == FALLBACK
    assert graph.report.reason == "argument 1 is a number on the host that the graph writes"


@pytest.mark.parametrize("writing", [2, 3], ids=["real run", "capture"])
def test_one_that_only_one_run_writes_falls_back(apart: Apart, writing: int) -> None:
    calls: list[Any] = []

    def function(arguments: list[Any]) -> list[Any]:
        calls.append(arguments)
        return added(arguments) if len(calls) == writing else scaled(arguments)

    graph = compiled(apart, function)
    values = [number(2.0) for _ in range(3)]
    for value in values:
        graph.dispatcher([torch.randn(6), value])
    assert graph.report.reason == "argument 1 is a number on the host that the graph writes"
    assert values == [2.0, 3.0 if writing == 2 else 2.0, 2.0]


def test_one_that_is_declared_as_written_falls_back(apart: Apart) -> None:
    graph = compiled(apart, mutated=[1])
    for _ in range(3):
        graph.dispatcher([torch.randn(6), HALF])
    assert graph.report.state == FALLBACK
    assert "that the graph writes" in str(graph.report.reason)


@pytest.mark.parametrize(
    ("rung", "static"),
    [(Rung(copy_inputs=True), ()), (Rung(copy_inputs=True, fix_constants=True), (1,))],
    ids=["copied", "fixed"],
)
def test_every_rung_guards_the_value(
    apart: Apart, rung: Rung, static: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_graph, "ladder", lambda *_: (rung,))
    graph = compiled(apart, constants=static)
    for value in (2.0, 2.0, 2.0, 3.0, 2.0):
        x = torch.randn(6)
        assert_bits(graph.dispatcher([x, number(value)]), scaled([x, number(value)]))
    assert graph.report.state == PARTLY
    assert replays(graph) == 2


def test_one_with_kept_offsets(apart: Apart, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that holds for one call's storage offsets only asks none of numbers."""
    all_of_them = compiled_graph.attempts

    def with_offsets(*args: Any, **kwargs: Any) -> Any:
        return [each for each in all_of_them(*args, **kwargs) if each.keep_offsets]

    monkeypatch.setattr(compiled_graph, "attempts", with_offsets)
    graph = compiled(apart)
    behind = torch.full((4,), 0.5, dtype=torch.float64)[3]
    for value in (behind, behind, HALF):
        graph.dispatcher([torch.randn(6), value])
    assert replays(graph) == 1
    (known,) = graph._signatures.with_program
    assert not known.program.offsets_differ([torch.randn(6), HALF])


# ------------------------------------------------------------------------------- torch.compile


def test_attention_of_dynamic_length_trains(
    place: Place, target: Apart, guarded: list[torch.Tensor]
) -> None:
    """The forward makes the root of the length a number on the host and saves it."""
    target.dtypes = (torch.float64, torch.float32)

    def program(compile: Compile) -> list[Any]:
        torch.manual_seed(0)
        module = Attending()
        fast = compile(module, dynamic=True)
        found: list[Any] = []
        for length in (5, 5, 5, 7, 7, 7, 5, 7, 5):
            module.zero_grad()
            result = fast(torch.randint(0, 11, (3, length)))
            result.square().sum().backward()
            found += [result, *gradients(module)]
        return found

    serves(agree(place, program), "forward", "backward", replays=5)
    assert {value.item() for value in guarded} == {5**0.5, 7**0.5}


def test_a_float_that_recurs_is_served(
    place: Place, target: Apart, guarded: list[torch.Tensor]
) -> None:
    def program(compile: Compile) -> list[Any]:
        fast = compile(lambda x, scale: torch.relu(x) / scale, dynamic=True)
        with torch.no_grad():
            return [fast(torch.randn(6), scale) for scale in (1.5, 2.5, 2.5, 2.5, 2.5, 1.5)]

    serves(agree(place, program), "inference", replays=2)
    assert guarded[0] == 2.5


def test_a_maximum_that_differs_from_call_to_call_is_told(place: Place, target: Apart) -> None:
    fast = place.compile(lambda x: x / x.max().item(), dynamic=True)
    with torch.no_grad():
        for _ in range(signatures._SIGHTS + 4):
            x = torch.randn(6)
            assert_bits([fast(x)], [x / x.max().item()])
    *_, dividing = pygraph.report().graphs
    assert dividing.state == WARMING
    assert "is a number on the host that differs from call to call" in str(dividing.reason)
