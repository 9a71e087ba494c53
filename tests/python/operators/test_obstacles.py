"""What stands in the way of a capture, by the operator and by where its tensors are."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch._prims import rng_prims

from pygraph.operators.obstacles import is_operator, obstacle, of_call
from pygraph.operators.table import Obstacle
from pygraph.planning import KINDS

aten = torch.ops.aten
GPU, CPU = torch.ones(2, device="meta"), torch.ones(2)
BACKWARD = aten._scaled_dot_product_flash_attention_backward.default
SAVED = (*[GPU] * 8, 5, 5)  # what stands before the share that is dropped and the seeds


def node(target: Any, made: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    """A call of `target` that makes `made`; tensors among `args` are inputs of the graph."""
    graph = torch.fx.Graph()
    return call(graph, target, made, *(given(graph, each) for each in args), **kwargs)


def given(graph: torch.fx.Graph, value: Any) -> Any:
    if isinstance(value, list):
        return [given(graph, each) for each in value]
    if not isinstance(value, torch.Tensor):
        return value
    placeholder = graph.placeholder("x")
    placeholder.meta["val"] = value
    return placeholder


def call(graph: torch.fx.Graph, target: Any, made: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    found = graph.call_function(target, args, kwargs)
    found.meta["val"] = made
    return found


CASES: list[tuple[str | None, Any, Any, tuple[Any, ...]]] = [
    (None, aten.mm.default, GPU, (GPU, GPU)),
    ("host value", aten._local_scalar_dense.default, 1.0, (GPU,)),
    ("data-dependent shape", aten.nonzero.default, GPU, (GPU,)),
    ("data-dependent shape", aten.index.Tensor, GPU, (GPU, [GPU.bool()])),
    ("data-dependent shape", aten.index.Tensor, GPU, (GPU, [None, GPU.byte()])),
    (None, aten.index.Tensor, GPU, (GPU, [GPU.long()])),
    (None, aten.index.Tensor, GPU, (GPU.bool(), [None, GPU.long()])),
    ("library state", aten._linalg_eigh.default, (GPU, GPU), (GPU, "L", True)),
    ("cpu operator", aten._linalg_eigh.default, (CPU, CPU), (CPU, "L", True)),
    ("control flow", torch.ops.higher_order.cond, GPU, (GPU,)),
    ("random numbers", rng_prims.run_and_save_rng_state, GPU, (GPU,)),
    (None, torch.ops.higher_order.wrap, GPU, (GPU,)),
    (None, BACKWARD, (GPU,) * 3, (*SAVED, 0.1, False, GPU, GPU)),
    ("host seed", BACKWARD, (GPU,) * 3, (*SAVED, 0.1, False, CPU, GPU)),
    ("host seed", BACKWARD, (GPU,) * 3, (*SAVED, 0.1, False, GPU, CPU)),
    ("host seed", BACKWARD, (CPU,) * 3, (*[CPU] * 8, 5, 5, 0.1, False, CPU, CPU)),
    ("cpu operator", aten.add.Tensor, CPU, (CPU, 1)),
    ("host to device", aten._to_copy.default, GPU, (CPU,)),
    ("host to device", torch.ops.prims.device_put.default, GPU, (CPU,)),
    ("device to host", aten._to_copy.default, CPU, (GPU,)),
    ("cpu input", aten.mul.Tensor, GPU, (GPU, CPU)),
    ("random numbers", aten.rand_like.default, GPU, (GPU,)),
    ("random numbers", aten.native_dropout.default, GPU, (GPU, 0.5, True)),
    (None, aten.native_dropout.default, GPU, (GPU, 0.5, False)),
    ("random numbers", aten.rrelu_with_noise.default, GPU, (GPU, GPU, 0.1, 0.3, True)),
    (None, aten.rrelu_with_noise.default, GPU, (GPU, GPU, 0.1, 0.3, False)),
]


@pytest.mark.parametrize(("kind", "target", "made", "args"), CASES)
def test_an_operator(kind: str | None, target: Any, made: Any, args: Any) -> None:
    assert obstacle(node(target, made, *args)) == kind


@pytest.mark.parametrize(("kind", "target", "made", "args"), CASES)
def test_a_call_is_what_its_node_is(kind: str | None, target: Any, made: Any, args: Any) -> None:
    """A plan has nodes, a capture calls."""
    assert of_call(target, args, {}, made) == kind


def test_what_a_call_returns_need_not_be_known() -> None:
    assert of_call(aten._linalg_eigh.default, (GPU, "L", True), {}) == "library state"
    assert of_call(aten._linalg_eigh.default, (CPU, "L", True), {}) == "cpu input"
    assert of_call(BACKWARD, SAVED, {"philox_seed": CPU, "philox_offset": GPU}) == "host seed"
    assert of_call(print, (CPU,), {}) is None


def test_on_a_device_whose_tensors_are_on_the_cpu() -> None:
    ours = lambda tensor: False  # noqa: E731
    eigh = aten._linalg_eigh.default
    assert of_call(eigh, (CPU, "L", True), {}, (CPU, CPU), ours) == "library state"
    assert of_call(aten.add.Tensor, (CPU, 1), {}, CPU, ours) is None
    assert of_call(BACKWARD, (*SAVED, 0.1, False, CPU, CPU), {}, None, ours) is None


def test_a_mask_of_itself() -> None:
    graph = torch.fx.Graph()
    mask = given(graph, GPU.bool())
    assert obstacle(call(graph, aten.index.Tensor, GPU, mask, [mask])) == "data-dependent shape"


@pytest.mark.parametrize(("dropped", "kind"), [(0.0, None), (0.1, "random numbers")])
def test_attention_draws_where_something_is_dropped(dropped: float, kind: str | None) -> None:
    attention = aten._scaled_dot_product_flash_attention.default
    assert obstacle(node(attention, GPU, GPU, GPU, GPU, dropout_p=dropped)) == kind
    assert obstacle(node(attention, GPU, GPU, GPU, GPU)) is None  # as is its default


def test_a_collective() -> None:
    library = torch.library.Library("c10d_functional", "FRAGMENT")
    library.define("pygraph_test_sum(Tensor x) -> Tensor")
    try:
        target = torch.ops.c10d_functional.pygraph_test_sum.default
        assert obstacle(node(target, GPU, GPU)) == "collective"
    finally:
        library._destroy()


def test_a_cpu_tensor_is_reported_where_it_was_made() -> None:
    graph = torch.fx.Graph()
    made = call(graph, aten.full.default, CPU, [2], 1.0)
    used = call(graph, aten.mul.Tensor, GPU, given(graph, GPU), made)
    assert [obstacle(each) for each in (made, used)] == ["cpu operator", None]


def test_what_is_no_operator_is_no_obstacle() -> None:
    graph = torch.fx.Graph()
    placeholder = given(graph, CPU)
    size = call(graph, getattr, 2, placeholder, "shape")
    for each in (placeholder, size, graph.output(size)):
        assert not is_operator(each) and obstacle(each) is None


def test_a_plan_has_words_for_each_kind_in_their_order() -> None:
    assert tuple(KINDS) == get_args(Obstacle)
