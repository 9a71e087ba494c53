"""Which arguments of a compiled graph are indices, read from its code."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pygraph.frontends.compile import index_bounds

KERNEL = """
triton_poi_fused_0 = async_compile.triton('triton_poi_fused_0', '''
import triton
import triton.language as tl

@triton.jit
def triton_poi_fused_0(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 256
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x1 = xindex // 16
    x0 = (xindex % 16)
    tmp0 = tl.load(in_ptr0 + (x1), xmask, eviction_policy='evict_last')
    BODY
    tl.device_assert(((0 <= tmp4) & (tmp4 < 64)) | ~(xmask), "index out of bounds: 0 <= tmp4 < 64")
    tmp9 = tl.load(in_ptr1 + (x0 + 16*tmp4), xmask)
    tl.store(out_ptr0 + (x0), tmp9, xmask)
''', device_str='cuda')
"""
CALL = """
class Runner:
    def call(self, args):
        arg0_1, arg1_1, arg2_1 = args
        args.clear()
        arg2_1 = copy_if_misaligned(arg2_1)
        with torch.cuda._DeviceGuard(0):
            buf0 = empty_strided_cuda((16, 16), (16, 1), torch.float32)
            stream0 = get_raw_stream(0)
            triton_poi_fused_0.run(arg2_1, arg0_1, buf0, 256, stream=stream0)
            del arg2_1
        return (buf0, )
