"""Which arguments of a compiled graph are indices, and what they must be below.

A kernel that indexes by data checks each index on the GPU, and a check that fails ends the process.
Whoever launches a graph on a guess has to know before what those checks will find
(speculation.py). So each check is followed back to where its value was loaded from, which must be
an argument of the graph: then the host can look. A value that no load leads to is the same in every
call. Anything else, and any form of code that is not known here, means that the graph waits for the
guards.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any, cast

import torch

from pygraph.operators.known import known
from pygraph.operators.table import Property, operators
from pygraph.torch_private.dispatch import overload_name

#: In the text of a kernel that checks an index: Triton's has both, C++'s the second.
_CHECKS = ("device_assert", "index out of bounds")
_NOTHING = ""  #: where a value comes from that no load leads to
_CASTS = ("tl.int32", "tl.int64")
_MODULES = {"libdevice", "tl", "tl_math", "triton_helpers"}


def of_source(
    source: str, called: str = "call", tree: ast.Module | None = None
) -> dict[int, int] | None:
    """Of a function of Inductor's generated code: what the values of its arguments must be below,
    and not below 0, by number. None: it indexes by something else. Under CUDA Graphs the function
    is a partition, also where one is all there is (torch/_inductor/scheduler.py). `tree`: the same
    code, parsed, if it is there already."""
    if not any(check in source for check in _CHECKS):
        return {}
    try:
        tree = tree or ast.parse(source)
        kernels = {name: _Kernel(text) for name, text in _kernels(tree) if _CHECKS[0] in text}
    except (SyntaxError, _UnknownCodeError, RecursionError):
        return None
    messages = sum(kernel.messages for kernel in kernels.values())
    if sum(map(source.count, _CHECKS)) != messages:
        return None
    checking = {name: kernel for name, kernel in kernels.items() if kernel.bounds}
    counting = operators(Property.COUNTS_FROM_STORAGE)
    if checking and any(f"aten.{name}" in source for name in counting):
        return None  # a kernel may load what is in an argument's memory, and not in the argument
    return _of_calls(tree, called, checking) if checking else {}


def of_graph(graph: torch.fx.Graph) -> dict[int, int] | None:
    """Of operators: the same. Only those that look up rows index; others are not looked at."""
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    found: dict[int, int] = {}
    for node in graph.nodes:
        if not looks_up(node.target):
            continue
        table, index = node.args[0], node.args[1]
        while index.op == "call_function" and _keeps_values(index.target):
            index = index.args[0]
        if index.op != "placeholder" or "val" not in table.meta:
            return None
        rows = table.meta["val"].shape[0]
        if type(rows) is not int:
            return None
        _note(found, arguments.index(index), rows)
    return found


def looks_up(target: Any) -> bool:
    return known(target, Property.LOOKS_UP) and overload_name(target) == "default"


def _keeps_values(target: Any) -> bool:
    return known(target, Property.KEEPS_VALUES) and not known(target, Property.KEEPS_BITS)


def _note(found: dict[Any, int], what: Any, below: int) -> None:
    found[what] = min(below, found.get(what, below))


# ---------------------------------------------------------------------- one kernel


class _UnknownCodeError(Exception):
    """Code of a form that is not known here."""


def _kernels(tree: ast.Module) -> Iterable[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            call, target = node.value, node.targets[0]
            if ast.unparse(call.func) == "async_compile.triton":
                text = call.args[1] if len(call.args) > 1 else None
                if not isinstance(target, ast.Name) or not isinstance(text, ast.Constant):
                    raise _UnknownCodeError
                yield target.id, str(text.value)


class _Kernel:
    """A Triton kernel: what values behind its pointers are checked against."""

    def __init__(self, text: str) -> None:
        functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
        if len(functions) != 1:
            raise _UnknownCodeError
        (function,) = functions
        given = function.args.args
        self.parameters = [each.arg for each in given]
        self._compile_time = {each.arg for each in given if each.annotation is not None}
        self._values = _values(function)
        self.bounds: dict[str, int] = {}
        checks = [
            node
            for node in ast.walk(function)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.device_assert"
        ]
        #: Each check says its name once, and what it means once.
        self.messages = 2 * len(checks)
        for check in checks:
            value, below = _checked(check.args[0])
            pointer = self._origin(value)
            if pointer == _NOTHING:
                self._require_no_load(check.args[0])  # its mask may come from data
            else:
                _note(self.bounds, pointer, below)

    def _value(self, name: str) -> ast.expr:
        values = self._values.get(name, ())
        value = values[0] if len(values) == 1 else None
        if value is None:
            raise _UnknownCodeError
        return value

    def _origin(self, value: ast.expr) -> str:
        """The pointer that a value was loaded from, as far as it is told by known forms."""
        if isinstance(value, ast.Name) and value.id in self._values:
            return self._origin(self._value(value.id))
        if isinstance(value, ast.Call):
            name = ast.unparse(value.func)
            if name == "tl.broadcast_to":
                return self._origin(value.args[0])
            if _is_cast(value):
                return self._origin(cast(ast.Attribute, value.func).value)
            if name == "tl.load":
                return self._pointer(value.args[0])
            if name == "tl.where" and self._counts_from_the_end(*value.args):
                return self._origin(value.args[2])
        return _NOTHING

    def _pointer(self, address: ast.expr) -> str:
        base = address.left if isinstance(address, ast.BinOp) else address
        added = not isinstance(address, ast.BinOp) or isinstance(address.op, ast.Add)
        if not added or not isinstance(base, ast.Name) or not base.id.startswith("in_ptr"):
            raise _UnknownCodeError
        if base.id not in self.parameters or base.id in self._values:
            raise _UnknownCodeError
        return base.id

    def _counts_from_the_end(self, *arguments: ast.expr) -> bool:
        """Whether it is where(x < 0, x + n, x), which is x for all that is not negative."""
        if len(arguments) != 3 or not all(isinstance(each, ast.Name) for each in arguments):
            return False
        negative, _, plain = (each.id for each in arguments if isinstance(each, ast.Name))
        test = self._value(negative)
        return ast.unparse(test) == f"{plain} < 0"

    def _require_no_load(self, value: ast.expr) -> None:
        """Raises where a name leads to one of the kernel's pointers, or to what is not known."""
        waiting, seen = [value], set(_MODULES | self._compile_time)
        while waiting:
            names = {node.id for node in ast.walk(waiting.pop()) if isinstance(node, ast.Name)}
            waiting += map(self._value, names - seen)
            seen |= names


