"""Whether code that Dynamo has made does nothing but call its graph.

Behind the call it may do whatever the function did besides: append to a list, set an attribute.
A call that goes past that code would leave it out. So the code is followed, instruction by
instruction, with what each leaves on the stack. Only instructions are known here that read, that
make containers of the code's own, that call the graph, once, and that set an attribute of what a
variable of a Python module is to a constant: where the attribute is that already, nothing is left
out. Any other is a reason.
"""

from __future__ import annotations

import dataclasses
import dis
import sys
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from pygraph.torch_private import dynamo


class Set(NamedTuple):
    """An attribute that is set."""

    source: str  #: as guards write it
    owner: Any
    name: str
    value: Any  #: None, or a bool


class Beside(NamedTuple):
    """What code does beside calling its graph."""

    reason: str | None = None  #: None: nothing but what follows
    sets: tuple[Set, ...] = ()


class _Item(NamedTuple):
    """Of the stack, or a local variable."""

    kind: str = "other"
    value: Any = None  #: of a constant, or of `source`
    source: str | None = None  #: of a variable of a Python module, as guards write it


_OTHER, _NULL, _OWN, _GRAPH, _HARMLESS, _FLAG, _SETTER = map(
    _Item, ("other", "null", "own", "graph", "harmless", "flag", "setter")
)
_CONSTANT = "constant"
_NOTHING = {
    "RESUME", "NOP", "CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "PRECALL", "NOT_TAKEN",
    "DELETE_FAST", "MAKE_CELL",
}  # fmt: skip
_LOADS = {
    "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_FAST_LOAD_FAST",
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
}  # fmt: skip
_STORES = {"STORE_FAST", "STORE_FAST_STORE_FAST"}
_READS = {"LOAD_CONST", "LOAD_SMALL_INT", "LOAD_CONST_IMMORTAL", "LOAD_CONST_MORTAL", "LOAD_DEREF"}
#: How many items are taken for each of an instruction's argument, and besides.
_MAKES = {
    "BUILD_TUPLE": (1, 0),
    "BUILD_LIST": (1, 0),
    "BUILD_MAP": (2, 0),
    "BUILD_CONST_KEY_MAP": (1, 1),
}
_ASKS = {
    f"POP_JUMP_{way}IF_{what}"
    for way in ("", "FORWARD_")
    for what in ("TRUE", "FALSE", "NONE", "NOT_NONE")
}
_MOST_WAYS = 16
"""Through the code: two for each condition."""


class _Unknown(Exception):
    """The text says what the code does."""


def beside_graph(code: CodeType, variables: dict[str, Any]) -> Beside:
    """What code that Dynamo has made does beside calling its graph, and making containers of what
    that returns. `variables`: of its module."""
    instructions = list(dis.get_instructions(code))
    number = {each.offset: index for index, each in enumerate(instructions)}
    ways = [_Way()]
    sets: dict[str, Set] = {}
    try:
        for count, way in enumerate(ways):  # which grow
            if count == _MOST_WAYS:
                raise _Unknown("it has many conditions")
            while True:
                each = instructions[way.at]
                if each.opname in ("RETURN_VALUE", "RETURN_CONST"):
                    break
                way.at += 1
                if each.opname in _ASKS:
                    ways.append(way.at_condition(each, number[each.argval]))
                elif each.opname == "JUMP_FORWARD":
                    way.at = number[each.argval]
                else:
                    way.follow(each, variables)
            if way.graphs != 1:
                raise _Unknown(f"it calls {way.graphs} graphs")
            for found in way.sets:
                if sets.setdefault(found.source, found).value is not found.value:
                    raise _Unknown(f"it sets {found.source} to different values")
    except _Unknown as error:
        return Beside(str(error))
    except (IndexError, KeyError):
        return Beside("its instructions cannot be followed")
    return Beside(sets=tuple(sets.values()))


