"""Private names of torch: one room has them, this torch has each, and what it lacks is named."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import pygraph
from pygraph.torch_private import names

PACKAGE = Path(pygraph.__file__).parent
ROOM = PACKAGE / "torch_private"
MODULES = sorted(path.stem for path in ROOM.glob("*.py") if path.stem != "__init__")
LOOKUPS = ("private", "bound", "place")
BY_STRING = {
    "__import__",
    "attrgetter",
    "delattr",
    "find_spec",
    "getattr",
    "getattr_static",
    "hasattr",
    "import_module",
    "resolve_name",
    "setattr",
}
#: What torch does not promise either, though it has no underscore.
WITHOUT_UNDERSCORE = {
    "accumulated_recompile_limit",
    "assert_indirect_indexing",
    "cache_size_limit",
    "compile_subgraph_reason",
    "compile_wrapper",
    "cudagraph_fail_reasons",
    "cudagraph_info",
    "cudagraph_policy",
    "disabled_cudagraphs_reason",
    "dynamo_ctx",
    "enter_exit_hooks",
    "eval_frame",
    "fw_metadata",
    "graph_break",
    "graph_break_reasons",
    "inner_exception",
    "input_index_mapping",
    "input_info",
    "is_rng_op_functionalized",
    "mutates_data",
    "mutates_metadata",
    "mutated_inp_runtime_indices",
    "num_forward_returns",
    "num_intermediate_bases",
    "num_symints_saved_for_bw",
    "output_index_mapping",
    "output_info",
    "output_type",
    "partition_maps",
    "recompile_limit",
    "recompile_reason",
    "static_input_indices",
    "user_stack",
}
#: Whose private attributes are their own.
OWN = {"self", "cls", "sys"}
#: What PyGraph sets on an object of torch's, an operator, whose names are public, and what code of
#: Inductor's is read for.
ALLOWED = {"_pygraph_hook", "_local_scalar_dense", "_DeviceGuard"}
#: A whole text that is a name of torch's.
NAME = re.compile(r"torch([.:]\w+)+")
#: How the room itself may write a name: a mark that others read.
IN_ROOM = {"_boxed_call"}


def is_private(name: str) -> bool:
    hidden = name.startswith("_") and not name.startswith("__")
    return hidden or name in WITHOUT_UNDERSCORE


def is_of_torch(module: str) -> bool:
    return module.split(".")[0] == "torch"


def is_call_of_method(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(f".{name}")


def used(code: str, allowed: set[str], in_room: bool = False) -> Iterator[str]:
    """The private names of torch in a module: attributes of what is not the module's own, imports,
    and attributes that are named by a string or set on a class. In the room, a text that is such a
    name is looked up."""
    for node in ast.walk(ast.parse(code)):
        found: list[str] = []
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            own = isinstance(node.value, ast.Name) and node.value.id in OWN
            found = [] if own else [node.attr]
        elif isinstance(node, ast.ImportFrom) and is_of_torch(node.module or ""):
            found = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names if is_of_torch(alias.name)]
            found = [part for name in imported for part in name.split(".")]
        elif not in_room and isinstance(node, ast.Constant) and NAME.fullmatch(str(node.value)):
            found = re.split("[.:]", str(node.value))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in BY_STRING:
            texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
            found = [part for text in texts if isinstance(text, str) for part in text.split(".")]
        elif isinstance(node, ast.Name) and node.id == "_boxed_call":
            found = [node.id]
        elif isinstance(node, ast.Compare) or is_call_of_method(node, "endswith"):
            texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            found = [Path(text).stem for text in texts if isinstance(text, str)]
            found = [name for name in found if name in WITHOUT_UNDERSCORE]
        yield from (name for name in found if is_private(name) and name not in allowed)


@pytest.mark.parametrize(
    "code",
    [
        "torch._C._conj",
        "tensor._version",
        "from torch._inductor import config",
        "from torch.utils._pytree import tree_map",
        "from torch.fx.graph import _BoxedCodeGen",
        "import torch._dynamo",
        "getattr(target, '_opname', None)",
        "importlib.import_module('torch._dynamo')",
        "import_module('torch._dynamo')",
        "sys.modules['torch._dynamo']",
        "operator.attrgetter('_version')(tensor)",
        "name = 'torch._dynamo.config'",
        "class Callee:\n    _boxed_call = True",
        "context.enter_exit_hooks",
        "frame.f_code.co_name == 'compile_wrapper'",
        "file.endswith('torch/_dynamo/eval_frame.py')",
    ],
)
def test_a_private_name_is_seen(code: str) -> None:
    assert list(used(code, ALLOWED))


def test_private_names_are_used_in_one_room() -> None:
    found = {}
    in_room = (
        IN_ROOM | WITHOUT_UNDERSCORE | {"_compiled_call_impl", "_orig_mod", "_schema", "_opname"}
    )
    for path in PACKAGE.rglob("*.py"):
        inside = path.parent == ROOM
        allowed = ALLOWED | in_room if inside else ALLOWED
        found[str(path.relative_to(PACKAGE))] = list(used(path.read_text(), allowed, inside))
    assert {path: private for path, private in found.items() if private} == {}


def test_only_the_room_looks_names_up() -> None:
    importing = {
        path
        for path in PACKAGE.rglob("*.py")
        if re.search(r"torch_private(\.names| import .*\bnames\b)", path.read_text())
    }
    assert {path.parent for path in importing} == {ROOM}


def looked_up() -> list[str]:
    """The names that the room looks up."""
    calls = [
        node
        for path in ROOM.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in LOOKUPS
    ]
    texts = [call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)]
    return sorted({text for text in texts if isinstance(text, str)})


def of_cuda_builds(name: str) -> bool:
    return name.startswith("torch._C:_cuda_")


@pytest.mark.parametrize("name", looked_up())
def test_this_torch_has_the_name(name: str) -> None:
    if of_cuda_builds(name) and torch.version.cuda is None:
        pytest.skip("a name of torch's builds for CUDA")
    names.private(name)


@pytest.mark.parametrize("module", MODULES)
def test_nothing_of_the_room_is_a_stand_in(module: str) -> None:
    """Attributes, too, which are tried on a sample."""
    absent = [
        name
        for name, value in vars(importlib.import_module(f"pygraph.torch_private.{module}")).items()
        if isinstance(value, type) and issubclass(value, names.Absent) and value is not names.Absent
    ]
    if module == "cuda" and torch.version.cuda is None:
        absent = sorted(set(absent) - {"is_history_enabled", "clear_cublas_workspaces"})
    assert absent == []


VERSION = re.escape(torch.__version__)
GONE = rf"torch {VERSION} found, which lacks torch\._C\._gone; PyGraph needs torch 2"


def test_a_name_that_is_gone_is_named() -> None:
    with pytest.raises(names.Missing, match=GONE):
        names.private("torch._C:_gone")
    with pytest.raises(names.Missing, match=GONE):
        names.place("torch._C:_gone")
    with pytest.raises(names.Missing, match=r"lacks torch\._gone\.name;"):
        names.private("torch._gone:name")


def test_what_stands_in_for_a_bound_name_tells_when_it_is_used() -> None:
    gone = names.bound("torch._C:_gone")

    class Derived(gone):  # type: ignore[misc, valid-type]
        pass

    assert not isinstance(torch.ones(1), gone)
    for call in (gone, Derived):
        with pytest.raises(names.Missing, match=GONE):
            call(1, key=2)
    with pytest.raises(names.Missing, match=r"lacks Tensor\._gone;"):
        names.attribute("_gone", torch.Tensor)(torch.ones(1))


def test_a_place_is_an_owner_and_a_name() -> None:
    assert names.place("torch.utils._pytree:tree_map") == (torch.utils._pytree, "tree_map")
    assert names.place("torch.nn:Module.forward") == (torch.nn.Module, "forward")
