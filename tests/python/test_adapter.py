"""The adapter on a machine without a GPU: clear reasons, right results, both forms of the hook."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pygraph
from pygraph import _engine
from pygraph.adapter import hook, sources, versions
from pygraph.adapter.partition import Partition
from pygraph.adapter.uncaptured import Uncaptured
from pygraph.capture import hold, reasons


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    pygraph.reset()
    versions.support.cache_clear()
    yield
    versions.support.cache_clear()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) + 1


@pytest.mark.parametrize("compiler", ["inductor", "aot"])
@pytest.mark.parametrize("grad", [False, True])
def test_cpu_models_run_right_and_say_why_no_graph(compiler: str, grad: bool) -> None:
    model = Model()
    fast = torch.compile(model, backend="pygraph", options={"compiler": compiler})
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            x = torch.randn(4, 8)
            torch.testing.assert_close(fast(x), model(x))
    if grad:
        fast(x).sum().backward()
        assert model.linear.weight.grad is not None
    graphs = pygraph.report().graphs
    assert graphs and all(graph.state == "fallback" and graph.reason for graph in graphs)


def test_the_backend_is_registered_and_callable() -> None:
    assert "pygraph" in torch.compiler.list_backends(exclude_tags=())
    model = Model()
    fast = torch.compile(model, backend=pygraph.backend)
    x = torch.randn(4, 8)
    torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize(
    ("version", "fits"),
    [("2.10.1", False), ("2.11.0+cu130", True), ("2.13.0", True), ("2.14.0a0", False)],
)
def test_torch_out_of_range_is_named(version: str, fits: bool) -> None:
    problem = versions.torch_problem(version)
    assert (problem is None) == fits
    if not fits:
        assert problem is not None and version in problem and "2.11 to 2.13" in problem


def test_an_unsupported_torch_runs_eagerly_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions.torch, "__version__", "2.9.1")
    model = Model()
    fast = torch.compile(model, backend="pygraph", options={"compiler": "aot"})
    x = torch.randn(4, 8)
    torch.testing.assert_close(fast(x), model(x))
    assert "torch 2.9.1 found" in (pygraph.report().graphs[0].reason or "")


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    absent = _engine.capabilities_of("libcuda-is-not-here.so")
    assert not absent.usable
    assert "libcuda-is-not-here.so" in absent.problem and "needed" in absent.problem
    monkeypatch.setattr(versions._engine, "capabilities", lambda: absent)
    assert versions.support().problem == absent.problem


def test_a_failed_calibration_keeps_graphs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "tensor_access", lambda: "this torch lacks everything")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    usable = types.SimpleNamespace(usable=True, problem="")
    monkeypatch.setattr(versions._engine, "capabilities", lambda: usable)
    problem = versions.support().problem
    assert problem is not None and "lacks everything" in problem


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_require_full_raises_instead_of_falling_back() -> None:
    fast = torch.compile(Model(), backend="pygraph", options={"require": "full"})
    with pytest.raises(Exception, match=r"no CUDA driver|finds no CUDA device"):
        fast(torch.randn(4, 8))


# ------------------------------------------------------------------------------- the hook


def recording(made: list[dict[str, Any]]) -> hook.Wrap:
    def wrap(
        model: Callable[..., Any], static_input_idxs: Any, **kwargs: Any
    ) -> Callable[..., Any]:
        made.append({"model": model, "static": list(static_input_idxs), **kwargs})
        return lambda arguments: ("wrapped", model(arguments))

    return wrap  # type: ignore[return-value]


def test_the_replaced_cudagraphify_acts_only_while_installed() -> None:
    from torch._inductor import compile_fx

    made: list[dict[str, Any]] = []
    with hook.installed(recording(made)) as routed:
        assert routed["config_patches"]["triton.cudagraphs"] is True
        run = compile_fx.cudagraphify(
            lambda arguments: arguments,
            (1,),
            device_index=0,
            stack_traces=[],
            is_backward=False,
            is_inference=True,
            mutated_input_idxs=(0,),
        )
    assert run([1, 2]) == ("wrapped", [1, 2])
    assert made[0]["static"] == [1] and made[0]["mutated_input_idxs"] == (0,)
    assert hook._current() is None
    run = compile_fx.cudagraphify(
        lambda arguments: arguments,
        (),
        device_index=0,
        stack_traces=[],
        is_backward=False,
        is_inference=True,
    )
    assert len(made) == 1  # torch's own way again
    assert run is not None


def test_what_is_compiled_later_and_on_another_thread_is_routed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backward may be compiled at its first call, on autograd's thread."""
    from torch._inductor import compile_fx

    def compile_fx_inner(*args: Any, **kwargs: Any) -> Any:
        return hook._current(), args, kwargs

    monkeypatch.setattr(compile_fx, "compile_fx_inner", compile_fx_inner)
    wrap = recording([])
    with hook.installed(wrap) as routed:
        pass
    assert hook._current() is None
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(routed["inner_compile"](1, static=2)))
    thread.start()
    thread.join()
    assert found == [(wrap, (1,), {"static": 2})]
    assert hook._current() is None


