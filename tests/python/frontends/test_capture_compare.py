"""pygraph.capture(debug="compare"): a replay and the callable side by side."""

from __future__ import annotations

import copy
import functools
import logging
import os
import random
import struct
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from callable_support import UNGRAPHED, Program, Unseen, agree, deterministic, state_of
from places import Place
from torch import nn
from torch.nn import functional as F

import pygraph
from pygraph.capturing.tensors import same_bits
from pygraph.frontends.callable import comparing
from pygraph.reporting import GRAPHED, GraphReport, Report
from pygraph.runtime.warn import warn_once

#: The call in which something happens that a tree of the call does not show.
WHEN = 8
CALLS = 12

KEPT = Unseen("kept", 2.0)
FILE = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the tests
DESCRIPTOR = FILE.fileno()


class Hidden:
    """Its attribute is nowhere that a tree looks."""

    def __getattr__(self, name: str) -> Any:
        if name != "scale":
            raise AttributeError(name)
        return KEPT.get()


HIDDEN = Hidden()


def in_library(value: float | None = None) -> float:
    if value is not None:
        KEPT.set(value)
    return float(KEPT.get())


def in_file(value: float | None = None) -> float:
    if value is not None:
        os.pwrite(DESCRIPTOR, struct.pack("d", value), 0)
    (found,) = struct.unpack("d", os.pread(DESCRIPTOR, 8, 0))
    return float(found)


def behind_getattr(value: float | None = None) -> float:
    if value is not None:
        KEPT.set(value)
    return float(HIDDEN.scale)


@pytest.fixture(autouse=True)
def nothing_said_before() -> None:
    in_library(2.0)
    in_file(2.0)
    warn_once.cache_clear()


def only() -> GraphReport:
    graphs = pygraph.report().graphs
    assert len(graphs) == 1 and graphs[0].state == GRAPHED, str(pygraph.report())
    return graphs[0]


def compare(place: Place, step: Callable[..., Any]) -> Any:
    return pygraph.capture(step, device=place.name, debug="compare")


