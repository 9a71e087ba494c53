"""Which arguments of a compiled graph are indices, and what they must be below.

A kernel that indexes by data checks each index on the GPU, and a check that fails ends the process.
Whoever launches a graph on a guess has to know before what those checks will find
(speculation.py). So each check is followed back to where its value was loaded from. That may be an
argument of the graph: then the host can look. Or it may be what an argmax or a topk has put into a
buffer: those are below the size of what was searched, whatever is in it. A value that no load leads
to is the same in every call. Anything else, and any form of code that is not known here, means that
the graph waits for the guards.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

import torch

from pygraph.frontends.compile.triton_text import (
    CHECKS,
    TritonKernel,
    UnknownCodeError,
    kernels_of,
    names_in,
    note_least,
    searching_kernel,
)
from pygraph.operators.known import known
from pygraph.operators.table import Property, operators
from pygraph.torch_private.dispatch import overload_name


def of_source(
    source: str, called: str = "call", tree: ast.Module | None = None
) -> dict[int, int] | None:
    """Of a function of Inductor's generated code: what the values of its arguments must be below,
    and not below 0, by number. None: it indexes by something else. Under CUDA Graphs the function
    is a partition, also where one is all there is (torch/_inductor/scheduler.py). `tree`: the same
    code, parsed, if it is there already."""
    if not any(check in source for check in CHECKS):
        return {}
    try:
        tree = tree or ast.parse(source)
        texts = {name: text for name, text, _ in kernels_of(tree)}
        kernels = {name: TritonKernel(text) for name, text in texts.items() if CHECKS[0] in text}
    except (SyntaxError, UnknownCodeError, RecursionError):
        return None
    messages = sum(kernel.messages for kernel in kernels.values())
    if sum(map(source.count, CHECKS)) != messages:
        return None
    checking = {name: kernel for name, kernel in kernels.items() if kernel.bounds}
    counting = operators(Property.COUNTS_FROM_STORAGE)
    if checking and any(f"aten.{name}" in source for name in counting):
        return None  # a kernel may load what is in an argument's memory, and not in the argument
    if not checking:
        return {}
    searching = {
        name: searching_kernel(text) for name, text in texts.items() if name not in kernels
    }
    return _of_calls(tree, called, kernels | {k: v for k, v in searching.items() if v})


def checks_what_it_must(source: str, tree: ast.Module) -> bool:
    """Whether generated code checks all indices that come from data. Inductor leaves the check out
    for some operators (Property.INDEXES_UNCHECKED), of which it says in front of a kernel that they
    are in it: what such a kernel loads must be part of no address."""
    unchecked = [f"aten.{name}" for name in operators(Property.INDEXES_UNCHECKED)]
    if not any(map(source.count, unchecked)):
        return True
    lines = source.splitlines()
    try:
        for _, text, line in kernels_of(tree):
            said = _said_above(lines, line)
            if "Original ATen" not in said or any(map(said.count, unchecked)):
                TritonKernel(text).require_addresses_without_load()
    except (SyntaxError, UnknownCodeError, RecursionError):
        return False
    return True


def _said_above(lines: list[str], line: int) -> str:
    """The comment that ends in front of a line, which is counted from 1."""
    first = line - 1
    while first > 0 and lines[first - 1].startswith("#"):
        first -= 1
    return "\n".join(lines[first : line - 1])


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
        note_least(found, arguments.index(index), rows)
    return found


def looks_up(target: Any) -> bool:
    return known(target, Property.LOOKS_UP) and overload_name(target) == "default"


def _keeps_values(target: Any) -> bool:
    return known(target, Property.KEEPS_VALUES) and not known(target, Property.KEEPS_BITS)


# ------------------------------------------------------------------ its calls


def functions_in(tree: ast.Module) -> list[ast.FunctionDef]:
    """Those of generated code, and of its classes."""
    classes = (each.body for each in tree.body if isinstance(each, ast.ClassDef))
    bodies = [tree.body, *classes]
    return [each for body in bodies for each in body if isinstance(each, ast.FunctionDef)]


def _of_calls(
    tree: ast.Module, called: str, kernels: dict[str, TritonKernel]
) -> dict[int, int] | None:
    functions = functions_in(tree)
    calls = [each for each in functions if each.name == called]
    partitioned = any(each.name.startswith("partition_") for each in functions)
    if len(calls) != 1 or (partitioned and called == "call"):
        return None
    statements = [_Statement(each) for each in _in_order(calls[0].body)]
    arguments = _arguments(statements)
    found: dict[int, int] = {}
    buffers = _Buffers(kernels)
    for statement in statements:
        if statement.decides:
            buffers.pass_by(statement)
        for kernel, call in statement.launches_of(kernels):
            for pointer, below in kernel.bounds.items():
                given = _given(call, kernel.parameters.index(pointer))
                if given in arguments:
                    note_least(found, arguments[given], below)
                elif buffers.below.get(given, below + 1) > below:
                    return None
        buffers.pass_by(statement)
    return found


def _in_order(body: list[ast.stmt]) -> Iterable[ast.stmt]:
    for each in body:
        yield from _in_order(each.body) if isinstance(each, ast.With) else (each,)


class _Statement:
    """One of generated code; a loop and what is in it are one."""

    def __init__(self, code: ast.stmt) -> None:
        self.code = code
        self.decides = not isinstance(code, (ast.Assign, ast.Delete, ast.Expr, ast.Return))
        self.nodes = list(ast.walk(code))

    def launches_of(self, kernels: dict[str, TritonKernel]) -> list[tuple[TritonKernel, ast.Call]]:
        calls = (node for node in self.nodes if isinstance(node, ast.Call))
        return [(kernels[_runs(call)], call) for call in calls if _runs(call) in kernels]


def _runs(call: ast.Call) -> str:
    """The name of the kernel that is launched."""
    match call.func:
        case ast.Attribute(ast.Name(kernel), "run"):
            return kernel
    return ""


def _given(call: ast.Call, position: int) -> str:
    """The name of what is given for a parameter, if it has one."""
    value = call.args[position] if position < len(call.args) else None
    return value.id if isinstance(value, ast.Name) else ""


class _Buffers:
    """Which buffers hold nothing but places, while generated code is read in its order. One is
    forgotten with the first statement that may do anything but read it."""

    def __init__(self, kernels: dict[str, TritonKernel]) -> None:
        self._kernels = kernels
        self._new: set[str] = set()  #: memory that nothing was done with
        self._results: dict[str, int] = {}  #: of operators; their second is such a buffer
        self._sizes: dict[str, int] = {}  #: the largest of a tensor's
        self.below: dict[str, int] = {}  #: what the places in it are below

    def pass_by(self, statement: _Statement) -> None:
        new, results, below = self._made_by(statement.code)
        for name in {node.id for node in statement.nodes if isinstance(node, ast.Name)}:
            if not self._only_reads(statement, name):
                self._new.discard(name)
                self._results.pop(name, None)
                self.below.pop(name, None)
            if isinstance(statement.code, ast.Assign):
                self._sizes.pop(name, None)
        self._new |= new
        self._results |= results
        self.below |= below
        self._note_sizes(statement.code)

    def _made_by(self, statement: ast.stmt) -> tuple[set[str], dict[str, int], dict[str, int]]:
        match statement:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Name("empty_strided_cuda"))):
                return {name}, {}, {}
            case ast.Assign([ast.Name(name)], ast.Call(operator, [searched, *_])):
                size = self._largest_size(searched) if _ranks(operator) else None
                return set(), {} if size is None else {name: size}, {}
            case ast.Assign([ast.Name(name)], ast.Subscript(ast.Name(results), ast.Constant(1))):
                return set(), {}, {name: self._results[results]} if results in self._results else {}
            case ast.Expr(ast.Call() as call) if kernel := self._kernels.get(_runs(call)):
                put = {
                    _given(call, kernel.parameters.index(pointer)): below
                    for pointer, below in kernel.places.items()
                }
                return set(), {}, {n: below for n, below in put.items() if n in self._new}
        return set(), {}, {}

    def _note_sizes(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(
                [ast.Name(name)], ast.Call(ast.Name("empty_strided_cuda"), [sizes, *_])
            ):
                pass
            case ast.Expr(ast.Call(ast.Name("assert_size_stride"), [ast.Name(name), sizes, *_])):
                pass
            case _:
                return
        if (size := _largest(sizes)) is not None:
            self._sizes[name] = size

    def _largest_size(self, tensor: ast.expr) -> int | None:
        """As far as the code says: no place along any of its dimensions is above that."""
        match tensor:
            case ast.Name(name):
                return self._sizes.get(name)
            case ast.Call(ast.Name("reinterpret_tensor"), [_, sizes, *_]):
                return _largest(sizes)
        return None

    def _only_reads(self, statement: _Statement, name: str) -> bool:
        match statement.code:
            case ast.Expr(ast.Call(ast.Name(called))):
                return called in ("assert_alignment", "assert_size_stride")
            case ast.Assign([ast.Name(other)], ast.Subscript(ast.Name(), ast.Constant())):
                return other != name
            case ast.Expr(ast.Call() as call) if kernel := self._kernels.get(_runs(call)):
                read = [
                    value
                    for parameter, value in zip(kernel.parameters, call.args, strict=False)
                    if parameter.startswith("in_ptr")
                ]
                used = [node for node in statement.nodes if _is_name(node, name)]
                return all(any(node is each for each in read) for node in used)
        return False


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _ranks(operator: ast.expr) -> bool:
    match operator:
        case ast.Attribute(ast.Attribute(library, packet), "default"):
            return ast.unparse(library) == "torch.ops.aten" and packet in operators(Property.RANKS)
    return False


def _largest(sizes: ast.expr) -> int | None:
    elements = sizes.elts if isinstance(sizes, ast.Tuple) else []
    known = [each.value for each in elements if isinstance(each, ast.Constant)]
    whole = [each for each in known if type(each) is int]
    return max(whole, default=None) if len(whole) == len(elements) else None


def _arguments(statements: list[_Statement]) -> dict[str, int]:
    """The arguments' names, by number; those that become something else are left out."""
    found: dict[str, int] = {}
    changed: set[str] = set()
    for node in (node for statement in statements for node in statement.nodes):
        match node:
            case ast.Assign([ast.Tuple() as names], ast.Name("args")):
                found |= {name: number for number, name in enumerate(names_in(names))}
            case ast.Assign(
                [ast.Name(name)], ast.Call(ast.Name("copy_if_misaligned"), [ast.Name(same)])
            ) if name == same:
                pass
            case ast.Assign(targets):
                changed |= {name for target in targets for name in names_in(target)}
            case ast.AugAssign(target) | ast.NamedExpr(target) | ast.For(target):
                changed |= set(names_in(target))
    return {name: number for name, number in found.items() if name not in changed}