@pytest.mark.skipif(versions.hook_form() != "policy", reason="this torch has no CUDAGraphPolicy")
def test_the_policy_wraps_whole_graphs_and_partitions() -> None:
    made: list[dict[str, Any]] = []
    kwargs = {"static_input_idxs": (0,), "is_backward": False, "is_inference": True}
    with hook.installed(recording(made)) as routed:
        policy = routed["config_patches"]["cudagraph_policy"]
        whole = types.SimpleNamespace(partition_maps=None)
        assert policy.should_wrap(whole)
        run = policy.cudagraphify(
            lambda arguments: arguments,
            [],
            (0,),
            device_index=0,
            is_backward=False,
            is_inference=True,
            mutated_input_idxs=(),
        )
        assert run([3]) == ("wrapped", [3])

        from torch._inductor.utils import GraphPartitionMap

        applied: list[Any] = []
        partition = GraphPartitionMap(0, [1, None], [0], [])
        graph = types.SimpleNamespace(
            partition_maps=[partition],
            cudagraph_info=types.SimpleNamespace(
                cudagraph_fail_reasons=[], placeholders=[None, None], stack_traces=[None]
            ),
            fx_kwargs=kwargs,
            mutated_input_idxs=torch.utils._ordered_set.OrderedSet(),
            device_idxs=[0],
            recursively_apply_fns=applied.extend,
        )
        graph.cudagraph_info.placeholders = [
            types.SimpleNamespace(
                name=f"arg{i}", stack_trace=None, users=[], mutating_use_stack_trace=None
            )
            for i in range(2)
        ]
        assert not policy.should_wrap(graph)
        assert len(applied) == 1
        assert applied[0](lambda arguments: "ran")([]) == ("wrapped", "ran")
    assert made[1]["static"] == []  # argument 0 is static, but the partition takes argument 1
    assert [each["partition"] for each in made] == [None, Partition((1, None), (0,))]


def test_partitions_that_are_replaced_come_with_their_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx, output_code
    from torch._inductor.utils import GraphPartitionMap

    def post_compile(example_inputs: Any, compiled_graph: Any, *_: Any) -> None:
        for _ in compiled_graph.partition_maps[:-1]:  # as if it stopped in between
            compile_fx.cudagraphify(lambda arguments: arguments, (), **kwargs)

    kwargs: dict[str, Any] = {"device_index": 0, "is_backward": True, "is_inference": False}
    monkeypatch.setattr(output_code, "cudagraph_partition_post_compile", post_compile)
    maps = [GraphPartitionMap(0, [2, 0], [None], []), GraphPartitionMap(1, [None], [1, 0], [])]
    maps.append(maps[0])
    made: list[dict[str, Any]] = []
    with hook.installed(recording(made)):
        output_code.cudagraph_partition_post_compile(
            [], types.SimpleNamespace(partition_maps=maps), None, {}, None
        )
        compile_fx.cudagraphify(lambda arguments: arguments, (), **kwargs)
    found = [each["partition"] for each in made]
    assert found == [Partition((2, 0), (None,)), Partition((None,), (1, 0)), None]


# ------------------------------------------------------------------------------- small parts


def test_uncaptured_leaves_aligned_cpu_arguments_alone() -> None:
    seen: list[Any] = []
    run = Uncaptured(lambda arguments: seen.extend(arguments) or ("r",), frozenset(), True)
    x = torch.randn(9)[1:]
    assert run([x, 3]) == ("r",)
    assert seen[0] is x and seen[1] == 3


def test_generated_code_is_found_through_wrappers() -> None:
    import functools

    module: dict[str, Any] = {"empty_strided_cuda": lambda *a: torch.zeros(a[0])}
    exec("def call(args):\n    return (empty_strided_cuda((2,), (1,)),)", module)

    class Runner:
        def __init__(self, function: Any) -> None:
            self.function = function

        def __call__(self, arguments: Any) -> Any:
            return self.function(arguments)

    def closure(function: Any) -> Any:
        return lambda arguments: function(arguments)

    wrapped = functools.partial(closure(module["call"]))
    kept: list[Any] = []
    original = module["empty_strided_cuda"]
    with hold.hold_buffers(wrapped, kept):
        (made,) = wrapped([])
        torch.ones(2)
    assert any(made is tensor for tensor in kept)
    assert module["empty_strided_cuda"] is original


def test_reasons_name_operator_and_source() -> None:
    try:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    except RuntimeError as error:
        reason, operator, source = reasons.explain(error, "aten.item.default")
    assert "not allow during a capture" in reason
    assert operator == "aten.item.default"
    assert source is not None and source.split(":")[0].endswith("test_adapter.py")


def test_sources_find_the_users_line() -> None:
    found: list[Any] = []

    def catch(gm: Any, inputs: Any) -> Any:
        found.append(sources.finder(gm))
        return gm.forward

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) + 1

    torch.compile(function, backend=catch)(torch.randn(3))
    line = found[0]("aten.sigmoid.default")
    assert line is not None and "test_adapter.py" in line
    assert found[0]("aten.mm.default") is None