def training(place: Place, dropout: float = 0.2, more: Callable[[], Any] = lambda: None) -> Program:
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(dropout), nn.Linear(16, 8)).to(place.torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        more()
        optimizer.zero_grad()
        out = model(x)
        loss = F.mse_loss(out, y)
        loss.backward()
        optimizer.step()
        return loss, out.detach()

    def inputs(number: int) -> Any:
        return place.randn(4, 8), place.randn(4, 8)

    return Program(step, lambda: state_of(model, optimizer), inputs)


def test_a_right_step_shows_no_difference(place: Place) -> None:
    report = agree(place, functools.partial(training, place), calls=20, debug="compare")
    assert report.compared == report.replays >= 20 - UNGRAPHED - 1
    assert report.differed == 0 and report.differences == []
    text = str(pygraph.report())
    assert f"  {report.compared} calls compared with the callable, 0 differ\n" in text
    assert GraphReport.from_dict(report.to_dict()) == report


@pytest.mark.parametrize("hidden", [in_library, in_file, behind_getattr])
def test_hidden_state_is_caught_where_it_shows(
    place: Place, hidden: Callable[..., float], caplog: pytest.LogCaptureFixture
) -> None:
    """And the caller has what the callable makes."""
    weight = nn.Parameter(torch.ones(4, device=place.torch))
    expected = weight.detach().clone()

    @functools.partial(compare, place)
    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            weight.add_(x * hidden())
        return x.sum()

    with caplog.at_level(logging.WARNING):
        for number in range(1, CALLS + 1):
            scale = 2.0 if number < WHEN else 3.0
            hidden(scale)
            x = place.randn(4)
            expected += x * scale
            assert torch.equal(step(x), x.sum())
            assert torch.equal(weight, expected)
    report = only()
    assert report.compared == CALLS - UNGRAPHED
    assert report.differed == CALLS - WHEN + 1
    (found,) = report.differences
    assert found.startswith(
        f"call {WHEN}: a replay is not what the callable does: "
        "test_hidden_state_is_caught_where_it_shows.<locals>.step's weight: "
        "float32 [4], 4 of 4 elements differ by up to "
    )
    text = f"{report.name}: {found}"
    assert text in pygraph.report().events
    assert [each.message for each in caplog.records] == [f"PyGraph: {text}"]
    assert found in str(pygraph.report())


def test_places_are_written_as_a_program_writes_them(place: Place) -> None:
    model = nn.Linear(4, 4).to(place.torch)

    class Training:
        def __init__(self) -> None:
            self.model = model

        def step(self, x: torch.Tensor) -> Any:
            self.model.zero_grad()
            loss = (self.model(x) * in_library()).sum()
            loss.backward()
            return {"loss": [loss.detach() * 0, x + in_file()]}

    captured = compare(place, Training().step)
    for number in range(1, 2 * CALLS):
        in_library(2.0 if number < WHEN else 3.0)
        in_file(2.0 if number < CALLS else 3.0)
        captured(place.randn(2, 4))
    gradient, result = only().differences
    assert f"call {WHEN}: " in gradient and "step.model.weight.grad: float32 [4, 4]" in gradient
    assert gradient.endswith("(and 1 more)")
    assert f"call {CALLS}: " in result and ": result['loss'][1]: float32 [2, 4]" in result


class Box:
    def __init__(self) -> None:
        self.count = 0
        self.cache: torch.Tensor | None = None
        self.also: torch.Tensor | None = None


def counts(box: Box, x: torch.Tensor) -> Any:
    box.count += 1


def rebinds(box: Box, x: torch.Tensor) -> Any:
    box.also = x + 1


def returns_more(box: Box, x: torch.Tensor) -> Any:
    return 5


def draws(box: Box, x: torch.Tensor) -> Any:
    torch.rand(2, device=x.device)


def draws_on_host(box: Box, x: torch.Tensor) -> Any:
    random.random()


@pytest.mark.parametrize(
    ("effect", "path", "what"),
    [
        (counts, "'s box.count", "the callable changes it, and a replay does not (it was 0 and is"),
        (rebinds, "'s box.also", "the callable puts something else there, and a replay does not"),
        (returns_more, "result[1]", "it is 5, and None in a replay"),
        (draws, "the random generator", "the callable and a replay draw not as many random"),
        (draws_on_host, "random numbers of the host", "the callable draws some"),
    ],
)
def test_what_a_replay_does_not_do_is_named(
    place: Place, effect: Callable[..., Any], path: str, what: str
) -> None:
    """All that it does is the caller's, once for each call."""
    box = Box()

    @functools.partial(compare, place)
    def step(x: torch.Tensor) -> Any:
        box.cache = x * 2
        assert box.count < 2 and box.also is not x
        return x + 1, effect(box, x) if in_library() > 2 else None

    for number in range(1, WHEN + 1):
        in_library(2.0 if number < WHEN else 3.0)
        x = place.randn(4)
        before = torch.get_rng_state() if place.name == "twin" else torch.cuda.get_rng_state()
        state, on_host = before.clone(), random.getstate()
        found, more = step(x)
        assert torch.equal(found, x + 1) and box.cache is not None
        assert torch.equal(box.cache, x * 2)
    assert box.count == (effect is counts)
    assert (box.also is not None) == (effect is rebinds)
    assert more == (5 if effect is returns_more else None)
    assert (random.getstate() != on_host) == (effect is draws_on_host)
    if effect is draws:
        now = torch.get_rng_state() if place.name == "twin" else torch.cuda.get_rng_state()
        (torch.set_rng_state if place.name == "twin" else torch.cuda.set_rng_state)(state)
        torch.rand(2, device=place.torch)
        once = torch.get_rng_state() if place.name == "twin" else torch.cuda.get_rng_state()
        assert torch.equal(now, once)
    report = only()
    assert report.differed == 1
    (note,) = report.differences
    assert note.startswith(f"call {WHEN}: a replay is not what the callable does: ")
    assert f"{path}: {what}" in note


class Corrupt:
    """In place of a graph's dispatcher: from some replay on, one element of a result is wrong."""

    def __init__(self, dispatcher: Any, spoil: Callable[[Any], torch.Tensor], skip: int) -> None:
        self._dispatcher, self._spoil, self._skip = dispatcher, spoil, skip

    def __call__(self, arguments: list[Any]) -> Any:
        kept = list(arguments)
        results = self._dispatcher(arguments)
        self._skip -= 1
        if self._skip < 0:
            self._spoil((kept, results)).view(-1)[0].add_(0.5)
        return results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatcher, name)


