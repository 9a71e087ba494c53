"""Which arguments of a compiled graph are indices, read from its code."""

from __future__ import annotations

import ast
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


# ------------------------------------------------------------------------ places that are computed

SEARCH = """
triton_per_fused_argmax_1 = async_compile.triton('triton_per_fused_argmax_1', '''
import triton
import triton.language as tl

@triton.jit
def _triton_helper_fn_add0(arg0_0, arg1_0):
    tmp0 = arg0_0 + arg1_0
    return tmp0

@triton.jit
def triton_per_fused_argmax_1(in_ptr0, out_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK : tl.constexpr):
    r0_numel = 64
    R0_BLOCK: tl.constexpr = 64
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    rindex = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (r0_index + 64*x0), xmask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp6, = tl.associative_scan((tmp1,), 1, _triton_helper_fn_add0)
    tmp2 = tl.where(xmask, tmp1, float("-inf"))
    tmp3 = tl.broadcast_to(rindex, tmp2.shape)
    tmp4_val, tmp4_idx = triton_helpers.max_with_index(tmp2, tmp3, 1)
    tmp4 = tmp4_idx[:, None]
    tl.store(out_ptr0 + (r0_index + 64*x0), tmp6, xmask)
    tmp4 = tmp4.to(tl.int64)
    tl.store(out_ptr1 + (x0), tmp4, xmask)
''', device_str='cuda')
"""
LOOKUP = "triton_poi_fused_0.run(arg2_1, arg0_1, buf0, 256, stream=stream0)"
FOUND = """buf1 = empty_strided_cuda((16, 64), (64, 1), torch.float32)
            buf2 = empty_strided_cuda((16, ), (1, ), torch.int64)
            triton_per_fused_argmax_1.run(arg1_1, buf1, buf2, 16, 64, stream=stream0)
            triton_poi_fused_0.run(buf2, arg0_1, buf0, 256, stream=stream0)"""
RANKED = """buf1 = torch.ops.aten.topk.default(reinterpret_tensor(arg1_1, (16, 64), (64, 1), 0), 1)
            buf2 = buf1[1]
            assert_size_stride(buf2, (16, 1), (1, 1), 'torch.ops.aten.topk.default')
            assert_alignment(buf2, 16, 'torch.ops.aten.topk.default')
            del buf1
            triton_poi_fused_0.run(buf2, arg0_1, buf0, 256, stream=stream0)"""


def computed(calls: str, *changes: tuple[str, str]) -> dict[int, int] | None:
    return index_bounds.of_source(SEARCH + source("tmp4 = tmp0", (LOOKUP, calls), *changes), "call")


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize("calls", [FOUND, RANKED])
def test_places_that_are_looked_for_are_below_the_size_of_that(calls: str) -> None:
    """Whatever is in it, and whoever calls."""
    assert computed(calls) == {}
    larger = changed(changed(calls, "64", "65"), "(65, 1)", "(64, 1)")
    assert computed(larger) == (None if calls == RANKED else {})


def test_the_size_of_a_tensor_is_read_where_it_is_made_or_checked() -> None:
    whole = changed(RANKED, "reinterpret_tensor(arg1_1, (16, 64), (64, 1), 0)", "buf7")
    for line in (
        "buf7 = empty_strided_cuda((16, {}), (64, 1), torch.float32)",
        "assert_size_stride(buf7, (16, {}), (64, 1))",
    ):
        for size, found in ((64, {}), (65, None), ("s0", None)):
            assert computed(f"{line.format(size)}\n            {whole}") == found
        again = f"{line.format(64)}\n            buf7 = arg1_1\n            {whole}"
        assert computed(again) is None


def test_a_place_that_is_handed_over_as_a_float() -> None:
    search = changed(SEARCH, "tmp4 = tmp4.to(tl.int64)", "tmp4 = tmp4.to(tl.float32)")
    text = source("tmp4 = tmp0", (LOOKUP, FOUND))
    assert index_bounds.of_source(search + text) == {}
    for size, found in ((1 << 24, {}), ((1 << 24) + 1, None)):
        many = changed(text, "< 64", f"< {size}")
        assert index_bounds.of_source(changed(search, "= 64", f"= {size}") + many) == found


