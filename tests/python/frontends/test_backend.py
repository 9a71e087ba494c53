"""The backend on a machine without a GPU: clear reasons, right results, the hook."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pygraph
from pygraph import _engine
from pygraph.capture import hold, reasons
from pygraph.frontends.compile import generated, hook, sources
from pygraph.runtime.fallback import Fallback
from pygraph.runtime.partition import Partition
from pygraph.torch_private import support


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    pygraph.reset()
    support.support.cache_clear()
    yield
    support.support.cache_clear()


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


def test_an_unsupported_torch_runs_eagerly_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support.torch, "__version__", "2.9.1")
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
    monkeypatch.setattr(support._engine, "capabilities", lambda: absent)
    assert support.support().problem == absent.problem


def test_a_failed_calibration_keeps_graphs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "tensor_access", lambda: "this torch lacks everything")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    usable = types.SimpleNamespace(usable=True, problem="")
    monkeypatch.setattr(support._engine, "capabilities", lambda: usable)
    problem = support.support().problem
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


def compiled(is_backward: bool, partition_maps: Any, applied: list[Any]) -> Any:
    """As much of a graph of two arguments, compiled by Inductor, as its post_compile asks for."""
    from torch._inductor import cudagraph_utils, output_code

    argument = cudagraph_utils.PlaceholderInfo("argument", None, [], None)
    info = types.SimpleNamespace(
        cudagraph_fail_reasons=[],
        placeholders=[argument, argument],
        stack_traces=[None],
        user_visible_output_idxs=(0,),
    )
    graph = object.__new__(output_code.CompiledFxGraph)
    vars(graph).update(
        current_callable=lambda arguments: "whole",
        recursively_apply_fns=applied.extend,
        partition_maps=partition_maps,
        cudagraph_info=info,
        fx_kwargs={"static_input_idxs": (0,), "is_backward": is_backward, "is_inference": False},
        mutated_input_idxs=torch.utils._ordered_set.OrderedSet([1]),
        device_idxs=[0],
        device_types={"cuda"},
        constants={},
        opaque_value_type_classes={},
        inputs_to_check=[],
        compiled_fn_runner=None,
        disabled_cudagraphs_reason=None,
        output_strides=None,
        kernel_free_cudagraph=False,
        _wrap_compiled_regions=False,
        _original_gm=None,
        _serialized_original_gm=None,
    )
    return graph


def post_compile_a_pair(partition_maps: Any, patches: dict[str, Any]) -> tuple[list[Any], Any]:
    """A forward, and then its backward, by torch's own post_compile, whose form differs between
    versions. Returns what was put around partitions, and the second graph."""
    from torch._inductor import config, cudagraph_utils, output_code
    from torch._inductor.utils import BoxedBool

    applied: list[Any] = []
    shared = {
        "cudagraphs": BoxedBool(True),
        "boxed_forward_device_index": cudagraph_utils.BoxedDeviceIndex(None),
    }
    for is_backward in (False, True):
        graph = compiled(is_backward, partition_maps, applied)
        with config.patch(patches):
            graph.post_compile(
                [None, None],
                output_code.CompiledFxGraphConstants(),
                {**shared, "is_backward": is_backward},
            )
        assert shared["cudagraphs"], "the other graph of the pair would be kept out"
    return applied, graph


def partition_maps() -> list[Any]:
    """One takes argument 1 and makes the result, the other takes argument 0."""
    from torch._inductor.utils import GraphPartitionMap

    lists = "list[list" in str(GraphPartitionMap.__annotations__["output_index_mapping"])
    outputs: list[Any] = [[0], []] if lists else [0, None]
    return [
        GraphPartitionMap(0, [1, None], outputs[:1], []),
        GraphPartitionMap(1, [0], outputs[1:], []),
    ]


def test_torch_hands_over_the_partitions_of_a_forward_and_its_backward() -> None:
    made: list[dict[str, Any]] = []
    with hook.installed(recording(made)) as routed:
        applied, _ = post_compile_a_pair(partition_maps(), routed["config_patches"])
        for apply in applied:
            assert apply(lambda arguments: "ran")([]) == ("wrapped", "ran")
    assert [each["is_backward"] for each in made] == [False, False, True, True]
    for first, second in (made[:2], made[2:]):
        assert first["static"] == [] and first["mutated_input_idxs"] == (0,)
        assert second["static"] == [0] and second["mutated_input_idxs"] == ()


def test_torch_hands_over_whole_graphs_in_spite_of_a_policy() -> None:
    from torch._inductor import config, cudagraph_utils

    made: list[dict[str, Any]] = []
    others = {}
    if hasattr(config, "cudagraph_policy"):

        class Policy(cudagraph_utils.CUDAGraphPolicy):
            def should_wrap(self, compiled_graph: Any) -> bool:
                return False

        others["cudagraph_policy"] = Policy()
    with config.patch(others), hook.installed(recording(made)) as routed:
        patches = {**routed["config_patches"], "graph_partition": False}
        _, graph = post_compile_a_pair(None, patches)
    assert [each["is_backward"] for each in made] == [False, True]
    assert made[0]["static"] == [0] and made[0]["mutated_input_idxs"] == (1,)
    assert graph.current_callable([]) == ("wrapped", "whole")


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
    run = Fallback(lambda arguments: seen.extend(arguments) or ("r",), frozenset(), True)
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
    with hold.hold_buffers(generated.holdings_of(wrapped).allocators(), kept):
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
    assert source is not None and source.split(":")[0].endswith("test_backend.py")


def test_sources_find_the_users_line() -> None:
    found: list[Any] = []

    def catch(gm: Any, inputs: Any) -> Any:
        found.append(sources.finder(gm))
        return gm.forward

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) + 1

    torch.compile(function, backend=catch)(torch.randn(3))
    line = found[0]("aten.sigmoid.default")
    assert line is not None and "test_backend.py" in line
    assert found[0]("aten.mm.default") is None
