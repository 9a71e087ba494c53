"""Dynamo is asked to keep reads of numbers, and told where to end its graphs if they remain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pygraph
from pygraph.frontends.compile import scalars
from pygraph.torch_private import dynamo

DYNAMO: Any = torch._dynamo.config


@pytest.fixture(autouse=True)
def fresh(one_thread: None) -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    pygraph.reset()
    scalars._remained.clear()
    with torch.no_grad():
        yield
    assert not DYNAMO.capture_scalar_outputs
    pygraph.reset()


def check(function: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
    """The graphs' reports, after calls with the same results as the function's."""
    fast = torch.compile(function, backend="pygraph", options={"device": "twin", **options})
    for _ in range(4):
        given = [each.clone() for each in arguments]
        torch.testing.assert_close(fast(*given), function(*arguments), rtol=0, atol=0)
    return pygraph.report().graphs


def passes(graph: Any) -> list[str]:
    return [each.name for each in graph.passes]


def padded(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    mask = x.new_ones(x.shape)
    for row in range(x.size(0)):
        mask[row, lengths[row] :] = 0
    return x * mask


def test_a_frame_with_reads_that_go_is_one_graph() -> None:
    (graph,) = check(padded, torch.randn(3, 8), torch.tensor([8, 2, 5]))
    assert graph.replays == 2 and passes(graph) == ["keep"]
    assert graph.passes[0].source.startswith(__file__)
    assert not dynamo.graph_breaks()


def test_other_lengths_are_no_other_program() -> None:
    fast = torch.compile(padded, backend="pygraph", options={"device": "twin"})
    for _ in range(12):
        x, lengths = torch.randn(3, 8), torch.randint(-9, 9, (3,))
        assert torch.equal(fast(x, lengths), padded(x, lengths))
    (graph,) = pygraph.report().graphs
    assert graph.programs == 1 and graph.replays == 10


def test_a_branch_ends_the_graph_where_it_would_and_no_other_read_does() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * x.sum().item()
        if x.amax().item() > 100:
            return y
        return y + x.mean().item()

    before, behind = check(function, torch.randn(5))
    assert passes(before) == passes(behind) == ["keep"]
    assert len(dynamo.graph_breaks()) == 1


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why frames were traced again."""
    found: list[str] = []
    traced_again = dynamo.traced_again

    def counted(reason: str) -> Exception:
        found.append(reason)
        return traced_again(reason)

    monkeypatch.setattr(dynamo, "traced_again", counted)
    return found


