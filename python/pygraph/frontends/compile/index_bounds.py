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
from collections.abc import Collection, Iterable
from typing import Any, cast

import torch

from pygraph.operators.known import known
from pygraph.operators.table import Property, operators
from pygraph.torch_private.dispatch import overload_name

#: In the text of a kernel that checks an index: Triton's has both, C++'s the second.
_CHECKS = ("device_assert", "index out of bounds")
#: What looks for the place of an extreme value.
_SEARCHES = ("triton_helpers.max_with_index", "triton_helpers.min_with_index")
#: What Inductor calls functions of a kernel's that scans and reductions combine two values by.
_COMBINES = "_triton_helper_fn"
_NOTHING = ""  #: where a value comes from that no load leads to
_NONE = ast.Constant(None)
_CASTS = ("tl.int32", "tl.int64")
#: Inductor's argmax of floats hands its result over as one. fp32 has all integers up to here.
_CASTS_OF_PLACES = (*_CASTS, "tl.float32")
_LAST_PLACE = 1 << 24
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
        texts = {name: text for name, text, _ in _kernels(tree)}
        kernels = {name: _Kernel(text) for name, text in texts.items() if _CHECKS[0] in text}
    except (SyntaxError, _UnknownCodeError, RecursionError):
        return None
    messages = sum(kernel.messages for kernel in kernels.values())
    if sum(map(source.count, _CHECKS)) != messages:
        return None
    checking = {name: kernel for name, kernel in kernels.items() if kernel.bounds}
    counting = operators(Property.COUNTS_FROM_STORAGE)
    if checking and any(f"aten.{name}" in source for name in counting):
        return None  # a kernel may load what is in an argument's memory, and not in the argument
    if not checking:
        return {}
    searching = {name: _searching(text) for name, text in texts.items() if name not in kernels}
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
        for _, text, line in _kernels(tree):
            said = _said_above(lines, line)
            if "Original ATen" not in said or any(map(said.count, unchecked)):
                _Kernel(text).require_addresses_without_load()
    except (SyntaxError, _UnknownCodeError, RecursionError):
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


def _kernels(tree: ast.Module) -> Iterable[tuple[str, str, int]]:
    """Name, text, and the line that the name stands in."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            call, target = node.value, node.targets[0]
            if ast.unparse(call.func) == "async_compile.triton":
                text = call.args[1] if len(call.args) > 1 else None
                if not isinstance(target, ast.Name) or not isinstance(text, ast.Constant):
                    raise _UnknownCodeError
                yield target.id, str(text.value), node.lineno


class _Kernel:
    """A Triton kernel: what values behind its pointers are checked against."""

    def __init__(self, text: str) -> None:
        functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
        functions = [each for each in functions if not _only_combines(each)]
        if len(functions) != 1:
            raise _UnknownCodeError
        (function,) = functions
        nodes = list(ast.walk(function))
        self._calls = [node for node in nodes if isinstance(node, ast.Call)]
        given = function.args.args
        self.parameters = [each.arg for each in given]
        self._compile_time = {each.arg for each in given if each.annotation is not None}
        self._values = _values(nodes)
        self._searches = _searches(nodes)
        self.places = self._places() if self._searches else {}
        self.bounds: dict[str, int] = {}
        checks = [each for each in self._calls if _tritons(each) == "device_assert"]
        #: Each check says its name once, and what it means once.
        self.messages = 2 * len(checks)
        for check in checks:
            value, below = _checked(check.args[0])
            pointer = self._origin(value)
            if pointer == _NOTHING:
                self._require_no_load(check.args[0])  # its mask may come from data
            else:
                _note(self.bounds, pointer, below)

    def _places(self) -> dict[str, int]:
        """The pointers behind which it puts nothing but places of extreme values, and what those
        are below."""
        found: dict[str, int | None] = {}
        for call in (each for each in self._calls if _writes(each)):
            pointer, below = self._base(call.args[0]), self._below(call.args[1])
            found[pointer] = below if pointer not in found else None
        return {pointer: below for pointer, below in found.items() if below is not None}

    def _below(self, value: ast.expr | None) -> int | None:
        """What a value is below, if it is the place of an extreme value in a block that holds all
        that is searched. (Lanes behind its end have the value that loses, and of equal ones the
        first wins.)"""
        if isinstance(value, ast.Name):
            search = self._searches.get(value.id)
            if search is None:
                return self._below(self._single(value.id, _CASTS_OF_PLACES))
            return self._size_of(search) if len(self._values[value.id]) == 1 else None
        if isinstance(value, ast.Call) and _is_cast(value, _CASTS_OF_PLACES):
            return self._below(cast(ast.Attribute, value.func).value)
        if isinstance(value, ast.Subscript) and ast.unparse(value.slice) == "(:, None)":
            return self._below(value.value)
        return None

    def _size_of(self, search: ast.Call) -> int | None:
        names = ast.unparse(search.args[1]), "rindex", "r0_index", "r0_numel"
        places, index, block, size = (ast.unparse(self._single(each) or _NONE) for each in names)
        whole = index == "r0_index" and block == "tl.arange(0, R0_BLOCK)[None, :]"
        known = places.startswith("tl.broadcast_to(rindex, ") and whole and size.isdigit()
        return int(size) if known and int(size) <= _LAST_PLACE else None

    def require_addresses_without_load(self) -> None:
        for call in self._calls:
            if _tritons(call) == "load" or _writes(call):
                address = call.args[0]
                self._base(address)
                if isinstance(address, ast.BinOp):
                    self._require_no_load(address.right)

    def _single(self, name: str, casts: Collection[str] = _CASTS) -> ast.expr | None:
        values = [each for each in self._values.get(name, ()) if not _is_cast_of(name, each, casts)]
        return values[0] if len(values) == 1 else None

    def _value(self, name: str) -> ast.expr:
        value = self._single(name)
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
                return self._base(value.args[0], "in_ptr")
            if name == "tl.where" and self._counts_from_the_end(*value.args):
                return self._origin(value.args[2])
        return _NOTHING

    def _base(self, address: ast.expr, kind: str = "") -> str:
        """The pointer of a kind that an address is counted from."""
        base = address.left if isinstance(address, ast.BinOp) else address
        added = not isinstance(address, ast.BinOp) or isinstance(address.op, ast.Add)
        if not added or not isinstance(base, ast.Name) or not base.id.startswith(kind):
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
            for name in names - seen:
                values = self._values.get(name, [None])
                if None in values:
                    raise _UnknownCodeError
                waiting += cast(list[ast.expr], values)
            seen |= names


def _tritons(call: ast.Call) -> str:
    """The function of Triton's language that is called."""
    match call.func:
        case ast.Attribute(ast.Name("tl"), name):
            return name
    return ""


