"""Checkpointing with random numbers on the twin: the forward saves the generator's state, and the
backward draws with it once more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import twin_support
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import pygraph
from pygraph import _engine
from pygraph.capturing import hold, tensors
from pygraph.twin import operations, predict
from pygraph.twin.recorder import NotRecordable

_dropout = torch.ops.aten.native_dropout.default
_run_and_save = torch.ops.higher_order.run_and_save_rng_state
_run_with = torch.ops.higher_order.run_with_rng_state


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    pygraph.reset()
    with twin_support.twin_memory():
        yield
    pygraph.reset()


def twice(given: list[Any]) -> list[Any]:
    """Draws, draws, draws the first once more, and draws on."""
    (x,) = given
    state, (first, mask) = _run_and_save(_dropout, x, 0.5, True)
    between = torch.rand(3)
    again, again_mask = _run_with(state, _dropout, x, 0.5, True)
    return [state, first, mask, between, again, again_mask, torch.rand(3)]


def test_a_saved_state_draws_the_same_once_more() -> None:
    x = torch.randn(64)
    before = torch.get_rng_state()
    moved = twin_support.Moved(twice, [x])
    assert torch.equal(torch.get_rng_state(), before), "capturing draws nothing"
    assert moved.linked.kernels == 7  # save, draw, draw; exchange, draw, exchange; draw
    for seed in (1, 2):
        torch.manual_seed(seed)
        found = moved([x])
        after = torch.get_rng_state()
        torch.manual_seed(seed)
        expected = twice([x])
        assert tensors.same_bits(torch.get_rng_state(), after)
        for mine, theirs in zip(found, expected, strict=True):
            assert tensors.same_bits(mine, theirs)
        assert torch.equal(found[1], found[4])
        assert not torch.equal(found[3], found[6])


def with_state(given: list[Any]) -> Any:
    return list(_run_with(given[1], _dropout, given[0], 0.5, True))


def test_what_is_no_state_is_refused_and_does_no_harm() -> None:
    x, state = torch.randn(8), torch.get_rng_state()
    moved = twin_support.Moved(with_state, [x, state])
    with pytest.raises(_engine.DriverError):
        moved([x, torch.zeros_like(state)])
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for mine, theirs in zip(moved([x, state]), with_state([x, state]), strict=True):
        assert tensors.same_bits(mine, theirs)
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_is_tried_on_a_made_up_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(func: Any, *_: Any) -> Any:
        raise AssertionError(f"{func} was tried")

    monkeypatch.setattr(operations, "_predicted", {})
    monkeypatch.setattr(predict, "_tried", tried)
    relu = torch.ops.aten.relu.default
    x, state = torch.randn(8), torch.get_rng_state()
    saves = twin_support.Moved(lambda given: list(_run_and_save(relu, given[0])), [x])
    exchanges = twin_support.Moved(lambda given: _run_with(given[1], relu, given[0]), [x, state])
    assert torch.equal(saves([x])[0], torch.get_rng_state())
    assert torch.equal(exchanges([x, state])[0], torch.relu(x))


def test_an_operator_inside_that_cannot_be_recorded_is_named() -> None:
    with pytest.raises(NotRecordable, match="values") as refusal:
        twin_support.Moved(
            lambda given: _run_and_save(torch.ops.aten.nonzero.default, given[0])[1],
            [torch.randn(8)],
        )
    assert refusal.value.operator == "aten.nonzero.default"


def test_other_higher_order_operators_are_refused_by_name() -> None:
    other = torch.ops.higher_order.out_dtype
    matrix = torch.ones(4, 4, dtype=torch.int8)
    with pytest.raises(NotRecordable, match="higher-order") as refusal:
        twin_support.Moved(
            lambda given: other(torch.ops.aten.mm.default, torch.int32, *given), [matrix, matrix]
        )
    assert refusal.value.operator == "out_dtype"


def test_a_capture_on_a_gpu_holds_what_higher_order_operators_return() -> None:
    kept: list[Any] = []
    x = torch.randn(8)
    with hold.hold_buffers((), kept) as mode:
        state, result = _run_and_save(torch.ops.aten.relu.default, x)
    memory = {storage.data_ptr() for storage in kept}
    assert {each.untyped_storage().data_ptr() for each in (state, result)} <= memory
    assert mode.under_way is None


# ------------------------------------------------------------------------- the whole way


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 16)
        self.second = torch.nn.Linear(16, 16)

    def block(self, x: torch.Tensor, layer: torch.nn.Module) -> torch.Tensor:
        return F.dropout(torch.relu(layer(x)), 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second):
            x = checkpoint(self.block, x, layer, use_reentrant=False)
        return x.square().sum()


def trained(compile: Callable[[Net], Any], steps: int) -> list[torch.Tensor]:
    """All losses and the weights at the end, and what the generator draws next."""
    torch._dynamo.reset()
    torch.manual_seed(5)
    net = Net()
    run = compile(net)
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        loss = run(torch.randn(4, 16))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach().clone())
    return [*losses, *(p.detach().clone() for p in net.parameters()), torch.rand(4)]


def test_checkpointed_dropout_trains_as_it_does_uncaptured() -> None:
    expected = trained(lambda net: torch.compile(net, backend="aot_eager"), 8)
    found = trained(
        lambda net: torch.compile(net, backend="pygraph", options={"device": "twin"}), 8
    )
    for mine, theirs in zip(found, expected, strict=True):
        assert tensors.same_bits(mine, theirs)
    graphs = pygraph.report().graphs
    assert len(graphs) == 2
    for graph in graphs:
        assert (graph.state, graph.proof) == ("graphed", "bit-equal"), graph.reason
        assert graph.replays > 0
