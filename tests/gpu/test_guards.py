"""Which of Inductor's graphs are launched before Dynamo has checked its guards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pygraph
from pygraph.frontends.compile import past_guards, speculation

pytestmark = pytest.mark.gpu

CALLS = 200


def report_of(model: Any, *given: torch.Tensor, **options: Any) -> Any:
    torch._dynamo.reset()
    pygraph.reset()
    options = {"launch": "always", **options}
    compiled = torch.compile(model, backend="pygraph", options=options)
    with torch.no_grad():
        for _ in range(6):
            fresh = [each.clone() for each in given]
            torch.cuda.synchronize()  # an index is looked at when nothing is on the stream
            torch.testing.assert_close(compiled(*fresh), model(*fresh), rtol=1e-3, atol=1e-3)
    (graph,) = pygraph.report().graphs
    assert graph.replays == 4, graph.blame
    return graph


def convolutions() -> torch.nn.Module:
    layers = (
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 3 * 3, 5),
    )
    return torch.nn.Sequential(*layers).cuda().eval()


def test_a_network_of_convolutions_is() -> None:
    assert report_of(convolutions(), torch.randn(2, 3, 8, 8, device="cuda")).before_guards


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(64, 192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.inner(x).view(2, 16, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return torch.nn.functional.scaled_dot_product_attention(*parts)


def test_attention_is() -> None:
    assert report_of(Attention().cuda().eval(), torch.randn(2, 16, 64, device="cuda")).before_guards


def test_one_operator_for_a_whole_layer_is() -> None:
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda().eval()
    assert report_of(layer, torch.randn(2, 16, 64, device="cuda")).before_guards


def test_one_that_looks_up_an_embedding_is() -> None:
    layers = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 3)
    ids = torch.randint(50, (4, 6), device="cuda")
    graph = report_of(torch.nn.Sequential(*layers).cuda(), ids)
    assert graph.before_guards and graph.bytes_looked_at == 3 * ids.nbytes


def test_one_that_looks_up_where_it_has_found_something_is() -> None:
    """An argmax and a topk find places that exist."""
    table = torch.randn(50, 8, device="cuda")

    def look_up(x: torch.Tensor) -> torch.Tensor:
        best = x.topk(3, dim=1)[1]
        return table[x.argmax(1)] + table.repeat(1, 1)[best].sum(1)

    assert report_of(look_up, torch.randn(16, 50, device="cuda")).before_guards


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_one_that_resizes_is(mode: str) -> None:
    """Inductor leaves the checks of its indices out, which no data leads to."""
    resize = torch.nn.Upsample(scale_factor=2, mode=mode)
    assert report_of(resize, torch.randn(2, 3, 8, 8, device="cuda")).before_guards


@pytest.mark.parametrize("training", [False, True])
def test_one_that_draws_random_numbers_is(training: bool) -> None:
    """And it draws them when its call has come."""
    torch._dynamo.reset()
    pygraph.reset()
    weight = torch.randn(64, 64, device="cuda", requires_grad=training)
    scale = [1.0]

    def draw(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.dropout(x @ weight, 0.5) * scale[0]
        return y + torch.randn_like(y) + torch.randint(9, (64,), device="cuda")

    def same(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.dropout(x @ weight, 0.5) * scale[0]
        return y + torch.randn_like(y) + torch.randint(9, (64,), device="cuda")

    fast = torch.compile(draw, backend="pygraph", options={"launch": "always"}, dynamic=False)
    plain = torch.compile(
        same, backend="pygraph", options={"launch": "after_guards"}, dynamic=False
    )

    def call_twice(function: Any, x: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for _ in range(2):
            found = function(x)
            if training:
                results += torch.autograd.grad(found.square().sum(), weight)
            results.append(found.detach())
        return [*results, torch.rand(3, device="cuda")]

    for call in range(24):
        scale[0] = 2.0 if call in (9, 10, 11) else 1.0
        x, results = torch.randn(64, 64, device="cuda"), []
        for function in (fast, plain):
            torch.manual_seed(call)
            with torch.set_grad_enabled(training):
                results.append(call_twice(function, x))
        assert all(map(torch.equal, *results))
    launched, claimed, _ = speculation.counts(fast)
    assert launched > claimed > 20
    assert any(graph.before_guards and graph.dropped for graph in pygraph.report().graphs)


def test_one_whose_kernels_check_no_index_is_not() -> None:
    """By a setting of Inductor's."""
    table, ids = torch.nn.Embedding(50, 8).cuda(), torch.randint(50, (4, 6), device="cuda")
    assert not report_of(table, ids, assert_indirect_indexing=False).before_guards


def test_one_that_looks_up_what_it_computes_is_not() -> None:
    table = torch.randn(50, 8, device="cuda")
    ids = torch.randint(50, (4, 6), device="cuda")
    assert not report_of(
        lambda ids: torch.nn.functional.embedding(49 - ids, table), ids
    ).before_guards


def test_indices_are_not_looked_at_while_the_stream_has_work() -> None:
    torch._dynamo.reset()
    pygraph.reset()
    table = torch.nn.Embedding(50, 8).cuda()
    compiled = torch.compile(table, backend="pygraph", options={"launch": "always"})
    with torch.no_grad():
        for busy in (False, False, False, False, True, True, False):
            ids = torch.randint(50, (4, 6), device="cuda")
            torch.cuda.synchronize()
            if busy:
                torch.cuda._sleep(20_000_000)
            found = compiled(ids)
            assert torch.equal(found, table(ids))
    (graph,) = pygraph.report().graphs
    assert graph.before_guards and graph.dropped == 0
    assert graph.bytes_looked_at == 2 * ids.nbytes


def test_an_index_of_a_larger_table_is_not_tried_on_a_smaller_one() -> None:
    torch._dynamo.reset()
    pygraph.reset()
    tables = [torch.randn(50, 8, device="cuda"), torch.randn(5000, 8, device="cuda")]
    chosen = [0]

    def lookup(ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(ids, tables[chosen[0]])

    options = {"launch": "always"}
    compiled = torch.compile(lookup, backend="pygraph", options=options, dynamic=False)
    with torch.no_grad():
        for number in (0, 0, 0, 0, 1, 1, 1, 1, 0, 1):
            chosen[0] = number
            ids = torch.randint(len(tables[number]) - 9, len(tables[number]), (4, 6), device="cuda")
            torch.cuda.synchronize()
            found = compiled(ids)
            assert torch.equal(found, lookup(ids))
    assert all(graph.before_guards and graph.replays for graph in pygraph.report().graphs)


def share_launched_before_guards(function: Any, *given: torch.Tensor) -> float:
    """By default, of calls whose results are waited for."""
    torch._dynamo.reset()
    pygraph.reset()
    compiled = torch.compile(function, backend="pygraph")
    with torch.no_grad():
        for _ in range(6):
            compiled(*given)
            torch.cuda.synchronize()
        before, *_ = speculation.counts(compiled)
        for _ in range(CALLS):
            found = compiled(*given)
            torch.cuda.synchronize()
        launched, *_ = speculation.counts(compiled)
    torch.testing.assert_close(found, function(*given), rtol=1e-3, atol=1e-3)
    return (launched - before) / CALLS


def test_a_long_graph_is_by_default_and_a_short_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where calls do not go past the guards."""
    monkeypatch.setattr(past_guards, "lead", lambda *_: None)

    def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            b = a @ b
        return b

    assert share_launched_before_guards(add, *torch.randn(2, 16, device="cuda")) < 0.1
    assert (
        share_launched_before_guards(multiply, *(torch.randn(2, 4096, 4096, device="cuda") / 64))
        > 0.9
    )