LAST = "triton_poi_fused_0.run(buf2"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (LAST, f"triton_poi_fused_2.run(buf2)\n            {LAST}"),
        (LAST, f"triton_poi_fused_0.run(arg2_1, arg0_1, buf2)\n            {LAST}"),
        (LAST, f"triton_poi_fused_0.run(buf2, arg0_1, buf2)\n            {LAST}"),
        (LAST, f"triton_poi_fused_0.run(buf2, view(buf2), buf0)\n            {LAST}"),
        (LAST, f"extern_kernels.mm(arg0_1, arg1_1, out=buf2)\n            {LAST}"),
        (LAST, f"buf3 = reinterpret_tensor(buf2, (16, ), (1, ), 0)\n            {LAST}"),
        (LAST, f"buf3 = buf2\n            {LAST}"),
        (LAST, f"buf2 = arg2_1\n            {LAST}"),
        (LAST, f"buf2 = arg2_1[0]\n            {LAST}"),
        (LAST, f"if buf2:\n                pass\n            {LAST}"),
        (LAST, f"for _ in (0, 1):\n                {LAST}, 0); write(buf2)  #"),
    ],
)
@pytest.mark.parametrize("calls", [FOUND, RANKED])
def test_a_buffer_that_something_else_may_have_been_put_into(
    calls: str, old: str, new: str
) -> None:
    assert computed(calls) == {}
    assert computed(changed(calls, old, new)) is None


def test_a_buffer_that_is_only_read_keeps_its_places() -> None:
    for calls in (FOUND, RANKED):
        assert computed(changed(calls, LAST, f"{LAST}, arg0_1, buf0)\n            {LAST}")) == {}


@pytest.mark.parametrize(
    ("calls", "old", "new"),
    [
        (FOUND, "buf2 = empty_strided_cuda(", "buf2 = reinterpret_tensor(arg1_1, "),
        (FOUND, "16, 64, stream=stream0)", "16, 64, stream=stream0); buf2 = arg2_1"),
        (FOUND, "buf1, buf2, 16", "buf2, buf1, 16"),
        (FOUND, "triton_per_fused_argmax_1", "buf3 = buf2; triton_per_fused_argmax_1"),
        (RANKED, "aten.topk.default", "aten.topk_like.default"),
        (RANKED, "aten.topk.default", "aten.embedding.default"),
        (RANKED, "torch.ops.aten.topk", "torch.ops.mine.topk"),
        (RANKED, "buf1[1]", "buf1[0]"),
        (RANKED, "(16, 64), (64, 1)", "(16, s0), (64, 1)"),
        (RANKED, "reinterpret_tensor(arg1_1, (16, 64), (64, 1), 0)", "arg1_1"),
        (RANKED, "reinterpret_tensor(arg1_1, (16, 64), (64, 1), 0)", "buf1(arg1_1)"),
    ],
)
def test_a_buffer_that_is_not_new_or_holds_no_places(calls: str, old: str, new: str) -> None:
    assert computed(changed(calls, old, new)) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("r0_numel = 64", "r0_numel = 65"),
        ("r0_numel = 64", "pass"),
        ("rindex = r0_index", "rindex = r0_index + 1"),
        ("rindex = r0_index", "rindex = r0_index\n    rindex = x0"),
        ("tl.arange(0, R0_BLOCK)[None, :]", "tl.arange(1, R0_BLOCK)[None, :]"),
        ("tl.broadcast_to(rindex, tmp2.shape)", "tl.broadcast_to(x0, tmp2.shape)"),
        ("tmp4_val, tmp4_idx", "tmp4_idx, tmp4_val"),
        ("max_with_index", "sort_with_index"),
        ("tmp4 = tmp4.to(tl.int64)", "tmp4 = tmp4 + 1"),
        ("tmp4 = tmp4.to(tl.int64)", "tmp4 = tmp4.to(tl.float16)"),
        ("tmp4 = tmp4.to(tl.int64)", "tmp4 = tmp4.to(tl.int64) * 2"),
        ("tmp4 = tmp4_idx[:, None]", "tmp4_idx = x0; tmp4 = tmp4_idx[:, None]"),
        ("tl.store(out_ptr0 + (r0_index + 64*x0)", "tl.store(out_ptr1 + (r0_index)"),
        ("tl.store(out_ptr0 + (r0_index + 64*x0)", "tl.store(tl.make_block_ptr(out_ptr1)"),
        ("tl.store(out_ptr1 + (x0), tmp4", "tl.store(out_ptr1 + (x0), tmp0"),
        ("return tmp0", "tl.store(arg0_0, 5)\n    return tmp0"),
        ("def _triton_helper_fn_add0", "def add"),
    ],
)
def test_a_search_of_another_form(old: str, new: str) -> None:
    search = changed(SEARCH, old, new)
    text = source("tmp4 = tmp0", (LOOKUP, FOUND))
    assert index_bounds.of_source(search + text) is None
    assert index_bounds.of_source(SEARCH + text) == {}