def test_reads_that_remain_cost_one_more_trace_and_only_once(again: list[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.new_ones(int(x.sum())) * 2

    for size in (5, 7):
        torch._dynamo.reset()
        check(function, torch.ones(size))
        assert len(again) == len(scalars._remained) == 1


def test_reads_whose_lines_cannot_be_told_are_asked_for_no_more(again: list[str]) -> None:
    names: dict[str, Any] = {}
    exec("def function(x):\n    return x.new_ones(int(x.sum())) * x.mean().item()", names)
    torch._dynamo.reset()
    check(names["function"], torch.ones(5))
    assert 1 <= len(again) <= 2 and not scalars._remained  # the rest is a frame of its own


def test_a_frame_that_breaks_at_its_reads_is_not_tried_a_third_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + x.new_ones(int(x.sum())).sum()
        return x

    with caplog.at_level("DEBUG", logger=scalars.__name__):
        check(function, torch.ones(2))
    assert "reads of numbers remain" in caplog.text and "compiled anew" not in caplog.text


def test_where_no_break_is_possible_the_frame_is_as_it_would_be() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            if x.sum().item() > 0:
                x = x + 1
        return x

    check(function, torch.ones(5))
    breaks = len(dynamo.graph_breaks())
    torch._dynamo.reset()
    torch.compile(function, backend="eager")(torch.ones(5))
    assert breaks == len(dynamo.graph_breaks())


def test_an_error_behind_a_read_leaves_the_program_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr("pygraph.transform.keep.apply", fails)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="planted"):
        check(torch.sin, torch.ones(3))  # no read: not tried twice
    apply, calls = fails, 0

    def fails_once(module: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return apply() if calls == 1 else ([], [])

    monkeypatch.setattr("pygraph.transform.keep.apply", fails_once)
    assert len(check(lambda x: x * x.sum().item(), torch.ones(3))) == 2


def test_the_users_setting_is_the_users() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.new_ones(int(x.sum())) * x.mean().item()

    with DYNAMO.patch(capture_scalar_outputs=True):
        check(function, torch.ones(5))
        assert not scalars._remained and not dynamo.graph_breaks()


def test_other_backends_are_not_asked() -> None:
    seen = []

    def other(module: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(node.target for node in module.graph.nodes)
        return module.forward

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    check(function, torch.ones(3))
    torch.compile(function, backend=other)(torch.ones(3))
    assert "item" not in seen and len(dynamo.graph_breaks()) == 1


def test_what_is_compiled_within_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from pygraph.transform import keep

    inner: list[bool] = []

    def other(module: torch.fx.GraphModule, _: Any) -> Any:
        inner.append(DYNAMO.capture_scalar_outputs)
        return module.forward

    apply = keep.apply

    def nested(*args: Any, **kwargs: Any) -> Any:
        assert DYNAMO.capture_scalar_outputs
        torch.compile(torch.cos, backend=other)(torch.ones(2))
        return apply(*args, **kwargs)

    monkeypatch.setattr("pygraph.transform.keep.apply", nested)
    check(padded, torch.randn(2, 8), torch.tensor([8, 2]))
    assert inner and not any(inner)


@pytest.mark.parametrize("options", [{"transform": "none"}, {"transform": ("bring",)}], ids=str)
def test_without_the_pass_nothing_is_asked(options: dict[str, Any]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    graphs = check(function, torch.ones(3), **options)
    assert len(graphs) == 2 and not any(map(passes, graphs))
    torch._dynamo.reset()
    options = {"device": "twin", **options}
    whole = torch.compile(function, backend="pygraph", fullgraph=True, options=options)
    assert torch.equal(whole(torch.ones(3)), torch.full((3,), 3.0))
    assert not any(map(passes, pygraph.report().graphs))


def test_a_function_in_one_graph_has_its_reads_taken_away() -> None:
    options = {"device": "twin", "require": "full"}
    fast = torch.compile(padded, backend="pygraph", fullgraph=True, options=options)
    x, lengths = torch.randn(3, 8), torch.tensor([1, 2, 3])
    for _ in range(4):
        assert torch.equal(fast(x, lengths), padded(x, lengths))
    assert pygraph.report().graphs[0].replays == 2


def test_training() -> None:
    def function(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return padded(x, lengths) * x.square().mean().item()

    fast = torch.compile(function, backend="pygraph", options={"device": "twin"})
    with torch.enable_grad():
        for _ in range(6):
            x, lengths = torch.randn(3, 8), torch.randint(0, 9, (3,))
            leaves = [x.clone().requires_grad_() for _ in range(2)]
            for each, leaf in zip((fast, function), leaves, strict=True):
                each(leaf, lengths).square().sum().backward()
            assert torch.equal(leaves[0].grad, leaves[1].grad)  # type: ignore[arg-type]
    assert [bool(each.replays) for each in pygraph.report().graphs] == [True, True]


def test_a_plan_knows_it() -> None:
    planned = pygraph.plan(padded, (torch.randn(3, 8), torch.tensor([8, 2, 5])))
    assert len(planned.graphs) == 1 and not planned.breaks
    assert {each.name for each in planned.graphs[0].passes} == {"keep"}
    planned = pygraph.plan(lambda x: x.new_ones(int(x.sum())), (torch.ones(3),))
    assert len(planned.breaks) == 1


def test_a_torch_that_compiles_otherwise_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dynamo.where_reads_are_kept() is not None

    def other(code: Any, compiler_fn: Any, **_: Any) -> None: ...

    monkeypatch.setattr(torch._dynamo.convert_frame, "_compile", other)
    assert dynamo.where_reads_are_kept() is None
