"""Nodes that run side by side: how many lanes there are, and what does not become one."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from places import only_graph
from torch import nn

import pygraph
from pygraph import _engine
from pygraph.capturing import observing
from pygraph.frontends.compile import kernels
from pygraph.operators import accesses


class Branches(nn.Module):
    """Four branches of two layers, side by side."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.Dropout(dropout), nn.ReLU(), nn.Linear(16, 8))
            for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


@pytest.fixture(autouse=True)
def fresh(fresh_dynamo: None) -> Iterator[None]:
    pygraph.reset()
    with torch.no_grad():
        yield


def compiled(model: Any, parallel: Any) -> Any:
    options = {"device": "twin", "select": "always", "parallel": parallel}
    return torch.compile(model, backend="pygraph", options=options)


def expect_right(model: Any, made: Any) -> None:
    for _ in range(5):
        x = torch.randn(3, 8)
        assert torch.equal(made(x), model(x))


@pytest.mark.parametrize(
    ("parallel", "lanes"), [("off", 1), (1, 1), (2, 2), (4, 4), (16, 4), ("auto", 4)]
)
def test_branches_run_side_by_side(parallel: Any, lanes: int) -> None:
    model = Branches().eval()
    expect_right(model, compiled(model, parallel))
    report = only_graph()
    assert report.lanes == lanes and report.proof_passed
    assert f"in {lanes} lanes" in str(pygraph.report()) or lanes == 1


def test_runs_look_on_with_as_much_memory_as_a_call_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them together at what one run could look at."""
    monkeypatch.setattr(observing, "_LITTLE", 1)
    real = observing._look
    looks: list[_engine.Observer] = []

    def look(observer: _engine.Observer, chain: _engine.Linked, reference: Any, *given: Any) -> Any:
        assert observer.bytes <= observing._most(chain, reference) < 1 << 16
        looks.append(observer)
        whole = len(_engine.Observer(chain, 0, 1 << 40).pairs)
        pairs = sum(len(each.pairs) for each in looks)
        assert pairs == whole > 0 if observer.next is None else pairs <= whole
        return real(observer, chain, reference, *given)

    monkeypatch.setattr(observing, "_look", look)
    model = Branches().eval()
    expect_right(model, compiled(model, 4))
    assert only_graph().lanes == 4 and len(looks) > 1 and looks[-1].next is None


@pytest.mark.parametrize("front", [0, 2])
@pytest.mark.parametrize("begin", [0, 2, 4])
def test_memory_that_begins_anywhere_has_a_sum(front: int, begin: int) -> None:
    memory = torch.frombuffer(bytearray(64), dtype=torch.uint8, offset=front)[begin : begin + 40]
    before = observing._sums([memory])
    memory[-1] = 7
    assert not torch.equal(observing._sums([memory]), before)


def test_a_chain_stays_one() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
    expect_right(model, compiled(model, 8))
    assert only_graph().lanes == 1


def test_an_order_that_is_missing_is_found_by_the_proof(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody writes, it is said, so nothing waits; in another order the result is another."""
    monkeypatch.setattr(accesses, "writing", lambda tensor, *_: accesses.reading(tensor))
    monkeypatch.setattr(observing, "fault", lambda *_: None)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(8))).eval()
    expect_right(model, compiled(model, 8))
    report = only_graph()
    assert report.state == "graphed" and report.lanes == 1
    assert report.replays > 0
    assert "in 8 lanes a proof failed" in caplog.text


@pytest.mark.parametrize(("seldom", "most"), [(1, 1 << 30), (3, 1 << 30), (3, 1)])
def test_what_nobody_has_said_to_be_written_is_found(
    seldom: int, most: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of all operators, or of each third, it is said that they write nothing. `most`: bytes that
    one run copies."""
    monkeypatch.setattr(observing, "_most", lambda *_: most)
    real, calls = accesses.writing, [0]

    def sometimes(tensor: torch.Tensor, *whole: bool) -> Any:
        calls[0] += 1
        return accesses.reading(tensor) if calls[0] % seldom == 0 else real(tensor, *whole)

    monkeypatch.setattr(accesses, "writing", sometimes)
    model = Branches().eval()
    expect_right(model, compiled(model, 4))
    report = only_graph()
    assert report.state == "graphed" and report.lanes == 1
    assert "writes memory that it is not said to write" in caplog.text
    assert "nodes run in a row: " in str(pygraph.report())


class Writing(nn.Module):
    """Branches that write columns of a buffer, and an argument, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(3, 8))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.kept[:, :4] += x[:, :4].cos()
        self.kept[:, 4:].copy_(x[:, 4:].sin())
        y.add_(x)
        return self.kept + y


