"""The hook below Inductor: what is handed over to it, where, and what stays torch's."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from pygraph.frontends.compile import hook
from pygraph.reporting import Applied
from pygraph.runtime.partition import Partition
from pygraph.torch_private.graphs import copied
from pygraph.transform.split import Split

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


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


def test_transformed_code_has_keys_of_its_own_beside_the_users_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "custom_should_partition_ops"
    wrap = recording([])
    monkeypatch.setattr(hook, "edition", lambda: "1")
    with hook.installed(wrap, passes=["fold", "bring"], settings={name: ["mylib::foo"]}) as routed:
        assert routed["config_patches"][name] == ["mylib::foo", "pygraph::bring_fold_1"]
    with hook.installed(wrap, passes=["fold"]) as routed:
        assert routed["config_patches"][name] == ["pygraph::fold_1"]
    with hook.installed(wrap) as routed:
        assert name not in routed["config_patches"]


def test_inductors_cache_is_shared_with_torchs_own_modes() -> None:
    """A graph that no pass changes is found there by whoever compiled it first."""
    from torch._dynamo.utils import counters
    from torch._functorch import config as functorch_config
    from torch._inductor import compile_fx
    from torch._inductor import config as inductor_config
    from torch._inductor.utils import fresh_cache

    def compiled(function: Any, hooked: bool) -> tuple[int, int]:
        torch._dynamo.reset()
        counters.clear()
        options = {"triton.cudagraphs": True, "graph_partition": False}

        def backend(module: Any, examples: Any) -> Any:
            if not hooked:
                return compile_fx.compile_fx(module, examples, config_patches=options)
            with hook.installed(recording([]), passes=["fold"]) as routed:
                routed["config_patches"] |= options
                return compile_fx.compile_fx(module, examples, **routed)

        assert torch.equal(torch.compile(function, backend=backend)(torch.ones(3)), torch.ones(3))
        found = counters["inductor"]
        return found["fxgraph_cache_hit"], found["fxgraph_cache_miss"]

    with (
        fresh_cache(),
        functorch_config.patch(enable_autograd_cache=False),
        inductor_config.patch(fx_graph_cache=True),
        torch.no_grad(),
    ):
        assert compiled(lambda x: x * 3 - 2, hooked=False) == (0, 1)
        assert compiled(lambda x: x * 3 - 2, hooked=True) == (1, 0)
        assert compiled(lambda x: x * 5 - 4, hooked=True) == (0, 1)
        assert compiled(lambda x: x * 5 - 4, hooked=False) == (1, 0)


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
    module = torch.fx.GraphModule({}, torch.fx.Graph())
    compile_it = functools.partial(routed["inner_compile"], module, static=2)
    thread = threading.Thread(target=lambda: found.append(compile_it()))
    thread.start()
    thread.join()
    assert found == [(wrap, (module,), {"static": 2})]
    assert hook._current() is None


@pytest.mark.parametrize("gpus", [1, 2])
def test_several_gpus_are_one_graph_under_keys_of_their_own(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import compile_fx, cudagraph_utils
    from torch._inductor import config as inductor_config

    def looked_at() -> str | None:
        nodes: Any = {torch.device("cuda", index): None for index in range(2)}
        found: str | None = cudagraph_utils.check_multiple_devices_or_any_cpu_nodes(nodes)
        assert len(nodes) == 2
        return found

    def compile_fx_inner(*args: Any, **kwargs: Any) -> Any:
        return list(inductor_config.custom_should_partition_ops), looked_at()

    monkeypatch.setattr(compile_fx, "compile_fx_inner", compile_fx_inner)
    graph = torch.fx.Graph()
    with FakeTensorMode():
        for index in range(2):
            node = graph.placeholder(f"x{index}")
            node.meta["val"] = torch.empty(2, device=f"cuda:{index % gpus}")
    graph.output(None)
    with hook.installed(recording([])) as routed:
        keys, reason = routed["inner_compile"](torch.fx.GraphModule({}, graph))
    assert keys == ([] if gpus == 1 else ["pygraph::gpus"])
    assert (reason is None) == (gpus == 2)
    assert "multiple devices" in (looked_at() or ""), "torch's own graphs refuse them"


ROLES = ("is_backward", "is_inference")
APPLIED_STORED = ("fold", "a number that is made on the host stands on the device", "file.py:7")
APPLIED = Applied(*APPLIED_STORED)


def without_a_number(module: Any) -> Split:
    """As `fold` does, for a graph of the host's."""
    body = torch.fx.GraphModule(module, copied(module.graph))
    (node,) = [each for each in body.graph.nodes if each.target is torch.ops.aten.mul.Tensor]
    node.args = (node.args[0], 3.0)
    examples = [each.meta["val"] for each in body.graph.find_nodes(op="placeholder")]
    none: Any = frozenset()
    return Split(
        body, examples, len(examples), 1, None, None, {}, none, none, {}, none, {}, [APPLIED], {}
    )


