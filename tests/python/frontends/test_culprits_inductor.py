"""Compiling once more below AOTAutograd with Inductor, on the CPU. There its code is never put into
graphs, so what a unit wraps is called here by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pygraph.decide.culprits import CULPRITS
from pygraph.frontends.compile import culprits, hook
from pygraph.torch_private import aot, dispatch, inductor

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    CULPRITS.clear()
    yield
    CULPRITS.clear()


@pytest.fixture
def ops() -> Iterator[Any]:
    with torch.library._scoped_library("pygraph_outside", "DEF") as library:
        for name, function in (("double", lambda x: x * 2), ("halve", lambda x: x / 2)):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, function, "CPU")
            torch.library.register_fake(f"pygraph_outside::{name}", torch.empty_like, lib=library)
        torch.library.register_autograd(
            "pygraph_outside::double", lambda context, grad: grad * 2, lib=library
        )
        yield torch.ops.pygraph_outside


class Compiled:
    """A function compiled with Inductor, whose units are at hand."""

    def __init__(self, function: Any, **settings: Any) -> None:
        self.units = culprits.Units(lambda unit: None, lambda: lambda: None)
        self.sources: list[culprits.FromInductor] = []
        original = self.units.compile

        def compile_unit(source: Any) -> Any:
            self.sources.append(source)
            return original(source)

        self.units.compile = compile_unit  # type: ignore[method-assign]
        self.call = torch.compile(function, backend=self._backend, **settings)

    def _backend(self, graph: Any, inputs: Any) -> Any:
        inner = culprits.watched(self.units, inductor.compile_fx_inner(), {})
        with aot.without_cache():
            return inductor.compile_fx()(graph, inputs, inner_compile=inner)

    def again(self, source: culprits.FromInductor, *outside: str) -> Any:
        compiled = source.compile_again(outside)
        before = inductor.callable_within(source._output)
        source.put(compiled)
        assert inductor.callable_within(source._output) is not before
        return compiled


def test_new_code_takes_the_place_of_the_old_below_the_wrappers(ops: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(ops.double(x + 1) * 3)

    compiled = Compiled(function)
    x = torch.randn(4)
    assert torch.equal(compiled.call(x), function(x))
    (source,) = compiled.sources
    assert "pygraph_outside::double" in source.operators
    compiled.again(source, "pygraph_outside::double")
    for _ in range(2):
        x = torch.randn(4)
        assert torch.equal(compiled.call(x), function(x))


def test_partitions_are_cut_around_a_culprit(ops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import scheduler

    seen: list[Any] = []
    original = scheduler.Scheduler.should_partition

    def noting(self: Any, node: Any, *args: Any) -> Any:
        reason = original(self, node, *args)
        seen.append((node.get_name(), reason))
        return reason

    monkeypatch.setattr(scheduler.Scheduler, "should_partition", noting)
    compiled = Compiled(lambda x: torch.relu(ops.double(x + 1) * 3))
    compiled.call(torch.randn(4))
    seen.clear()
    settings = {"triton.cudagraphs": True, "force_disable_caches": True}
    with torch._inductor.config.patch(settings):
        compiled.again(compiled.sources[0], "pygraph_outside::double")
    assert any("pygraph_outside::double" in str(reason) for _, reason in seen)


def test_dynamic_sizes_need_no_further_guards(ops: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(ops.double(x + 1) * x.shape[0])

    compiled = Compiled(function, dynamic=True)
    compiled.call(torch.randn(5, 4))
    compiled.again(compiled.sources[0], "pygraph_outside::double")
    for rows in (3, 7):
        x = torch.randn(rows, 4)
        assert torch.equal(compiled.call(x), function(x))
    assert len(compiled.sources) == 1


def test_forward_and_backward_are_compiled_again_each_for_itself(ops: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return ops.double(torch.sin(x)).tanh()

    compiled = Compiled(function)

    def gradient(call: Any, x: torch.Tensor) -> torch.Tensor:
        given = x.clone().requires_grad_()
        call(given).sum().backward()
        assert given.grad is not None
        return given.grad

    x = torch.randn(4)
    expected = gradient(function, x)
    torch.testing.assert_close(gradient(compiled.call, x), expected)
    assert [source.is_backward for source in compiled.sources] == [False, True]
    compiled.again(compiled.sources[0], "pygraph_outside::double")
    torch.testing.assert_close(gradient(compiled.call, x), expected)
    compiled.again(compiled.sources[1], "aten::mul")
    torch.testing.assert_close(gradient(compiled.call, x), expected)


def test_further_guards_make_it_unfit(ops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Compiled(lambda x: ops.double(x), dynamic=True)
    compiled.call(torch.randn(5, 4))
    (source,) = compiled.sources
    counts = iter([(1,), (2,)])
    monkeypatch.setattr(type(source._tracing), "guards", lambda self: next(counts))
    with pytest.raises(culprits.Unfit, match="further guards"):
        source.compile_again(["pygraph_outside::double"])


def test_other_strides_of_results_make_it_unfit(ops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward may have been compiled for those of the old code."""
    compiled = Compiled(lambda x: ops.double(x) + 1)
    compiled.call(torch.randn(5, 4))
    strides = iter([[("4", "1")], [("1", "5")]])
    monkeypatch.setattr(inductor, "output_strides", lambda compiled: next(strides))
    with pytest.raises(culprits.Unfit, match="strides"):
        compiled.sources[0].compile_again(["pygraph_outside::double"])


