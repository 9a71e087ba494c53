"""Programs in lanes: which are tried, clocked, chosen and proven, and what stays if one fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from places import only_graph
from torch import nn

import pygraph
from pygraph import _engine
from pygraph.capturing import proof, spreading
from pygraph.capturing.lanes import LaneOptions, LaneTimes
from pygraph.capturing.twin import Twin
from pygraph.decide import lanes


class Branches(nn.Module):
    """So many branches of two layers, side by side."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(count)
        )
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return torch.cat([branch(x) for branch in self.branches], 1)


@pytest.fixture(autouse=True)
def fresh(fresh_dynamo: None) -> Iterator[None]:
    pygraph.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def with_clocks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[LaneTimes]]]:
    """Has lanes clocked on the twin, whose clock says nothing; `choose` chooses."""

    def take(choose: Callable[[Sequence[LaneTimes]], int]) -> list[list[LaneTimes]]:
        seen: list[list[LaneTimes]] = []

        def noted(clocked: Sequence[LaneTimes]) -> int:
            seen.append(list(clocked))
            return choose(clocked)

        monkeypatch.setattr(spreading, "clocks", lambda device: True)
        monkeypatch.setattr(spreading, "_node_times", lambda *_: [])
        monkeypatch.setattr(lanes, "choose", noted)
        return seen

    return take


def expect_right(model: nn.Module, parallel: Any = "auto", calls: int = 5) -> None:
    """Calls are right, and the state that they move on is where it would be."""
    options = {"device": "twin", "select": "always", "parallel": parallel}
    expected = Branches(len(model.branches))
    expected.load_state_dict(model.state_dict())
    made = torch.compile(model, backend="pygraph", options=options)
    for _ in range(calls):
        x = torch.randn(3, 8)
        assert torch.equal(made(x), expected(x))
    assert torch.equal(model.calls, expected.calls)


@pytest.mark.parametrize(("chosen", "count"), [(0, 1), (1, 2), (2, 4)])
def test_what_clocks_choose_serves(with_clocks: Any, chosen: int, count: int) -> None:
    seen = with_clocks(lambda clocked: chosen)
    expect_right(Branches())
    (clocked,) = seen
    # Of eight, four have branches, and one what counts calls.
    assert [each.lanes for each in clocked] == [1, 2, 4, 5]
    assert {len(each.latency) for each in clocked} == {12}
    assert all(us > 0 for each in clocked for us in (*each.latency, *each.pipelined))
    report = only_graph()
    assert report.lanes == count and report.replays > 0
    (found,) = [each for each in report.selection if each.what == "lanes"]
    assert found.graph == (count > 1) and found.pairs == 12
    text = str(pygraph.report())
    assert "1 lane " in text and "2 lanes " in text and "4 lanes " in text
    assert ("nodes run side by side" in text) == (count > 1)


def test_a_number_that_is_asked_for_is_not_clocked(with_clocks: Any) -> None:
    seen = with_clocks(lambda clocked: 0)
    expect_right(Branches(), parallel=2)
    assert seen == [] and only_graph().lanes == 2


def test_a_chain_is_not_clocked(with_clocks: Any) -> None:
    seen = with_clocks(lambda clocked: 1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    options = {"device": "twin", "select": "always", "parallel": "auto"}
    made = torch.compile(model, backend="pygraph", options=options)
    for _ in range(5):
        x = torch.randn(3, 8)
        assert torch.equal(made(x), model(x))
    assert seen == [] and only_graph().lanes == 1


class Places(nn.Module):
    """Each call writes the next of eight places: a ninth would raise."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("at", torch.zeros((), dtype=torch.long))
        self.register_buffer("seen", torch.zeros(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.index_copy_(0, self.at.view(1), x.view(1, -1))
        self.at.add_(1)
        return torch.stack([(self.seen * n).sum(0).cos() for n in range(4)])


def test_a_state_that_moves_on_is_set_back_before_each_run(with_clocks: Any) -> None:
    with_clocks(lambda clocked: 1)
    model, expected = Places(), Places()
    options = {"device": "twin", "select": "always", "parallel": "auto"}
    made = torch.compile(model, backend="pygraph", options=options)
    for _ in range(8):
        x = torch.randn(8)
        assert torch.equal(made(x), expected(x))
    assert torch.equal(model.seen, expected.seen) and int(model.at) == 8
    assert only_graph().lanes == 2


@pytest.mark.parametrize("number", [0, 1])
def test_the_order_of_the_capture_serves_where_a_proof_fails(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first proof in lanes, or that of the same with delays."""
    real, wide = proof.prove, [0]

    def prove(program: Any, *given: Any, **named: Any) -> proof.Verdict:
        verdict = real(program, *given, **named)
        wide[0] += 1
        return proof.failed("planted") if wide[0] == 2 + number else verdict

    monkeypatch.setattr(proof, "prove", prove)
    monkeypatch.setattr(Twin, "delays", (1,))
    monkeypatch.setattr(_engine.Linked, "delayed", lambda self, seed: self.clone(), raising=True)
    expect_right(Branches())
    report = only_graph()
    assert report.lanes == 1 and report.state == "graphed" and report.replays > 0
    assert wide[0] == 2 + number


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError, RuntimeError])
def test_the_order_of_the_capture_serves_where_something_goes_wrong(
    error: type[Exception], with_clocks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: Any) -> Any:
        raise error("planted")

    with_clocks(lambda clocked: 1)
    monkeypatch.setattr(spreading, "_in_a_row", short)
    expect_right(Branches())
    report = only_graph()
    assert report.lanes == 1 and report.state == "graphed" and report.replays > 0
    (found,) = [each for each in report.selection if each.what == "lanes"]
    assert not found.graph and "planted" in str(found)


def test_lanes_that_save_nothing_as_predicted_are_not_tried() -> None:
    class Chain:
        def spread(self, number: int, node_us: Sequence[float], memory: float) -> Any:
            assert memory == 1.5
            made = {2: (2, 70.0), 4: (3, 99.5), 8: (3, 99.5)}[number]
            return type("Linked", (), {"lanes": made[0], "predicted_us": made[1]})

    def tried(choose: Any) -> list[int]:
        asked = LaneOptions((2, 4, 8), choose, memory=1.5)
        chain: Any = Chain()
        return [each.lanes for each in spreading._candidates(chain, asked, [50.0, 50.0])]

    assert tried(choose=lambda clocked: 0) == [2]
    assert tried(choose=None) == [2, 3]