def _writes(call: ast.Call) -> bool:
    return _tritons(call).startswith(("store", "atomic_"))


def _only_combines(function: ast.FunctionDef) -> bool:
    if not function.name.startswith(_COMBINES):
        return False
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    return not any(_tritons(each) in ("load", "device_assert") or _writes(each) for each in calls)


def _searching(text: str) -> _Kernel | None:
    """A kernel that looks for the place of an extreme value; none where it is not known."""
    if not any(map(text.count, _SEARCHES)):
        return None
    try:
        return _Kernel(text)
    except (SyntaxError, _UnknownCodeError, RecursionError):
        return None


def _searches(nodes: Iterable[ast.AST]) -> dict[str, ast.Call]:
    """The names of places of extreme values, and what finds them."""
    found = {}
    for node in nodes:
        match node:
            case ast.Assign([ast.Tuple([ast.Name(), ast.Name(place)])], ast.Call() as call):
                if ast.unparse(call.func) in _SEARCHES:
                    found[place] = call
    return found


def _values(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr | None]]:
    """What is assigned to each name; None where it is not told here."""
    found: dict[str, list[ast.expr | None]] = {}
    for node in nodes:
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


def _is_cast_of(name: str, value: ast.expr | None, casts: Collection[str]) -> bool:
    match value:
        case ast.Call(ast.Attribute(ast.Name(cast_name), _)) as call:
            return cast_name == name and _is_cast(call, casts)
    return False


def _is_cast(call: ast.Call, casts: Collection[str] = _CASTS) -> bool:
    to = isinstance(call.func, ast.Attribute) and call.func.attr == "to"
    return to and len(call.args) == 1 and not call.keywords and ast.unparse(call.args[0]) in casts


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


def functions_in(tree: ast.Module) -> list[ast.FunctionDef]:
    """Those of generated code, and of its classes."""
    classes = (each.body for each in tree.body if isinstance(each, ast.ClassDef))
    bodies = [tree.body, *classes]
    return [each for body in bodies for each in body if isinstance(each, ast.FunctionDef)]


def _of_calls(tree: ast.Module, called: str, kernels: dict[str, _Kernel]) -> dict[int, int] | None:
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
                    _note(found, arguments[given], below)
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

    def launches_of(self, kernels: dict[str, _Kernel]) -> list[tuple[_Kernel, ast.Call]]:
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

    def __init__(self, kernels: dict[str, _Kernel]) -> None:
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
                found |= {name: number for number, name in enumerate(_names(names))}
            case ast.Assign(
                [ast.Name(name)], ast.Call(ast.Name("copy_if_misaligned"), [ast.Name(same)])
            ) if name == same:
                pass
            case ast.Assign(targets):
                changed |= {name for target in targets for name in _names(target)}
            case ast.AugAssign(target) | ast.NamedExpr(target) | ast.For(target):
                changed |= set(_names(target))
    return {name: number for name, number in found.items() if name not in changed}