def written(found: Any) -> torch.Tensor:
    (state,) = (each for each in found[0] if each.shape == (3,))
    return state


@pytest.mark.parametrize(
    ("spoil", "wanted"),
    [
        (lambda found: found[1][0], "result: float32 [4], 1 of 4 elements differ by up to 0.5"),
        (written, "'s state: float32 [3], 1 of 3 elements differ by up to 0.5"),
    ],
    ids=["result", "argument"],
)
def test_a_wrong_graph_is_named(
    place: Place, spoil: Callable[[Any], torch.Tensor], wanted: str
) -> None:
    state = torch.zeros(3, device=place.torch)

    @functools.partial(compare, place)
    def step(x: torch.Tensor) -> torch.Tensor:
        state.add_(1)
        return x * 2

    for number in range(CALLS):
        if number == UNGRAPHED:
            graph = step._entries[-1].graph
            graph.dispatcher = Corrupt(graph.dispatcher, spoil, WHEN - UNGRAPHED - 1)
        x = place.randn(4)
        assert torch.equal(step(x), x * 2)
        assert torch.equal(state, torch.full_like(state, number + 1.0))
    report = only()
    assert (report.compared, report.differed) == (CALLS - UNGRAPHED, CALLS - WHEN + 1)
    (note,) = report.differences
    assert note.startswith(f"call {WHEN}: a replay is not") and note.endswith(wanted)


NOISE = Unseen("noise", random.Random(0))