def test_what_is_written_in_place_is_seen_to_be_that() -> None:
    model, expected = Writing(), Writing()
    made = compiled(model, 4)
    for _ in range(5):
        x, y = torch.randn(3, 8), torch.randn(3, 8)
        z = y.clone()
        assert torch.equal(made(x, y), expected(x, z))
        assert torch.equal(y, z)
    assert torch.equal(model.kept, expected.kept)
    assert only_graph().lanes > 1


def test_an_argument_that_is_written_and_not_said_to_be_is_found(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As far as its region goes: the argument is seen to be written by its proof already."""
    real = accesses.known.written
    monkeypatch.setattr(
        accesses.known, "written", lambda target, *given: real(target, *given) and []
    )
    monkeypatch.setattr(accesses, "writing", lambda tensor, *_: accesses.reading(tensor))
    model = Writing()
    made = compiled(model, 4)
    for _ in range(5):
        x, y = torch.randn(3, 8), torch.randn(3, 8)
        z = y + x
        made(x, y)
        assert torch.equal(y, z)
    assert only_graph().lanes == 1
    assert "not said to write" in caplog.text


def test_a_parameter_that_is_written_is_found(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What nobody is said to write of the caller's is compared by sums: the run that is observed
    changes one element here."""
    model, real = Branches().eval(), observing.run

    def run(program: Any, reference: Any) -> None:
        real(program, reference)
        model.branches[2][3].bias[1] += 1

    monkeypatch.setattr(observing, "run", run)
    made = compiled(model, 4)
    for _ in range(3):  # the graph is linked, and the parameter another one from then on
        made(torch.randn(3, 8))
    expect_right(model, made)
    assert only_graph().lanes == 1
    assert "a node writes an argument that it is not said to write" in caplog.text


def test_random_numbers_are_drawn_in_order() -> None:
    model = Branches(dropout=0.5)
    made = compiled(model, 4)
    for seed in range(5):
        x = torch.randn(3, 8)
        torch.manual_seed(seed)
        found = made(x)
        torch.manual_seed(seed)
        assert torch.equal(found, model(x))
    assert only_graph().lanes > 1


@pytest.mark.parametrize("value", ["on", 0, 2.0, True])
def test_what_is_no_number_of_lanes_is_said(value: Any) -> None:
    with pytest.raises(
        Exception, match=r"option 'parallel' is .*; it must be 'off', 'auto', or an integer"
    ):
        compiled(Branches(), value)(torch.randn(3, 8))


@pytest.mark.parametrize("value", ["much", 0.5, float("inf"), True])
def test_what_is_no_bound_of_memory_is_said(value: Any) -> None:
    options = {"device": "twin", "parallel": 2, "parallel_memory": value}
    with pytest.raises(Exception, match=r"option 'parallel_memory' is .* a number of 1 or more"):
        torch.compile(Branches(), backend="pygraph", options=options)(torch.randn(3, 8))


class Wide(nn.Module):
    """Branches whose first results are large, and needed one after the other in the order of the
    capture."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [(x.repeat(1 << 15) * n).sum().sin().cos() for n in range(6)]
        return torch.stack(parts)


def test_memory_bounds_lanes() -> None:
    found = {}
    for memory in (1.0, 4.0):
        torch._dynamo.reset()
        pygraph.reset()
        options = {"device": "twin", "select": "always", "parallel": 4, "parallel_memory": memory}
        made = torch.compile(Wide(), backend="pygraph", options=options)
        for _ in range(4):
            x = torch.randn(64)
            assert torch.equal(made(x), Wide()(x))
        report = only_graph()
        found[memory] = report.arena_bytes
    assert found[4.0] > found[1.0]


def places(touches: list[_engine.Touch]) -> list[tuple[int, bool]]:
    return [(each.address, each.writes) for each in touches]


def kernel(custom: bool = False, mutated: tuple[str, ...] = ()) -> Any:
    kinds = {"in_ptr0": "*fp32", "in_ptr1": "*fp32", "XBLOCK": "constexpr", "out_ptr0": "*fp32"}
    kinds |= {"ws_ptr": "*u8", "xnumel": "i32"}
    return SimpleNamespace(
        custom_kernel=custom, triton_meta={"signature": kinds}, mutated_arg_names=mutated
    )


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """What is said to be written: where, and whether all of its memory is."""
    real, found = accesses.writing, []

    def noted(tensor: torch.Tensor, whole: bool = False) -> Any:
        found.append((tensor.data_ptr(), whole))
        return real(tensor, whole)

    monkeypatch.setattr(accesses, "writing", noted)
    return found


def test_inductors_kernels_read_and_write_by_their_arguments_names() -> None:
    a, b, out, workspace = (torch.ones(4) for _ in range(4))
    given = (a, b, out[1:], workspace, 3)
    found = kernels.touches_of(kernel(), given)
    assert places(found) == [
        (a.data_ptr(), False),
        (b.data_ptr(), False),
        (out.data_ptr() + 4, True),
    ]
    found = kernels.touches_of(kernel(mutated=("in_ptr1",)), given)
    assert places(found) == [(a.data_ptr(), False), (out.data_ptr() + 4, True)]
    assert kernels.touches_of(kernel(custom=True), given) == []


def test_a_kernel_that_mutates_writes_beside_the_elements(said: list[tuple[int, bool]]) -> None:
    """Inductor pads rows where they lie: the kernel is given the rows and writes behind each."""
    rows = torch.ones(4, 8)[:, :7]
    given = (torch.ones(4), torch.ones(4), rows)
    for mutated in ((), ("out_ptr0",)):
        kernels.touches_of(kernel(mutated=mutated), given)
    assert said == [(rows.data_ptr(), False), (rows.data_ptr(), True)]


@torch.library.custom_op("lanes_test::plus", mutates_args=())
def plus(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_only_torchs_own_operators_are_believed() -> None:
    x, out = torch.ones(2, 3), torch.empty(2, 3)
    result = torch.ops.aten.add.out(x, x, out=out)
    known = accesses.known_nodes((3, 4), torch.ops.aten.add.out, (x, x), {"out": out}, result)
    assert (known.begin, known.end, known.in_order) == (3, 4, False)
    assert (x.data_ptr(), False) in places(known.touches)
    assert (out.data_ptr(), True) in places(known.touches)
    own = accesses.known_nodes((0, 1), torch.ops.lanes_test.plus.default, (x,), {}, plus(x))
    assert own.touches == []
    drawn = accesses.known_nodes((0, 1), torch.ops.aten.rand_like.default, (x,), {}, x)
    assert drawn.in_order
    dropout = torch.ops.aten.native_dropout.default
    for training in (False, True):
        given = (x, 0.5, training)
        found = accesses.known_nodes((0, 1), dropout, given, {}, dropout(*given))
        assert found.in_order == training


def test_of_memory_that_a_call_makes_all_is_written(said: list[tuple[int, bool]]) -> None:
    """Its strides are those of what it was given, and what is between elements is copied, too."""
    gaps = torch.zeros(4, 6)[:, ::2]
    given = (gaps, torch.ones(2, 3), 0, 1, 3)
    result = torch.ops.aten.slice_scatter.default(*given)
    assert result.stride() == gaps.stride() == (6, 2)
    accesses.known_nodes((0, 2), torch.ops.aten.slice_scatter.default, given, {}, result)
    accesses.known_nodes((2, 3), torch.ops.aten.neg_.default, (gaps,), {}, gaps.neg_())
    assert said == [(result.data_ptr(), True), (gaps.data_ptr(), False), (gaps.data_ptr(), False)]
