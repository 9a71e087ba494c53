"""What is known of a Triton kernel of Inductor's generated code, read from its text.

Only forms that are known here tell anything. An index that comes from data is checked by the kernel
itself (`tl.device_assert`), so what it must be below stands in the text, as does where the value
was loaded from. A search for an extreme value (argmax) puts a place behind one of the kernel's
pointers that exists, whatever is searched.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from typing import Any, cast

#: In the text of a kernel that checks an index: Triton's has both, C++'s the second.
CHECKS = ("device_assert", "index out of bounds")
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


def note_least(found: dict[Any, int], what: Any, below: int) -> None:
    found[what] = min(below, found.get(what, below))


class UnknownCodeError(Exception):
    """Code of a form that is not known here."""


def kernels_of(tree: ast.Module) -> Iterable[tuple[str, str, int]]:
    """Name, text, and the line that the name stands in."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            call, target = node.value, node.targets[0]
            if ast.unparse(call.func) == "async_compile.triton":
                text = call.args[1] if len(call.args) > 1 else None
                if not isinstance(target, ast.Name) or not isinstance(text, ast.Constant):
                    raise UnknownCodeError
                yield target.id, str(text.value), node.lineno


class TritonKernel:
    """A Triton kernel: what values behind its pointers are checked against."""

    def __init__(self, text: str) -> None:
        functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
        functions = [each for each in functions if not _only_combines(each)]
        if len(functions) != 1:
            raise UnknownCodeError
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
                note_least(self.bounds, pointer, below)

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
            raise UnknownCodeError
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
            raise UnknownCodeError
        if base.id not in self.parameters or base.id in self._values:
            raise UnknownCodeError
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
                    raise UnknownCodeError
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


def searching_kernel(text: str) -> TritonKernel | None:
    """A kernel that looks for the place of an extreme value; none where it is not known."""
    if not any(map(text.count, _SEARCHES)):
        return None
    try:
        return TritonKernel(text)
    except (SyntaxError, UnknownCodeError, RecursionError):
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
            for name in names_in(target):
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


def names_in(target: ast.expr) -> list[str]:
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
    raise UnknownCodeError
