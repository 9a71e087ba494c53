"""Which generated code may be launched in front of guards, and with which indices."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from places import Place

import pygraph
from pygraph import _engine
from pygraph.frontends.compile import speculation
from pygraph.torch_private import inductor

SOURCE = """
triton_poi_fused_0 = async_compile.triton('triton_poi_fused_0', '''
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
''')

def call(args):
    arg0_1, = args
    args.clear()
    assert_size_stride(arg0_1, (4, ), (1, ))
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = empty_strided_cuda((4, ), (1, ), torch.float32)
        stream0 = get_raw_stream(0)
        triton_poi_fused_0.run(arg0_1, buf0, 4, stream=stream0)
        extern_kernels.mm(buf0, buf0, out=buf0)
        buf1 = torch.ops.aten._scaled_dot_product_flash_attention.default(buf0)
    return (buf0, )

def benchmark_compiled_module(times=10):
    return print_performance(times)
"""


@pytest.mark.parametrize(
    ("old", "new", "harmless"),
    [
        ("", "", True),
        ("torch.float32)", "torch.float32).as_strided((3, ), (1, ))", True),
        # What later versions of torch call besides: checks of what it has been given, on the host.
        ("assert_size_stride(", "assert_size_stride_grouped(", True),
        ("return (buf0, )", "assert_tensor_metadata(buf0, (4, ))\n    return (buf0, )", True),
        ("empty_strided_cuda(", "mine(1).as_strided(", False),
        ("(in_ptr0 + (x0), xmask)", "(in_ptr0 + (tmp1))\n    tl.device_assert(tmp1 < 3)", False),
        ("extern_kernels.mm(", "extern_kernels.index_select(", False),
        ("_scaled_dot_product_flash_attention", "embedding", False),
        ("args.clear()", "args.clear()  # Original ATen: [aten._unsafe_index_put]", False),
        ("triton_poi_fused_0.run(", "user_kernel_0.run(", False),
        ("torch.ops.aten.", "torch.ops.mine.", False),
        ("_scaled_dot_product_flash_attention", "topk", True),
        ("extern_kernels.mm(", "aten.randint.low_out(", True),
        ("extern_kernels.mm(", "aten.randperm.out(", False),
        ("args.clear()", "print(args)", False),
        ("def call(args)", "def other(args)", False),
        ("return (buf0, )", "return (", False),
    ],
)
def test_generated_code(tmp_path: Any, old: str, new: str, harmless: bool) -> None:
    source = SOURCE.replace(old, new) if old else SOURCE
    assert (speculation._of_source(source) is not None) is harmless


def test_a_graph_of_something_else_than_operators() -> None:
    def number(x: Any) -> Any:
        return x.size(0) + 1

    graph = torch.fx.symbolic_trace(number)
    assert speculation.bounds_of(graph.forward) is None
    empty = torch.fx.GraphModule({}, torch.fx.Graph())
    empty.graph.call_function(torch.ops.higher_order.cond, ())
    empty.graph.output(None)
    assert speculation.bounds_of(empty.forward) is None


PARTITIONED = """
import torch
empty_strided_cuda = torch.empty_strided
async_compile = type("Compile", (), {"triton": staticmethod(lambda name, text: None)})

triton_poi_fused_0 = async_compile.triton('triton_poi_fused_0', '''
@triton.jit
def triton_poi_fused_0(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tl.device_assert(((0 <= tmp0) & (tmp0 < 9)) | ~(xmask), "index out of bounds: 0 <= tmp0 < 9")
    tl.store(out_ptr0 + (x0), tl.load(in_ptr1 + (tmp0), xmask), xmask)
''')

def partition_0(args):
    arg1_1, arg0_1 = args
    args.clear()
    buf0 = empty_strided_cuda((4, ), (1, ), torch.float32)
    triton_poi_fused_0.run(arg0_1, arg1_1, buf0, 4, stream=stream0)
    return (buf0, )

class Runner:
    def call(self, args):
        arg0_1, arg1_1 = args
        args.clear()
        return self.partitions[0]([arg1_1, arg0_1])
"""


def generated(folder: Any, source: str) -> dict[str, Any]:
    """The names of a module of generated code."""
    file = folder / "generated.py"
    file.write_text(source)
    names: dict[str, Any] = {"__file__": str(file), "__name__": "generated"}
    exec(source, names)
    return names


def test_the_arguments_of_a_partition_are_numbered_as_it_has_them(tmp_path: Any) -> None:
    names = generated(tmp_path, PARTITIONED)
    partition, runner = names["partition_0"], names["Runner"]()
    assert speculation.bounds_of(partition) == {1: 9}
    assert speculation.bounds_of(lambda args: partition(args)) == {1: 9}
    assert speculation.bounds_of(runner.call) is None


def test_operators_whose_indices_nobody_checks() -> None:
    """They are harmless where their indices are the same in every call."""
    said = "# Original ATen: [aten._unsafe_index]\ntriton_poi_fused_0 ="
    resized = PARTITIONED.replace("triton_poi_fused_0 =", said)
    assert speculation._of_source(resized, "partition_0") is None
    other = said.replace("_unsafe_index", "index") + " None  # aten._unsafe_index\n"
    elsewhere = PARTITIONED.replace("triton_poi_fused_0 =", said.replace("_unsafe_index", "index"))
    assert speculation._of_source(elsewhere + other, "partition_0") == {1: 9}


def test_generated_code_without_checks_of_indices(tmp_path: Any) -> None:
    from torch._inductor import config

    partition = generated(tmp_path, PARTITIONED)["partition_0"]
    assert speculation.permit(partition) == speculation.Permit({1: 9})
    assert speculation.permit(partition, checked=False) is None
    assert inductor.checks_indices({})
    assert not inductor.checks_indices({"assert_indirect_indexing": False})
    with config.patch(assert_indirect_indexing=False):
        assert not inductor.checks_indices({})
        assert inductor.checks_indices({"assert_indirect_indexing": True})


def test_a_method_of_generated_code_is_one_piece_of_code(tmp_path: Any) -> None:
    """Its function is found behind it, and is no second one."""
    whole, _, _ = PARTITIONED.partition("class Runner")
    names = generated(tmp_path, whole.replace("partition_0(args)", "call(self, args)"))
    assert speculation.bounds_of(types.MethodType(names["call"], object())) == {1: 9}


@pytest.mark.parametrize(("layer", "asked"), [(torch.nn.LayerNorm, 1), (torch.nn.BatchNorm1d, 0)])
def test_code_is_read_only_for_graphs_that_leave_no_trace(
    place: Place, layer: Any, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that writes statistics is never launched before the guards, whatever its code does."""
    reads: list[Any] = []
    bounds = speculation.bounds_of
    monkeypatch.setattr(
        speculation, "bounds_of", lambda *given: [reads.append(given), bounds(*given)][1]
    )
    layers = torch.nn.Linear(4, 4), layer(4)
    model = torch.nn.Sequential(*layers).to(place.torch)
    compiled = place.compile(model)
    assert reads == []
    for _ in range(4):
        compiled(place.randn(2, 4)).sum().backward()
    graphs = pygraph.report().graphs
    assert all(graph.state == "graphed" for graph in graphs) and len(reads) == asked
    assert any(graph.before_guards for graph in graphs) == bool(asked)


def test_a_callable_of_which_nothing_is_known() -> None:
    assert speculation.bounds_of(lambda arguments: arguments) is None
    assert not speculation.install(_engine.make_entry_point(print), speculation.Permit({}), [])