def test_a_culprit_that_is_known_is_outside_at_the_first_compilation(
    ops: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    around: list[Any] = []
    original = hook.kept_outside

    def kept_outside(operators: Any) -> Any:
        around.append(tuple(operators))
        return original(operators)

    monkeypatch.setattr(hook, "kept_outside", kept_outside)
    CULPRITS.learn("pygraph_outside::halve")
    Compiled(lambda x: ops.double(x)).call(torch.randn(4))
    assert around == []
    Compiled(lambda x: ops.halve(x)).call(torch.randn(4))
    assert around == [("pygraph_outside::halve",)]


def test_library_kernels_are_told_by_the_operators_that_they_stand_for() -> None:
    """Inductor's own setting holds for operators without a lowering only."""
    seen: list[bool] = []

    def noting(original: Any, scheduler: Any, node: Any) -> Any:
        seen.append(inductor.runs_one_of(["aten::mm"], node))
        return original(scheduler, node)

    owner, name = inductor.partitions_are_chosen()
    before = getattr(owner, name)
    setattr(owner, name, lambda scheduler, node: noting(before, scheduler, node))
    try:
        with torch._inductor.config.patch(
            {"triton.cudagraphs": True, "force_disable_caches": True}
        ):
            compiled = Compiled(lambda x: torch.relu(x @ x) + 1)
            compiled.call(torch.randn(4, 4))
    finally:
        setattr(owner, name, before)
    assert True in seen and False in seen


def test_operators_of_the_programs_own_are_named_beforehand(ops: Any) -> None:
    found: list[bool] = []

    def backend(graph: Any, inputs: Any) -> Any:
        found.append(culprits.named_beforehand(graph))
        return graph.forward

    for function in (
        lambda x: torch.relu(x @ x),
        lambda x: ops.double(x),
        lambda x: torch.ops.aten.relu.default(x),
    ):
        torch._dynamo.reset()
        torch.compile(function, backend=backend)(torch.randn(4, 4))
    assert found == [False, True, False]


def test_an_operator_that_writes_its_arguments_is_found_in_what_calls_it() -> None:
    from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2

    writing = torch.ops.aten.add_.Tensor
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(auto_functionalized_v2, (writing,), {"x": x})
    graph.call_function(torch.ops.aten.mm.default, (x, x))
    assert dispatch.packets(graph) == {"aten::add_", "aten::mm"}
    assert dispatch.calls_one_of(["aten::add_"], auto_functionalized_v2, (writing,))


def test_what_is_kept_of_a_graph_stays_as_it_was() -> None:
    constant = torch.ones(2)
    within = torch.fx.symbolic_trace(lambda x: x + 1)
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = "meta"
    held = graph.get_attr("held.constant")
    graph.output([graph.call_module("within", (graph.call_function(torch.add, (x, held)),))])
    module = torch.fx.GraphModule({"held.constant": constant, "within": within}, graph)
    kept = culprits.Kept(module)
    for each in (module.graph, within.graph):
        each.erase_node(next(iter(reversed(each.nodes))))
    for _ in range(2):
        again = kept.again()
        assert torch.equal(again(torch.ones(2))[0], torch.full((2,), 3.0))
        first = next(iter(again.graph.nodes))
        assert first.meta["val"] == "meta" and again.held.constant is constant
        first.meta.clear()
        again.graph.erase_node(next(iter(reversed(again.graph.nodes))))


def test_names() -> None:
    assert dispatch.packet_of("mylib.foo.default") == "mylib::foo"
    assert dispatch.packet_of("Tensor.tolist") is None
    assert dispatch.packet_of("run_and_save_rng_state") is None
    assert dispatch.calls_one_of(["aten::add"], torch.ops.aten.add.Tensor)
    assert not dispatch.calls_one_of(["aten::add"], torch.add)