"""
WRAP = """tmp1 = tl.full([XBLOCK], 64, tl.int32)
    tmp2 = tmp0 + tmp1
    tmp3 = tmp0 < 0
    tmp4 = tl.where(tmp3, tmp2, tmp0)"""


def source(body: str, *changes: tuple[str, str]) -> str:
    text = KERNEL.replace("BODY", body) + CALL
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    "body",
    [
        "tmp4 = tmp0",
        WRAP,
        "tmp1 = tmp0.to(tl.int32)\n    tmp4 = (tmp1).to(tl.int64)",
        "tmp4 = tl.broadcast_to(tmp0, [XBLOCK])",
        "tmp4 = tl.load(in_ptr0 + (x1 + tmp0), xmask)",
    ],
)
def test_an_argument(body: str) -> None:
    assert index_bounds.of_source(source(body)) == {2: 64}


@pytest.mark.parametrize(
    "body",
    [
        "tmp4 = x1",
        "tmp4 = tl.full([XBLOCK], 3, tl.int64) + x1",
        "R0_BLOCK: tl.constexpr = 128\n    tmp4 = x1 + tl.arange(0, R0_BLOCK)[None, :]",
        "for r0_offset in tl.range(0, 64, XBLOCK):\n        tmp4 = x1 + r0_offset",
    ],
)
def test_the_same_in_every_call(body: str) -> None:
    assert index_bounds.of_source(source(body)) == {}


@pytest.mark.parametrize(
    "body",
    [
        "tmp4 = tmp0 + x1",
        "tmp4 = -tmp0",
        "tmp4 = tmp0.to(tl.int8)",
        "tmp4 = tmp0.to(tl.int32, bitcast=True)",
        "tmp1 = x1\n    tmp3 = tmp1 < 0\n    tmp4 = tl.where(tmp3, tmp0, tmp1)",
        "tmp4 = tl.where(xmask, tmp0, x1)",
        WRAP.replace("tmp0 < 0", "tmp0 < 1"),
        WRAP.replace("tmp2, tmp0)", "tmp0, tmp2)"),
        "tmp4 = tl.load(out_ptr0 + (x1), xmask)",
        "tmp4 = tl.load(in_out_ptr0 + (x1), xmask)",
        "tmp4 = tl.load(in_ptr0 - (x1), xmask)",
        "in_ptr0 = in_ptr1\n    tmp4 = tmp0",
        "tmp4 = tmp0\n    tmp4 = x1",
        "tmp4 = tmp0\n    tmp4 += x1",
        "tmp4 = x1\n    tmp5 = (tmp4 := tmp0)",
        "tmp4 = x1\n    for tmp4 in tl.range(0, tmp0):\n        pass",
        "tmp5: tl.constexpr = tmp0\n    tmp4 = x1 + tmp5",
        "tmp4: tl.int64",
        "tmp4, tmp5 = triton_helpers.max_with_index(tmp0, x1, 1)",
        "tmp4, tmp5 = x0, x1",
        "tmp4 = tl.atomic_add(out_ptr0, x1)",
        "tmp4 = other(x1)",
        "tmp4 = ks0 + x1",
        "tmp4 = tmp4",
    ],
)
def test_a_value_that_is_not_known(body: str) -> None:
    assert index_bounds.of_source(source(body)) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("((0 <= tmp4) & (tmp4 < 64)) | ~(xmask)", "(tmp4 < 64) | ~(xmask)"),
        ("((0 <= tmp4) & (tmp4 < 64)) | ~(xmask)", "((0 <= tmp4) & (tmp0 < 64)) | ~(xmask)"),
        ("((0 <= tmp4) & (tmp4 < 64)) | ~(xmask)", "((0 <= tmp4) & (tmp4 < ks0)) | ~(xmask)"),
        ("((0 <= tmp4) & (tmp4 < 64)) | ~(xmask)", "((0 <= tmp4) & (tmp4 < 64)) | xmask"),
        ("((0 <= tmp4) & (tmp4 < 64)) | ~(xmask)", "((1 <= tmp4) & (tmp4 < 64)) | ~(xmask)"),
        ("((0 <= tmp4) & (tmp4 < 64)) | ~(xmask)", "((0 <= tmp4) | (tmp4 < 64)) | ~(xmask)"),
        ("tl.device_assert(", "triton_helpers.device_assert_then("),
        ("@triton.jit", "@triton.jit\ndef helper(x):\n    return x\n\n@triton.jit"),
        (".run(arg2_1, ", ".run(buf9, "),
        (".run(arg2_1, ", ".run(reinterpret_tensor(arg2_1, (1, ), (1, ), 3), "),
        ("args.clear()", "arg2_1 = arg0_1"),
        ("args.clear()", "arg2_1 += 1"),
        ("copy_if_misaligned(arg2_1)", "copy_if_misaligned(arg1_1)"),
        ("class Runner:", "def partition_0(args):\n    pass\n\nclass Runner:"),
        ("class Runner:", "def call(args):\n    pass\n\nclass Runner:"),
        ("def call(self, args)", "def other(self, args)"),
        ("args.clear()", "args.clear()  # index out of bounds"),
        ("args.clear()", "args.clear()  # Original ATen: [aten.as_strided, aten.embedding]"),
        ("return (buf0, )", "return (buf0, "),
        ("'''\nimport triton\n", "text + '''\nimport triton\n"),
    ],
)
def test_code_of_another_form(old: str, new: str) -> None:
    assert index_bounds.of_source(source("tmp4 = tmp0")) == {2: 64}
    assert index_bounds.of_source(source("tmp4 = tmp0", (old, new))) is None


def test_a_result_that_is_an_argument() -> None:
    written = (".run(arg2_1, arg0_1, buf0", ".run(arg2_1, arg0_1, arg1_1")
    assert index_bounds.of_source(source("tmp4 = tl.load(out_ptr0 + (x1), xmask)", written)) is None


def test_a_number_that_the_kernel_is_given() -> None:
    given = ("out_ptr0, xnumel,", "out_ptr0, ks0, xnumel,")
    assert index_bounds.of_source(source("tmp4 = ks0 + x1", given)) is None


def test_a_fixed_value_under_a_mask_that_comes_from_data() -> None:
    masked = ("~(xmask), ", "~(tmp5 & xmask), ")
    text = source("tmp5 = tmp0 > 1\n    tmp4 = x1", masked)
    assert index_bounds.of_source(text) is None
    assert index_bounds.of_source(source("tmp5 = x1 > 1\n    tmp4 = x1", masked)) == {}


def test_a_check_without_a_mask() -> None:
    plain = ("((0 <= tmp4) & (tmp4 < 64)) | ~(xmask)", "(0 <= tmp4) & (tmp4 < 64)")
    assert index_bounds.of_source(source("tmp4 = tmp0", plain)) == {2: 64}


def test_the_least_bound_of_several() -> None:
    second = KERNEL.replace("BODY", "tmp4 = tmp0").replace("64", "9").replace("fused_0", "fused_1")
    run = "triton_poi_fused_0.run(arg2_1, arg0_1, buf0, 256, stream=stream0)"
    other = run.replace("fused_0", "fused_1")
    both = second + source("tmp4 = tmp0", (run, f"{run}; {other}"))
    assert index_bounds.of_source(both) == {2: 9}
    third = both.replace("fused_1.run(arg2_1, arg0_1", "fused_1.run(arg1_1, arg0_1")
    assert index_bounds.of_source(third) == {1: 9, 2: 64}


PARTITION = textwrap.dedent(CALL.removeprefix("\nclass Runner:\n"))
PARTITION = PARTITION.replace("call(self, args)", "partition_0(args)")
WHOLE = """
class Runner:
    def call(self, args):
        arg2_1, arg1_1, arg0_1 = args
        args.clear()
        partition0_args = [arg0_1, arg1_1, arg2_1]
        (buf0,) = self.partitions[0](partition0_args)
        return (buf0, )