# ------------------------------------------------------------------------ loads without a check


SAID = "# Topologically Sorted Source Nodes: [x], Original ATen: [aten._unsafe_index, aten.add]\n"


def complete(body: str, said: str = SAID) -> bool:
    text = source(body, ("\ntriton_poi_fused_0 =", f"\n{said}#   x => y\ntriton_poi_fused_0 ="))
    text += "# Original ATen: [aten._unsafe_index]\n"
    return index_bounds.checks_what_it_must(text, ast.parse(text))


def test_addresses_that_no_load_leads_to() -> None:
    loop = "for r0_offset in tl.range(0, 64, XBLOCK):\n        r0 = r0_offset\n    "
    for more in ("", f"{loop}{loop}tmp5 = tl.load(in_ptr1 + r0)"):
        assert complete(f"tmp4 = x1\n    {more}")


LOADS = [
    "tmp4 = tmp0",
    "tmp4 = x1\n    tmp5 = tl.load(in_ptr1 + (tmp0), xmask)",
    "tmp4 = x1\n    tmp5 = tl.load(in_ptr1 + (x0 + 16*tmp0), xmask).to(tl.float32)",
    "tmp4 = x1\n    tmp5 = tmp0 + 1\n    tl.store(out_ptr0 + (tmp5), x0)",
    "tmp4 = x1\n    tmp5 = tmp0 + 1\n    tl.atomic_add(out_ptr0 + (tmp5), x0)",
    "tmp4 = x1\n    tmp5 = x0\n    tmp5 = tmp0\n    tl.store(out_ptr0 + (tmp5), x0)",
    "tmp4 = x1\n    tmp5, tmp6 = x0, x1\n    tl.store(out_ptr0 + (tmp5), x0)",
    "tmp4 = x1\n    tmp5 = tl.load(in_ptr1 + (ks0), xmask)",
    "tmp4 = x1\n    tmp5 = tl.load(tl.make_block_ptr(in_ptr1), xmask)",
    "tmp4 = x1\n    tmp5 = tl.load(x0 - in_ptr1, xmask)",
]


@pytest.mark.parametrize("body", LOADS)
def test_addresses_that_may_come_from_data(body: str) -> None:
    """In a kernel that checks some of its indices it is not known which."""
    assert not complete(body)
    assert not complete(body, said="# whatever\n"), "nothing says what is in it"
    assert complete(body, said=SAID.replace("_unsafe_index", "index")), "it checks its indices"


def test_code_without_an_operator_that_leaves_checks_out() -> None:
    text = source(LOADS[1])
    assert index_bounds.checks_what_it_must(text, ast.parse(text))


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
