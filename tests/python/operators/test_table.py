"""The table of operators holds what its readers knew before there was one, and names of torch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.fsdp

import pygraph
from pygraph.operators import table
from pygraph.operators.known import known, parameters, written
from pygraph.operators.table import Property, operators

WANTED = {
    Property.ADDRESSES_BY_SHAPE: """
        _addmm_activation addmm baddbmm bias_addmm bmm convolution mm
        _native_multi_head_attention _scaled_dot_product_cudnn_attention
        _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
        _transformer_encoder_layer_fwd
        _log_softmax _softmax amax amin avg_pool2d mean sum var_mean
        _native_batch_norm_legit _native_batch_norm_legit_no_training native_batch_norm
        native_group_norm native_layer_norm
        _unsafe_view alias detach expand permute reshape select slice
        split split_with_sizes squeeze t transpose unbind unsqueeze view
        cat clone constant_pad_nd empty full stack
        bernoulli exponential native_dropout normal rand rand_like randint randint_like randn
        randn_like uniform""",
    Property.KEEPS_VALUES: """
        alias clone detach expand permute reshape select slice
        squeeze t transpose unsqueeze view _unsafe_view""",
    Property.KEEPS_BITS: "view.dtype",
    Property.COUNTS_FROM_STORAGE: "as_strided as_strided_ as_strided_copy as_strided_scatter",
    Property.KEEPS_OFFSET: """
        as_strided_scatter.default diagonal_scatter.default select_scatter.default
        slice_scatter.default""",
    Property.RETURNS_STATE: """
        _scaled_dot_product_flash_attention _flash_attention_forward
        _scaled_dot_product_efficient_attention _efficient_attention_forward
        _scaled_dot_product_cudnn_attention _cudnn_attention_forward""",
    Property.ALLOCATES: """
        empty.memory_format empty_strided.default empty_permuted.default empty_like.default
        new_empty.default new_empty_strided.default""",
    Property.MAKES_ZEROS: "zeros.default zeros_like.default new_zeros.default",
    Property.MAKES_OF_NUMBER: "scalar_tensor.default",
    Property.WRITES_ZEROS: "zero_.default",
    Property.COPIES: "clone.default _to_copy.default",
    Property.COPIES_INTO: "copy_.default",
    Property.LIFTS: "lift_fresh.default lift_fresh_copy.default lift.default",
    Property.ALIASES_UNDECLARED: "_unsafe_view.default",
    Property.READS_NO_DATA: """
        _fused_sdp_choice.default is_same_size.default is_pinned.default
        _assert_tensor_metadata.default""",
    Property.RESIZES: "resize_.default resize_as_.default",
    Property.LOOKS_UP: "embedding",
    Property.RANKS: "sort topk",
    Property.INDEXES_UNCHECKED: "_unsafe_index _unsafe_masked_index",
    Property.BREAKS_ITS_LIBRARY: """
        _linalg_eigh _linalg_eigvals linalg_eig linalg_eigvals _linalg_svd linalg_lstsq""",
    Property.SEPARABLE: "convolution_backward",
    Property.MOVES_MEMORY: "_to_copy copy copy_ device_put _copy",
    Property.TAKES_FROM_HOST: """
        _unsafe_index _unsafe_index_put copy copy_ index index_put select_scatter slice_scatter""",
    Property.SHAPED_BY_MASKS: "index",
    Property.LENDS_GENERATOR: "graphsafe_run_with_rng_state run_and_save_rng_state "
    "run_with_rng_state",
    Property.SPLITS_BY_TABLE: "split_with_sizes_copy",
    Property.JOINS_BY_TABLE: "_chunk_cat chunk_cat",
    Property.CALLS_OTHERS: "all_gather_copy_in",
    Property.CONTROL_FLOW: "cond while_loop scan",
}
HIGHER_ORDER = {
    name
    for that in (Property.CONTROL_FLOW, Property.LENDS_GENERATOR)
    for name in WANTED[that].split()
}
OF_FSDP = {"all_gather_copy_in", "chunk_cat"}
ELSEWHERE = {"_copy", "bias_addmm"} | HIGHER_ORDER | OF_FSDP
#: What names an operator outside of the room, and not for a fact about it: a plan answers for these
#: in its tensors' place, the twin records each of these in a way of its own, and passes put them
#: into graphs, or other code in their place.
NAMED_ELSEWHERE = {
    "frontends/compile/parts.py": {"device_put"},
    "transform/bring.py": {"convert_element_type", "select"},
    "transform/count.py": {
        *("add", "div", "full", "index", "index_put", "mul", "neg", "scalar_tensor", "select"),
        *("select_scatter", "squeeze", "sub", "unsqueeze", "view"),
    },
    "transform/expression.py": {
        *("add", "div", "full", "mul", "neg", "pow", "reciprocal", "sqrt", "sub", "true_divide"),
    },
    "transform/fetch.py": {"clone"},
    "transform/fold.py": {"full", "lift_fresh", "view"},
    "transform/predicate.py": {"cond", "view", "where"},
    "planning/fake.py": {"_local_scalar_dense", "index", "masked_select", "new_empty", "nonzero"},
    "twin/generator_state.py": set(WANTED[Property.LENDS_GENERATOR].split()),
}
TORCH = re.compile(r"(?:\baten|torch\.ops\.(?!pygraph_twin\.)\w+)\.(\w+)")


@pytest.mark.parametrize("that", Property)
def test_a_property_is_had_by_these_operators_and_no_others(that: Property) -> None:
    assert operators(that) == set(WANTED[that].split())


def test_an_operator_that_keeps_values_addresses_by_shape() -> None:
    assert operators(Property.KEEPS_VALUES) < operators(Property.ADDRESSES_BY_SHAPE)


def test_a_fact_has_a_source_and_stands_once() -> None:
    seen: set[tuple[Property, str]] = set()
    for fact in table.TABLE:
        assert fact.source
        pairs = {(that, name) for that in fact.properties for name in fact.operators}
        assert pairs and not pairs & seen
        seen |= pairs


def test_the_names_are_those_of_torch() -> None:
    named = {name for fact in table.TABLE for name in fact.operators} - ELSEWHERE
    assert all(hasattr(torch.ops.higher_order, name) for name in HIGHER_ORDER)
    assert all(hasattr(torch.ops.fsdp, name) for name in OF_FSDP)
    spaces = (torch.ops.aten, torch.ops.prims)
    assert [name for name in named if not any(has(space, name) for space in spaces)] == []
    assert all(has(torch.ops.aten, name) for name in table.UNDECLARED_WRITES)


def has(space: Any, name: str) -> bool:
    packet, _, overload = name.partition(".")
    return hasattr(space, packet) and (not overload or hasattr(getattr(space, packet), overload))


def overloads() -> Iterator[Any]:
    """All of ATen's."""
    names = (name.partition("::") for name in torch._C._dispatch_get_all_op_names())
    packets = {name.partition(".")[0] for space, _, name in names if space == "aten"}
    for packet in (getattr(torch.ops.aten, name, None) for name in sorted(packets)):
        if packet is not None:
            yield from (getattr(packet, each) for each in packet.overloads())