@torch.library.custom_op("compare::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + 1e-3 * NOISE.get().random()


def varying(place: Place) -> tuple[Callable[..., torch.Tensor], torch.Tensor]:
    if place.name == "twin":
        return noisy, torch.zeros(4)
    index = torch.zeros(1 << 20, dtype=torch.int64, device="cuda")
    sums = torch.zeros(4, device="cuda")
    return lambda x: sums.index_add(0, index, x), torch.rand(1 << 20, device="cuda") / 1e3


def test_a_callable_that_is_not_deterministic_is_told_apart(place: Place) -> None:
    function, x = varying(place)
    state = torch.zeros(3, device=place.torch)
    last = torch.zeros(4, device=place.torch)
    box = Box()

    @functools.partial(compare, place)
    def step(x: torch.Tensor) -> torch.Tensor:
        state.add_(1)
        last.copy_(function(x))
        box.cache = last + 1
        return last * 1

    for number in range(1, CALLS):
        if number == WHEN:
            version = state._version
        assert torch.equal(step(x), last)  # of one and the same run
        assert box.cache is not None and torch.equal(box.cache, last + 1)
        assert torch.equal(state, torch.full_like(state, number))
        if number == WHEN:
            assert state._version == version + 1  # runs that only compare are not counted
    report = only()
    assert report.compared == CALLS - 1 - UNGRAPHED and report.differed == 0
    (note,) = report.differences
    assert ": the callable itself is not deterministic here: result: float32 [4], " in note
    assert "; from the same state it differs from itself by up to " in note


def test_a_difference_beyond_what_the_callable_varies_by(place: Place) -> None:
    function, x = varying(place)
    step = compare(place, lambda x: function(x) * 1)
    for number in range(CALLS):
        if number == UNGRAPHED:
            graph = step._entries[-1].graph
            graph.dispatcher = Corrupt(graph.dispatcher, lambda found: found[1][0], 0)
        step(x)
    report = only()
    assert report.differed == report.compared == CALLS - UNGRAPHED
    assert "a replay is not what the callable does: result: " in report.differences[-1]


def test_results_that_wait_for_a_backward(place: Place) -> None:
    """They are the callable's, and so is their backward."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)).to(place.torch)
    eager = copy.deepcopy(model)
    captured = compare(place, lambda x: model(x) * in_library())
    with deterministic(place):
        for number in range(1, CALLS + 1):
            in_library(2.0 if number < WHEN else 3.0)
            x = place.randn(4, 8)
            for each, serve in ((model, captured), (eager, lambda x: eager(x) * in_library())):
                each.zero_grad()
                serve(x).square().sum().backward()
            assert all(map(same_bits, state_of(model), state_of(eager)))
    report = only()
    assert (report.compared, report.differed) == (CALLS - UNGRAPHED, CALLS - WHEN + 1)
    assert f"call {WHEN}: a replay is not what the callable does: result: " in report.differences[0]


def test_an_error_is_the_callables(place: Place) -> None:
    state = torch.zeros(3, device=place.torch)

    @functools.partial(compare, place)
    def step(x: torch.Tensor) -> torch.Tensor:
        state.add_(1)
        if in_library() > 2:
            raise ArithmeticError("too much")
        return state + x

    for number in range(1, CALLS):
        in_library(3.0 if number == WHEN else 2.0)
        if number == WHEN:
            with pytest.raises(ArithmeticError, match="too much"):
                step(place.randn(3))
        else:
            step(place.randn(3))
        assert torch.equal(state, torch.full_like(state, number))
    assert only().compared == CALLS - 1 - UNGRAPHED - 1
    assert only().differed == 0


def test_notes_are_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "_MOST_NOTES", 2)
    states = [torch.zeros(2, device=place.torch) for _ in range(6)]
    chosen = Unseen("chosen", 0)

    @functools.partial(compare, place)
    def step(x: torch.Tensor) -> torch.Tensor:
        for number, state in enumerate(states):
            state.add_(x if number == chosen.get() else 0)
        return x + 1

    for number in range(3 + len(states)):
        chosen.set(max(0, number - 3))
        step(place.randn(2))
    assert only().differed == len(states) - 1
    assert len(only().differences) == 2


def test_without_memory_for_copies_the_callable_runs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = compare(place, lambda x: x * 2)
    for number in range(2 * CALLS):
        if number == UNGRAPHED:
            monkeypatch.setattr(comparing.reference, "shortage", lambda *_: "too little")
        x = place.randn(4)
        assert torch.equal(step(x), x * 2)
    assert only().compared == 0
    assert any("calls are not compared: not enough memory" in e for e in pygraph.report().events)


def test_calls_without_a_graph_are_counted_with_the_others(place: Place) -> None:
    @functools.partial(compare, place)
    def step(x: torch.Tensor, reads: bool) -> torch.Tensor:
        return x * (1 if reads and x.sum().item() > 100 else in_library())

    for number in range(1, 4 * CALLS):
        in_library(2.0 if number < 3 * CALLS else 3.0)
        x = place.randn(4)
        assert torch.equal(step(x, reads=bool(number % 2)), x * in_library())
    differences = [note for each in pygraph.report().graphs for note in each.differences]
    assert [note.partition(":")[0] for note in differences] == [f"call {3 * CALLS}"]


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(ValueError, match="debug is 'comapre'; it must be one of 'off', 'compare'"):
        pygraph.capture(lambda x: x, device="twin", debug="comapre")


def test_a_copy_compares_as_well() -> None:
    copied = copy.copy(pygraph.capture(Box.__init__, device="twin", debug="compare"))
    assert copied._comparing is not None


def test_reports_are_stored_with_it() -> None:
    graph = GraphReport("graph 0 (capture of f)", GRAPHED, compared=3, differed=1)
    graph.differences.append("call 7: something")
    text = str(Report(graphs=[graph]))
    assert "\n  3 calls compared with the callable, 1 differ\n  call 7: something" in text