def _values(function: ast.FunctionDef) -> dict[str, list[ast.expr | None]]:
    """What is assigned to each name; None where it is not told here."""
    found: dict[str, list[ast.expr | None]] = {}
    for node in ast.walk(function):
        targets, value = _assignment(node)
        for target in targets:
            plain = isinstance(target, ast.Name)
            for name in _names(target):
                found.setdefault(name, []).append(value if plain else None)
    return found


def _assignment(node: ast.AST) -> tuple[list[ast.expr], ast.expr | None]:
    """What a node assigns to, and what; None where that is not told here."""
    match node:
        case ast.Assign(targets, value):
            return targets, value
        case ast.AnnAssign(target, _, value):  # as in `RBLOCK: tl.constexpr = 128`
            return [target], value
        case ast.For(target, values):
            return [target], values
        case ast.AugAssign(target) | ast.NamedExpr(target):
            return [target], None
    return [], None


def _is_cast(call: ast.Call) -> bool:
    to = isinstance(call.func, ast.Attribute) and call.func.attr == "to"
    return to and len(call.args) == 1 and not call.keywords and ast.unparse(call.args[0]) in _CASTS


def _names(target: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


def _checked(test: ast.expr) -> tuple[ast.expr, int]:
    """The value and the bound of ((0 <= value) & (value < bound)) | ~(mask), with or without the
    mask."""
    match test:
        case ast.BinOp(left, ast.BitOr(), ast.UnaryOp(ast.Invert())):
            test = left
    match test:
        case ast.BinOp(
            ast.Compare(ast.Constant(0), [ast.LtE()], [value]),
            ast.BitAnd(),
            ast.Compare(same, [ast.Lt()], [ast.Constant(int(below))]),
        ) if ast.unparse(value) == ast.unparse(same):
            return value, below
    raise _UnknownCodeError


# ------------------------------------------------------------------ its calls


def _of_calls(tree: ast.Module, called: str, kernels: dict[str, _Kernel]) -> dict[int, int] | None:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    calls = [each for each in functions if each.name == called]
    partitioned = any(each.name.startswith("partition_") for each in functions)
    if len(calls) != 1 or (partitioned and called == "call"):
        return None
    arguments = _arguments(calls[0])
    found: dict[int, int] = {}
    for node in ast.walk(calls[0]):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        kernel = kernels.get(ast.unparse(node.func.value))
        if kernel is None:
            continue
        for pointer, below in kernel.bounds.items():
            position = kernel.parameters.index(pointer)
            given = node.args[position] if position < len(node.args) else None
            if not isinstance(given, ast.Name) or given.id not in arguments:
                return None
            _note(found, arguments[given.id], below)
    return found


def _arguments(call: ast.FunctionDef) -> dict[str, int]:
    """The arguments' names, by number; those that become something else are left out."""
    found: dict[str, int] = {}
    changed: set[str] = set()
    for node in ast.walk(call):
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            names = _names(target)
            if isinstance(target, ast.Tuple) and ast.unparse(node.value) == "args":
                found |= {name: number for number, name in enumerate(names)}
            elif ast.unparse(node.value) != f"copy_if_misaligned({ast.unparse(target)})":
                changed |= set(names)
        elif isinstance(node, (ast.AugAssign, ast.NamedExpr, ast.For)):
            changed |= set(_names(node.target))
    return {name: number for name, number in found.items() if name not in changed}