def test_an_overload_may_stand_alone() -> None:
    aten = torch.ops.aten
    assert known(aten.view.dtype, Property.KEEPS_BITS)
    assert not known(aten.view.default, Property.KEEPS_BITS)
    assert known(aten.view.dtype, Property.KEEPS_VALUES)  # as all of its packet's
    assert not known(aten.zeros.out, Property.MAKES_ZEROS)
    assert not known(torch.ops.prims.device_put.default, Property.MOVES_MEMORY)
    assert known(torch.ops.prims.device_put.default, Property.MOVES_MEMORY, None)


def test_states_and_offsets_have_these_names_in_schemas() -> None:
    """What other torches call otherwise would be missed."""
    for each in overloads():
        results = {result.name for result in each._schema.returns}
        state = results & table.STATES and table.DROPOUT in parameters(each)
        other = each.overloadpacket.__name__ == "_scaled_dot_product_fused_attention_overrideable"
        assert known(each, Property.RETURNS_STATE) == bool(state and not other)
        counts = table.STORAGE_OFFSET in parameters(each)
        sets = each.overloadpacket.__name__ in ("set", "set_")  # of another tensor's storage
        assert known(each, Property.COUNTS_FROM_STORAGE) == (counts and not sets)


@pytest.mark.parametrize("name", table.UNDECLARED_WRITES)
def test_undeclared_writes_are_not_in_the_schema(name: str) -> None:
    packet, _, overload = name.partition(".")
    schema = getattr(getattr(torch.ops.aten, packet), overload)._schema
    arguments = {argument.name: argument for argument in schema.arguments}
    names, condition = table.UNDECLARED_WRITES[name]
    assert all(arguments[each].alias_info is None for each in names)
    assert condition is None or str(arguments[condition].type) == "bool"