"""


def test_a_partition() -> None:
    """With graphs on, Inductor puts its calls into one, also where there is nothing to part."""
    text = KERNEL.replace("BODY", "tmp4 = tmp0") + PARTITION + WHOLE
    assert index_bounds.of_source(text, "partition_0") == {2: 64}
    assert index_bounds.of_source(text, "partition_1") is None
    assert index_bounds.of_source(text, "call") is None


def test_the_partition_that_is_called() -> None:
    second = PARTITION.replace("partition_0", "partition_1").replace("run(arg2_1", "run(arg1_1")
    text = KERNEL.replace("BODY", "tmp4 = tmp0") + PARTITION + second + WHOLE
    assert index_bounds.of_source(text, "partition_0") == {2: 64}
    assert index_bounds.of_source(text, "partition_1") == {1: 64}


def test_code_that_looks_nothing_up() -> None:
    assert index_bounds.of_source("def call(args):\n    return args") == {}


# ------------------------------------------------------------------------ operators


def graph_of(function: Any, *given: torch.Tensor) -> torch.fx.Graph:
    graph = make_fx(function, tracing_mode="fake")(*given).graph
    assert isinstance(graph, torch.fx.Graph)
    return graph


def embedding(table: Any, ids: Any) -> Any:
    return torch.ops.aten.embedding(table, ids)


def test_embeddings() -> None:
    x, few, many = torch.randn(3, 4), torch.randn(6, 4), torch.randn(9, 4)
    ids = torch.tensor([[0, 5], [1, 2]])

    def both(x: Any, few: Any, many: Any, ids: Any) -> Any:
        return embedding(few, ids[0].view(2, 1)), embedding(many, ids), x + 1

    assert index_bounds.of_graph(graph_of(both, x, few, many, ids)) == {3: 6}
    assert index_bounds.of_graph(graph_of(lambda x: x + 1, x)) == {}


def test_embeddings_of_what_is_computed() -> None:
    def shifted(table: Any, ids: Any) -> Any:
        return embedding(table, ids + 1)

    def turned(table: Any, ids: Any) -> Any:
        return embedding(table, ids.flip(0))

    def halves(table: Any, ids: Any) -> Any:
        return embedding(table, ids.view(torch.int32))

    for function in (shifted, turned, halves):
        graph = graph_of(function, torch.randn(6, 4), torch.tensor([0, 1]))
        assert index_bounds.of_graph(graph) is None


def test_a_table_of_any_size() -> None:
    table, ids = torch.randn(6, 4), torch.tensor([0, 1])
    graph = make_fx(embedding, tracing_mode="symbolic")(table, ids).graph
    assert index_bounds.of_graph(graph) is None