def test_a_transformed_graph_is_found_in_every_cache_with_what_was_done_about_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where its body is all of it, so that there is nothing to store but what torch stores."""
    from torch._dynamo.utils import counters
    from torch._functorch import config as functorch_config
    from torch._inductor import compile_fx, output_code
    from torch._inductor import config as inductor_config
    from torch._inductor.utils import fresh_cache

    transformed: list[Any] = []
    loaded: list[Any] = []
    post_compile = output_code.CompiledFxGraph.post_compile

    def transform(module: Any, *_: Any, **__: Any) -> Split:
        transformed.append(module)
        return without_a_number(module)

    def seen(graph: Any, *args: Any, **kwargs: Any) -> None:
        loaded.append(getattr(graph, hook._APPLIED, None))
        post_compile(graph, *args, **kwargs)

    monkeypatch.setattr(hook, "transform", transform)
    monkeypatch.setattr(output_code.CompiledFxGraph, "post_compile", seen)

    def compiled(edition: str) -> tuple[int, int, int]:
        """Hits in the cache of AOTAutograd and in Inductor's, and graphs that were transformed."""
        torch._dynamo.reset()
        counters.clear()
        transformed.clear()
        loaded.clear()
        monkeypatch.setattr(hook, "edition", lambda: edition)

        def backend(module: Any, examples: Any) -> Any:
            with hook.installed(recording([]), passes=["fold"]) as routed:
                return compile_fx.compile_fx(module, examples, **routed)

        found = torch.compile(lambda x: x * 2.0 + 1, backend=backend)(torch.ones(3))
        assert torch.equal(found, torch.full((3,), 4.0))
        assert loaded == [[APPLIED_STORED]]
        hits = counters["aot_autograd"]["autograd_cache_hit"]
        return hits, counters["inductor"]["fxgraph_cache_hit"], len(transformed)

    with (
        fresh_cache(),
        functorch_config.patch(enable_autograd_cache=True),
        inductor_config.patch(fx_graph_cache=True),
        torch.no_grad(),
    ):
        assert compiled("1") == (0, 0, 1)
        assert compiled("1") == (1, 1, 0)
        assert compiled("2") == (0, 1, 1)


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


@pytest.mark.parametrize("parts", [False, True])
def test_what_was_done_about_a_graph_from_a_cache_is_handed_over_with_it(
    monkeypatch: pytest.MonkeyPatch, parts: bool
) -> None:
    from torch._inductor import output_code

    name = "cudagraph_partition_post_compile" if parts else "cudagraph_post_compile"

    def post_compile(_: Any, compiled_graph: Any, *args: Any) -> None:
        hook._call(recording(made), len, (), dict.fromkeys(("device_index", *ROLES), 0))

    made: list[dict[str, Any]] = []
    monkeypatch.setattr(output_code, name, post_compile)
    graph = types.SimpleNamespace(partition_maps=None, _pygraph_applied=[APPLIED_STORED])
    with hook.installed(recording([]), passes=["fold"]):
        getattr(output_code, name)([], graph)
        with hook._handed_to(recording([])):  # while a graph of the same code is compiled
            getattr(output_code, name)([], graph)
        del graph._pygraph_applied
        getattr(output_code, name)([], graph)
    assert [list(each["applied"]) for each in made] == [[APPLIED], [], []]


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


def test_a_result_that_is_several_of_the_graphs_is_the_last() -> None:
    """Before torch 2.14 the map has no others."""
    old = types.SimpleNamespace(input_index_mapping=[1, None], output_index_mapping=[3, None, 0])
    new = types.SimpleNamespace(
        input_index_mapping=[1, None], output_index_mapping=[[1, 3], [], [0]]
    )
    assert hook.partition_of(old) == hook.partition_of(new) == Partition((1, None), (3, None, 0))


def test_a_map_of_an_unknown_form_says_nothing() -> None:
    assert hook.partition_of(object()) is None