def test_statistics_that_a_batch_norm_writes() -> None:
    """One that runs on the CPU, and is told by what it does."""
    x, mean, var = torch.randn(4, 3), torch.zeros(3), torch.ones(3)
    target = torch.ops.aten.batch_norm_update_stats.default
    found = written(target, (x, mean, var, 0.1), {})
    assert [each is mean or each is var for each in found] == [True, True]
    before = mean.clone()
    target(x, mean, var, 0.1)
    assert not torch.equal(mean, before)
    training = torch.ops.aten.native_batch_norm.default
    arguments = (x, None, None, mean, var)
    assert len(written(training, (*arguments, True, 0.1, 1e-5), {})) == 2
    assert written(training, (*arguments, False, 0.1, 1e-5), {}) == []


def test_what_is_separable_has_a_condition() -> None:
    assert set(table.SEPARABLE_IF) == operators(Property.SEPARABLE)
    named = {name for each in table.SEPARABLE_IF.values() for name in each.libraries}
    assert named <= set(torch._C._ConvBackend.__members__)


def named_in(code: str) -> set[str]:
    """Operators that a module names: as torch.ops has them, by a string of that form, or by one
    that is a name in the table and no word."""
    tree = ast.parse(code)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    names = {name for fact in table.TABLE for name in fact.operators}
    names |= {name.partition(".")[0] for name in names}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (match := TORCH.fullmatch(ast.unparse(node))):
            found.add(match[1])
        elif isinstance(node, ast.Constant) and id(node) not in prose:
            text = str(node.value)
            found.update(TORCH.findall(text))
            found.update({text} if text in names and re.search(r"[_.]", text) else ())
    return found


@pytest.mark.parametrize(
    "code",
    [
        "torch.ops.aten.mm.default",
        "func is aten.mm.default",
        "'aten.mm' in source",
        "{'torch.ops.aten.mm'}",
        "f'aten.mm{overload}'",
        "name == 'convolution_backward'",
        "name == 'view.dtype'",
    ],
)
def test_an_operator_is_seen(code: str) -> None:
    assert named_in(code)


def test_what_names_no_operator_is_not_seen() -> None:
    code = "\"'aten.mm' is one.\"\nmode = 'copy'\nf'aten.{name}'\ntorch.ops.pygraph_twin.state"
    assert named_in(code) == set()


def test_facts_about_operators_stand_in_one_room() -> None:
    package = Path(pygraph.__file__).parent
    modules = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    found = {
        name: named_in(path.read_text())
        for name, path in modules.items()
        if not name.startswith(("operators/", "torch_private/"))
    }
    assert {name: named for name, named in found.items() if named} == NAMED_ELSEWHERE


def test_what_arguments_are_called() -> None:
    assert {"philox_seed", "philox_offset", "rng_state"} == table.SEEDS
    assert table.SEEDS | {"unused"} == table.STATES
    assert table.DROPOUT == "dropout_p"
    assert {"dropout_p", "train", "training"} == table.DRAWS_IF
    assert {"_c10d_functional", "c10d_functional", "c10d", "symm_mem"} < table.COLLECTIVES


def test_the_table_is_read_without_torch() -> None:
    code = "import sys; import pygraph.operators.table; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