@dataclasses.dataclass
class _Way:
    """One way through the code, as far as it has been followed."""

    at: int = 0
    stack: list[_Item] = dataclasses.field(default_factory=list)
    variables: dict[str, _Item] = dataclasses.field(default_factory=dict)  #: of the frame
    graphs: int = 0
    sets: list[Set] = dataclasses.field(default_factory=list)

    def at_condition(self, each: dis.Instruction, target: int) -> _Way:
        """The other way. What is returned must not depend on it, nor what it asks run anything."""
        if self.stack.pop().kind != _FLAG.kind or self.graphs or target < self.at:
            raise _Unknown(f"it runs {each.opname}")
        return _Way(target, self.stack[:], dict(self.variables))

    def follow(self, each: dis.Instruction, variables: dict[str, Any]) -> None:
        name, argument, stack = each.opname, each.arg or 0, self.stack
        names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
        if name in _NOTHING:
            return
        if name in _LOADS:
            stack += [self.variables.get(each, _OTHER) for each in names]
        elif name in _STORES:
            self.variables |= {each: stack.pop() for each in names}
        elif name == "STORE_FAST_LOAD_FAST":
            self.variables[names[0]] = stack.pop()
            stack.append(self.variables.get(names[1], _OTHER))
        elif name in _READS:
            value = each.argval
            constant = value is None or isinstance(value, (bool, str))
            stack.append(_Item(_CONSTANT, value) if constant else _OTHER)
        elif name in _MAKES:
            factor, besides = _MAKES[name]
            self._drop(factor * argument + besides)
            stack.append(_OWN)
        elif name == "BINARY_SUBSCR" or (name == "BINARY_OP" and each.argrepr == "[]"):
            self._drop(2)
            stack.append(_OTHER)
        elif name == "IS_OP":
            self._drop(2)
            stack.append(_FLAG)
        elif name == "TO_BOOL" and stack[-1].kind == _FLAG.kind:
            pass
        elif name == "UNPACK_SEQUENCE":
            stack.pop()
            stack += [_OTHER] * argument
        elif (
            name in ("LIST_EXTEND", "LIST_APPEND") and stack[-1 - argument].kind == _OWN.kind
        ) or name == "POP_TOP":
            stack.pop()
        elif name == "PUSH_NULL":
            stack.append(_NULL)
        elif name == "COPY":
            stack.append(stack[-argument])
        elif name == "SWAP":
            stack[-1], stack[-argument] = stack[-argument], stack[-1]
        elif name == "LOAD_GLOBAL":
            stack += [_NULL] * (argument & 1)  # above or below: a call takes both
            graph, source = dynamo.is_graph(each.argval), f"G[{each.argval!r}]"
            found = _Item(value=variables.get(each.argval), source=source)
            stack.append(_GRAPH if graph else found)
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            self._attribute(each, with_owner=name == "LOAD_METHOD" or _has_flag(argument))
        elif name == "CALL":
            self._call(argument)
        elif name == "STORE_ATTR":
            owner, value = stack.pop(), stack.pop()
            if not _sets_as_objects_do(owner.value):
                raise _Unknown(f"it runs STORE_ATTR {each.argval}")
            self._set(owner, each.argval, value)
        else:
            raise _Unknown(f"it runs {name} {each.argrepr}".rstrip())

    def _attribute(self, each: dis.Instruction, with_owner: bool) -> None:
        owner, name = self.stack.pop(), each.argval
        value = getattr(owner.value, name, None)
        if dynamo.is_harmless(value):
            found = _HARMLESS
        elif dynamo.is_setter(value):
            found = _SETTER
        elif type(value) is bool:
            found = _FLAG
        elif owner.source is not None and isinstance(owner.value, ModuleType):
            found = _Item(value=value, source=f"{owner.source}.{name}")
        else:
            found = _OTHER
        self.stack.append(found)
        if with_owner:  # a module's function has none
            self.stack.append(_NULL if found in (_HARMLESS, _SETTER) else _OTHER)

    def _call(self, count: int) -> None:
        arguments = [self.stack.pop() for _ in range(count)][::-1]
        called = {self.stack.pop().kind, self.stack.pop().kind} - {_NULL.kind}
        if called == {_GRAPH.kind}:
            self.graphs += 1
        elif called == {_SETTER.kind} and count == 3 and type(arguments[1].value) is str:
            self._set(arguments[0], arguments[1].value, arguments[2])
        elif called != {_HARMLESS.kind}:
            raise _Unknown("it calls something beside its graph")
        self.stack.append(_OTHER)

    def _set(self, owner: _Item, name: str, value: _Item) -> None:
        constant = value.kind == _CONSTANT and (value.value is None or type(value.value) is bool)
        if owner.source is None or not constant or isinstance(owner.value, ModuleType):
            raise _Unknown(f"it sets {name} of an object")
        self.sets.append(Set(f"{owner.source}.{name}", owner.value, name, value.value))

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self.stack.pop()


def _sets_as_objects_do(owner: Any) -> bool:
    """Whether an attribute that is set is a variable of the object's own, and nothing else runs."""
    kind: Any = type(owner)
    usual = kind.__setattr__ is object.__setattr__
    return usual and isinstance(getattr(owner, "__dict__", None), dict)


def _has_flag(argument: int) -> bool:
    """Whether an attribute is loaded to be called, from CPython 3.12 on."""
    return sys.version_info >= (3, 12) and bool(argument & 1)
