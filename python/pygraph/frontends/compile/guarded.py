"""What Dynamo's guards look at, as a tree that the engine compares in each call.

Dynamo has noted all that a function's result depends on: parameters and attributes of modules,
variables of Python modules, cells. Its guards name each by an expression, as L['self'].scale. Here
these are followed to where they lead, and the tree (src/callable/structure.h) has a place for every
container on the way, and for what is at the end. A guard asks something of that: its type, its
length, its value. The tree asks that it be the same, so whatever the guard asks is answered as it
was. An expression, or a guard, that is not known here is an error: nothing is left out.

The caller's arguments are in the tree whole, whatever guards look at.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph._engine import PlaceKind
from pygraph.frontends.callable.structure import PLAIN_TENSORS, is_atom
from pygraph.torch_private.distributed import is_handle, is_layout
from pygraph.torch_private.dynamo import LAMBDA, Guarded
from pygraph.torch_private.tensors import description_of, fields_of, parts_of

#: Of a tensor: sizes and strides are compared with the rest of it.
_OF_SHAPES = ("size", "stride")
#: Guards that an object of the same identity satisfies, whatever has changed in it.
_BY_IDENTITY = {"ID_MATCH", "TYPE_MATCH", "NOT_NONE", "OBJECT_ALIASING"}
#: And those that one satisfies which is of the same type, and has the same keys or length.
_BY_FORM = {
    *_BY_IDENTITY, "DICT_CONTAINS", "DICT_LENGTH", "LENGTH_CHECK", "MAPPING_KEYS_MATCH",
}  # fmt: skip
#: And those that a tensor does which is told by its type, dtype, device, sizes and strides, and by
#: whether it requires gradients.
_OF_TENSORS = {
    "TENSOR_MATCH", "TYPE_MATCH", "NOT_NONE", "OBJECT_ALIASING", "NO_TENSOR_ALIASING",
    "STORAGE_OVERLAPPING", "DISPATCH_KEY_SET_MATCH", "DIMENSION_DYNAMIC_MARKING_GUARD",
}  # fmt: skip
#: And those that one does which is made of other tensors, by what it is made of.
_OF_TENSORS_IN_PARTS = {*_OF_TENSORS, "TENSOR_SUBCLASS_METADATA_MATCH"}
_OF_FUNCTIONS = {"__code__", "__closure__", "__defaults__", "__kwdefaults__"}
_REQUIRES = sys.intern("requires_grad")
_DICTIONARIES = (dict, collections.OrderedDict)


class NotComparable(Exception):
    """Something cannot be compared from call to call; the text says what."""


@dataclasses.dataclass
class _Sight:
    """Something that guards look into."""

    value: Any
    source: str
    items: set[Any] = dataclasses.field(default_factory=set)
    attributes: set[str] = dataclasses.field(default_factory=set)
    checks: set[str] = dataclasses.field(default_factory=set)
    absent: set[str] = dataclasses.field(default_factory=set)
    """No variables of its own, but its classes', if they have them."""
    asked: set[str] = dataclasses.field(default_factory=set)
    """Attributes that code of its class looks up, which it has or has not."""


@dataclasses.dataclass(frozen=True)
class _OwnNames:
    """What a class has itself, by its names."""

    owner: type


@dataclasses.dataclass
class CallState:
    """What one call of a compiled callable is made of, for the engine."""

    roots: tuple[Any, ...]  #: but for the positional and the named arguments
    nodes: list[_engine.Place]
    labels: list[str]  #: how a program would write each place
    leaves: list[torch.Tensor]
    handles: list[Any]  #: meshes and groups that are compared by identity


class StateBuilder:
    """Makes a CallState. What cannot be compared raises NotComparable."""

    def __init__(self, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._sights: dict[int, _Sight] = {}
        self._places: list[dict[str, Any]] = []
        self._labels: list[str] = []
        self._leaves: list[torch.Tensor] = []
        self._first: dict[int, int] = {}  #: by the ids of objects: where they were met first
        self._seen: list[Any] = []  #: ids stay those of what was met
        self._roots: list[Any] = []
        self._owed: list[tuple[Any, str]] = []  #: namespaces that are still to be compared
        self._behind: list[tuple[_Sight, str]] = []  #: objects, the same
        self._met_namespaces: set[int] = set()
        self._done: set[int] = set()  #: sights that are in the tree
        self._walk_callers(positional, "argument")
        self._walk_callers(named, "argument")

    def see(
        self,
        guarded: Sequence[Guarded],
        variables: Mapping[str, Any],
        global_variables: dict[str, Any],
        callers: frozenset[str],
    ) -> None:
        """Follows the expressions of guards. `callers`: the variables that the caller gives."""
        own = _Look(self._sights, variables, global_variables)
        given = _Look(None, variables, global_variables)  # what is in the tree whole
        for each in guarded:
            if each.source in ("L", "G", ""):
                continue  # modes, and sizes
            try:
                for parsed in _sources_in(each):
                    look = given if _variable(parsed) in callers else own
                    value = look.guarded(parsed, each)
                    if isinstance(value, torch.Tensor):
                        of_all = _OF_TENSORS_IN_PARTS if parts_of(value) else _OF_TENSORS
                        _require_known(each, each.checks - of_all - {LAMBDA})
                        if each.lacking:
                            self._see_lacking(value, each.lacking)
            except (SyntaxError, LookupError, AttributeError, TypeError) as error:
                raise NotComparable(
                    f"a guard looks at {each.source}, which is not known"
                ) from error

    def _see_lacking(self, tensor: torch.Tensor, names: frozenset[str]) -> None:
        """A tensor of the caller's has no attributes of these names."""
        first = self._first.get(id(tensor))
        if first is None:
            raise LookupError
        place = self._places[first]
        place["object"] = tuple({*place.get("object", ()), *names})

    def see_dictionary(self, value: dict[Any, Any], label: str) -> None:
        """Its keys count."""
        self._sights.setdefault(id(value), _Sight(value, label))

    def see_attributes(self, value: Any, label: str, names: Collection[str]) -> None:
        """These of an object's own attributes count, which are dictionaries."""
        self._sights.setdefault(id(value), _Sight(value, label)).attributes.update(names)
        for name in names:
            self.see_dictionary(vars(value)[name], f"{label}.{name}")

    def see_method(self, module: Any, name: str) -> None:
        """What an object has under this name counts: itself, or its class."""
        label = type(module).__name__
        kind = next((each for each in type(module).__mro__ if name in vars(each)), type(module))
        self._sights.setdefault(id(module), _Sight(module, label))
        for owner in (vars(module), kind):
            self._sights.setdefault(id(owner), _Sight(owner, label)).items.add(name)
        for owner in (vars(module), vars(kind)):
            if name in owner:
                method = _Sight(owner[name], f"{label}.{name}")
                self._sights.setdefault(id(owner[name]), method).checks.add("ID_MATCH")
        self._owe(kind, kind.__name__)

    def see_partial(self, partial: functools.partial[Any]) -> None:
        """What it binds counts, as far as guards look at that."""
        own = self._sights.setdefault(id(partial), _Sight(partial, "partial"))
        own.attributes.update(("func", "args", "keywords"))
        within = self._sights.setdefault(id(partial.func), _Sight(partial.func, "partial.func"))
        for sight in (own, within):
            sight.checks.add("ID_MATCH")
        args = self._sights.setdefault(id(partial.args), _Sight(partial.args, "partial.args"))
        args.items.update(range(len(partial.args)))
        self.see_dictionary(partial.keywords, "partial.keywords")

    def build(self, function: Any, objects: Mapping[str, Any]) -> CallState:
        """`function` (or None), and `objects` by the names that programs know them by, belong to
        the callable."""
        if function is not None:
            self._met(function, "", None)
            self._roots.append(function)
            self._function(function, function.__name__, None, whole=True)
        for label, value in objects.items():
            self._roots.append(value)
            self._walk(value, label)
        while self._owed or self._behind:
            if self._owed:
                self._namespace(*self._owed.pop())
            else:
                sight, label = self._behind.pop()
                self._roots.append(sight.value)
                self._compare(sight, label, None)
                if sight.asked:
                    self._asked(sight, label)
        left = [each for key, each in self._sights.items() if key not in self._done]
        if left:
            raise NotComparable(f"a guard looks at {left[0].source}, which cannot be compared")
        fixed = [each["object"] for each in self._places if each["kind"] == PlaceKind.IS]
        handles = [each for each in fixed if is_handle(each)]
        return CallState(tuple(self._roots), self._nodes(), self._labels, self._leaves, handles)

    # ------------------------------------------------------------------ places

    def _place(self, kind: PlaceKind, label: str, key: Any = None, **more: Any) -> dict[str, Any]:
        place = {"kind": kind, "key": key, "children": 0, "number": -1, **more}
        self._places.append(place)
        self._labels.append(label)
        return place

    def _met(self, value: Any, label: str, key: Any) -> bool:
        """Whether it has been met before, and is no more than that now."""
        first = self._first.get(id(value))
        if first is None:
            self._first[id(value)] = len(self._places)
            self._seen.append(value)
            return False
        self._places[first]["number"] = first
        self._place(PlaceKind.SAME, label, key)["number"] = first
        return True

    def _nodes(self) -> list[_engine.Place]:
        return [
            _engine.Place(each.pop("kind"), **each)
            for each in ({**place} for place in self._places)
        ]

    def _tensor(self, value: torch.Tensor, label: str, key: Any) -> None:
        if type(value) not in PLAIN_TENSORS or value.layout != torch.strided or value.is_quantized:
            raise NotComparable(f"{label} is a {type(value).__name__}, and no plain tensor")
        if value.is_conj() or value.is_neg():
            raise NotComparable(f"{label} is conjugated, or negated")
        if self._met(value, label, key):
            return
        self._place(PlaceKind.TENSOR, label, key, type=type(value), like=value)
        self._leaves.append(value)

    # ------------------------------------------------------------------ the caller's arguments

    def _walk_callers(self, value: Any, label: str, key: Any = None) -> None:
        if isinstance(value, torch.Tensor):
            self._tensor(value, label, key)
        elif is_atom(value):
            self._place(PlaceKind.VALUE, label, key, object=value)
        elif type(value) in (tuple, list):
            kind = PlaceKind.TUPLE if type(value) is tuple else PlaceKind.LIST
            self._place(kind, label, key, type=type(value))["children"] = len(value)
            for index, each in enumerate(value):
                self._walk_callers(each, f"{label}[{index}]")
        elif type(value) is dict and all(map(is_atom, value)):
            self._place(PlaceKind.DICT, label, key, type=dict)["children"] = len(value)
            for name, each in value.items():
                self._walk_callers(each, f"{label}[{name!r}]", name)
        else:
            raise NotComparable(
                f"{label} is a {type(value).__name__}; needed: tensors, numbers, texts, and "
                "tuples, lists and dictionaries of them"
            )

    # ------------------------------------------------------------------ what guards look at

    def _walk(self, value: Any, label: str, key: Any = None) -> None:
        sight = self._sights.get(id(value))
        if isinstance(value, torch.Tensor) and parts_of(value):
            self._made_of_others(value, label, key)
        elif isinstance(value, torch.Tensor):
            if sight is not None:
                self._finish(sight, answered=_OF_TENSORS)
            self._tensor(value, label, key)
        elif is_atom(value):
            self._place(PlaceKind.VALUE, label, key, object=value)
        elif sight is None:
            self._place(PlaceKind.ANY, label, key)
        elif isinstance(value, _FIXED) or _is_namespace(value):
            self._place(PlaceKind.IS, label, key, object=value)
            self._owe(value, label)
        elif not self._met(value, label, key):
            for each in type(value).__mro__:
                self._owe(each, each.__name__)
            if "ID_MATCH" in sight.checks or sight.asked:
                self._place(PlaceKind.IS, label, key, object=value)
                more = sight.items or sight.attributes or sight.absent or sight.asked
                if more or sight.checks - _BY_IDENTITY:
                    self._behind.append((sight, label))
                else:
                    self._finish(sight, answered=_BY_IDENTITY)
            else:
                self._compare(sight, label, key)

    def _made_of_others(self, value: torch.Tensor, label: str, key: Any) -> None:
        """A tensor by its parts, and by what says how they make it, which is the same if its fields
        are: they are not changed, but others put in their place."""
        described = description_of(value)
        if described is None:
            raise NotComparable(f"{label} is a {type(value).__name__}, and no plain tensor")
        if self._met(value, label, key):
            return
        name, description = described
        fields, own = fields_of(description)
        place = self._place(PlaceKind.ATTRIBUTES, label, key, type=type(value))
        inside = {part: getattr(value, part) for part in sorted(parts_of(value))}
        told = {*map(id, inside.values())} & {*map(id, fields.values())}  # once is enough
        parts = {part: each for part, each in inside.items() if id(each) not in told}
        place["children"] = len(parts) + 2
        for part, each in parts.items():
            self._walk(each, f"{label}.{part}", sys.intern(part))
        requires = value.requires_grad
        self._place(PlaceKind.VALUE, f"{label}.{_REQUIRES}", _REQUIRES, object=requires)
        form = PlaceKind.VARIABLES if own else PlaceKind.ATTRIBUTES
        written, kind = f"{label}.{name}", type(description)
        within = self._place(form, written, sys.intern(name), type=kind)
        within["children"] = len(fields)
        for field, each in fields.items():
            if id(each) in told and id(each) in self._sights:
                self._walk(each, f"{written}.{field}", sys.intern(field))
            else:
                self._place(PlaceKind.IS, f"{written}.{field}", sys.intern(field), object=each)
        if (sight := self._sights.get(id(value))) is not None:
            self._finish(sight, (), {*inside, name, _REQUIRES}, _OF_TENSORS_IN_PARTS)
        if (sight := self._sights.get(id(description))) is not None:
            self._finish(sight, (), {*fields}, _BY_IDENTITY)

    def _compare(self, sight: _Sight, label: str, key: Any) -> None:
        value, kind = sight.value, type(sight.value)
        if isinstance(value, types.FunctionType):
            self._function(value, label, key)
        elif is_layout(value):
            self._place(PlaceKind.IS, label, key, object=value)
            self._finish(sight, (), sight.attributes, {*sight.checks})
        elif "EQUALS_MATCH" in sight.checks:
            self._walk_callers(value, label, key)
            self._done.add(id(value))
        elif isinstance(value, (tuple, list)):
            is_list = isinstance(value, list)
            form = PlaceKind.LIST if is_list else PlaceKind.TUPLE
            self._place(form, label, key, type=kind)["children"] = len(value)
            known = {each % len(value) for each in sight.items if isinstance(each, int)}
            for index, each in enumerate(value):
                self._child(index in known, each, f"{label}[{index}]")
            self._finish(sight, items=[each for each in sight.items if isinstance(each, int)])
        elif kind in _DICTIONARIES:
            self._place(PlaceKind.DICT, label, key, type=kind)["children"] = len(value)
            if not all(map(is_atom, value)):
                raise NotComparable(f"{label} has keys that are objects")
            for name, each in value.items():
                self._child(name in sight.items, each, f"{label}[{name!r}]", name)
            self._finish(sight, items=sight.items)
        elif isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, _BY_MORE):
            self._instance(sight, label, key)
        elif sight.attributes:
            place = self._place(PlaceKind.ATTRIBUTES, label, key, type=kind)
            self._attributes(sight, sight.attributes, place, label)
            self._finish(sight, attributes=sight.attributes)
        else:
            self._place(PlaceKind.IS, label, key, object=value)
            self._finish(sight, answered=_BY_IDENTITY)

    def _owe(self, value: Any, label: str) -> None:
        """A namespace is to be compared, where guards look anything up in it."""
        if id(value) in self._sights and id(value) not in self._met_namespaces:
            self._met_namespaces.add(id(value))
            self._owed.append((value, label))

    def _child(self, known: bool, value: Any, label: str, key: Any = None) -> None:
        if known:
            self._walk(value, label, key)
        else:
            self._place(PlaceKind.ANY, label, key)

    def _instance(self, sight: _Sight, label: str, key: Any) -> None:
        value = sight.value
        own: dict[str, Any] = vars(value)
        items = self._sights.get(id(own))
        named = sight.attributes | sight.absent | (items.items if items else set())
        named -= {"__dict__"}
        place = self._place(PlaceKind.VARIABLES, label, key, type=type(value))
        place["children"] = len(named)
        for name in sorted(named):
            self._variable(name, own, f"{label}.{name}")
        if items is not None:
            self._finish(items, items=items.items)
        # A property, or an attribute of its class.
        beside = sorted(sight.attributes - own.keys() - sight.absent - {"__dict__"})
        if beside:
            raise NotComparable(f"{label}.{beside[0]} is no attribute of the object's own")
        self._finish(sight, attributes=sight.attributes)

    def _asked(self, sight: _Sight, label: str) -> None:
        self._roots.append(sight.value)
        place = self._place(PlaceKind.ATTRIBUTES, label, type=type(sight.value))
        place["children"] = len(sight.asked)
        for name in sorted(sight.asked):
            written, missing = f"{label}.{name}", object()
            value = getattr(sight.value, name, missing)
            if value is missing:
                self._place(PlaceKind.EMPTY, written, sys.intern(name))
            elif is_atom(value):
                self._place(PlaceKind.VALUE, written, sys.intern(name), object=value)
            else:
                raise NotComparable(f"{written} is looked up by code, and no number or text")

    def _variable(self, name: str, own: Mapping[str, Any], label: str) -> None:
        if name in own:
            self._walk(own[name], label, sys.intern(name))
        else:
            self._place(PlaceKind.EMPTY, label, sys.intern(name))

    def _attributes(
        self, sight: _Sight, names: set[str], place: dict[str, Any], label: str
    ) -> None:
        place["children"] = len(names)
        for name in sorted(names):
            self._walk(getattr(sight.value, name), f"{label}.{name}", sys.intern(name))

    def _function(
        self, value: types.FunctionType, label: str, key: Any, whole: bool = False
    ) -> None:
        """Its code, and of its cells and defaults what guards look at. `whole`: they do so by other
        names, too."""
        sight = self._sights.get(id(value), _Sight(value, label))
        attributes = types.FunctionType if vars(value) else None
        place = self._place(PlaceKind.FUNCTION, label, key, object=value.__code__, type=attributes)
        cells = value.__closure__ or ()
        place["children"] = len(cells) + 2
        closure = self._sights.get(id(cells)) if cells else None  # there is one empty tuple
        for index, (name, cell) in enumerate(zip(value.__code__.co_freevars, cells, strict=True)):
            within = self._sights.get(id(cell))
            known = within is not None and closure is not None and index in closure.items
            try:
                content = cell.cell_contents
            except ValueError:
                self._place(PlaceKind.EMPTY, f"{label}'s {name}")
            else:
                self._child(known or whole, content, name)
            if known:
                self._finish(within, attributes={"cell_contents"})  # type: ignore[arg-type]
        if closure is not None:
            self._finish(closure, items=closure.items)
        for defaults in (value.__defaults__, value.__kwdefaults__):
            written = f"{label}'s defaults"
            if whole and defaults is not None:
                self._sights.setdefault(id(defaults), _Sight(defaults, written)).items.update(
                    defaults if isinstance(defaults, dict) else range(len(defaults))
                )
            known = defaults is None or id(defaults) in self._sights
            self._child(known, defaults, written)
        self._done.add(id(value.__code__))
        self._finish(sight, attributes=_OF_FUNCTIONS)

    def _namespace(self, value: Any, label: str) -> None:
        """What guards look up in a Python module, a class, or the dictionary of one of these."""
        sight = self._sights[id(value)]
        names, own = set(sight.items), value
        if isinstance(value, types.ModuleType):
            own = vars(value)
            strange = sorted(sight.attributes - own.keys())
            if strange:
                raise NotComparable(f"{label}.{strange[0]} is no variable of the module's own")
            names |= sight.attributes
        elif isinstance(value, type):
            own = vars(value)
            self._roots.append(value)
            place = self._place(PlaceKind.ATTRIBUTES, label, type=type(value))
            self._attributes(sight, sight.attributes - {"__dict__"}, place, label)
        self._roots.append(value if isinstance(value, type) else own)
        self._place(PlaceKind.NAMES, label)["children"] = len(names)
        for name in sorted(names):
            self._variable(name, own, f"{label}.{name}" if label else name)
        self._finish(sight, sight.items, sight.attributes, _BY_IDENTITY | {"DICT_CONTAINS"})

    def add_variables(self, variables: dict[str, Any]) -> None:
        """Those of a Python module, which guards look up as `G`."""
        self._owe(variables, "")

    def _finish(
        self,
        sight: _Sight,
        items: Collection[Any] = (),
        attributes: Collection[str] = (),
        answered: Collection[str] = _BY_FORM,
    ) -> None:
        """It is in the tree, with these of what it has. `answered`: guards that ask for no more."""
        left = [f"[{each!r}]" for each in sight.items - {*items}]
        left += [f".{each}" for each in sight.attributes - {*attributes}]
        left += sight.checks - {*answered}
        _require_known(sight, left)
        self._done.add(id(sight.value))


#: Nobody puts others in their places but by name.
_FIXED = (types.ModuleType, type)
#: Told by more than their attributes.
_BY_MORE = (
    dict, set, frozenset, types.MethodType, staticmethod, classmethod, *_FIXED, types.FunctionType,
    functools.partial,
)  # fmt: skip


def _require_known(asked: _Sight | Guarded, left: Collection[str]) -> None:
    """`left`: what guards ask for of it that is not compared."""
    if left:
        raise NotComparable(f"guards ask for {', '.join(sorted(left))} of {asked.source}")


def _sources_in(guarded: Guarded) -> list[ast.expr]:
    """The expressions of something in what guards say."""
    parsed = ast.parse(guarded.source, mode="eval").body
    if LAMBDA not in guarded.checks:
        return [parsed]
    found: list[ast.expr] = []
    waiting: list[ast.expr] = [parsed]
    while waiting:
        each = waiting.pop()
        match each:
            case ast.Compare(left, _, others):
                waiting += [left, *others]
            case ast.BoolOp(_, values):
                waiting += values
            case ast.BinOp(left, _, right):
                waiting += [left, right]
            case ast.UnaryOp(_, value):
                waiting.append(value)
            case ast.Constant():
                pass
            case _:
                found.append(each)
    return found


def _variable(node: ast.expr) -> str | None:
    """The variable of the frame that an expression begins with."""
    while True:
        match node:
            case ast.Subscript(ast.Name("L"), ast.Constant(str(name))):
                return name
            case ast.Call(_, [node, *_]) | ast.Call(ast.Attribute(node, _), []):
                pass
            case ast.Subscript(node, _) | ast.Attribute(node, _):
                pass
            case _:
                return None


class _Look:
    """Follows expressions. Guards ask for each attribute of a module of modules, and name the whole
    way to it each time: what has led somewhere is not followed again."""

    def __init__(
        self,
        sights: dict[int, _Sight] | None,
        variables: Mapping[str, Any],
        global_variables: dict[str, Any],
    ) -> None:
        """`sights`: where what is looked into is noted. None: it is the caller's, who gives nothing
        that has attributes."""
        self._given = sights is None
        self._sights = {} if sights is None else sights
        self._variables, self._globals = variables, global_variables
        self._text = b""
        self._led_to: dict[str, Any] = {}  #: by how it is written

    def guarded(self, node: ast.expr, guarded: Guarded) -> Any:
        """What an expression in a guard's text leads to, and what the guard asks of that."""
        self._text = guarded.source.encode()  # the parser counts bytes
        value = self.at(node)
        if not is_atom(value) and LAMBDA not in guarded.checks:
            sight = self._note(value, node)
            sight.checks |= guarded.checks
            sight.items |= guarded.contained
            if guarded.lacking and not self._given:
                self._lacks(sight, node, guarded.lacking)
        return value

    def at(self, node: ast.expr) -> Any:
        written = self._written(node)
        if written not in self._led_to:
            value = self._led_to[written] = self._at(node)
            if not is_atom(value):
                self._note(value, node)
        return self._led_to[written]

    def _note(self, value: Any, node: ast.expr) -> _Sight:
        owner = value.owner if isinstance(value, _OwnNames) else value
        if (sight := self._sights.get(id(owner))) is None:
            sight = self._sights[id(owner)] = _Sight(owner, self._written(node))
        return sight

    def _written(self, node: ast.expr) -> str:
        if node.end_lineno != 1:
            raise SyntaxError("a guard in several lines")
        return self._text[node.col_offset : node.end_col_offset].decode()

    def _at(self, node: ast.expr) -> Any:
        match node:
            case ast.Subscript(ast.Name("L"), ast.Constant(str(name))):
                return self._variables[name]
            case ast.Name("G"):
                return self._globals
            case ast.Subscript(ast.Call(ast.Attribute(within, attr), []), _) if attr in _OF_SHAPES:
                return self._shape(within)
            case ast.Call(ast.Attribute(within, attr), []) if attr in _OF_SHAPES:
                return self._shape(within)
            case ast.Subscript(ast.Call(ast.Name("list"), [keys]), ast.Constant()):
                return self._key(keys)
            case ast.Call(ast.Name("type"), [within]):
                return type(self.at(within))
            case ast.Call(ast.Name("dict"), [ast.Attribute(within, "__dict__")]):
                owner = self.at(within)
                if not isinstance(owner, type):
                    raise TypeError
                return _OwnNames(owner)
            case ast.Call(ast.Name("getattr"), [within, ast.Constant(str(name))]):
                return self._attribute(within, name)
            case ast.Call(
                ast.Attribute(ast.Name("object"), "__getattribute__"),
                [within, ast.Constant(str(name))],
            ):
                return self._attribute(within, name, object.__getattribute__)
            case ast.Call(
                ast.Attribute(ast.Name("dict" | "list" | "tuple"), "__getitem__"), [x, y]
            ):
                return self._item(x, y)
            case ast.Subscript(within, index):
                return self._item(within, index)
            case ast.Attribute(within, name):
                return self._attribute(within, name)
        raise SyntaxError

    def _shape(self, within: ast.expr) -> None:
        if not isinstance(self.at(within), torch.Tensor):
            raise TypeError

    def _key(self, keys: ast.expr) -> None:
        """One of the keys of a dictionary, which are compared with it."""
        match keys:
            case ast.Call(ast.Attribute(ast.Name("dict"), "keys"), [within]):
                owner = self.at(within)
                if type(owner) in _DICTIONARIES and not _is_namespace(owner):
                    return
        raise SyntaxError

    def _index(self, index: ast.expr) -> Any:
        """A constant, or a dictionary's key by its number: its keys are compared with it."""
        match index:
            case ast.Subscript(
                ast.Call(
                    ast.Name("list"), [ast.Call(ast.Attribute(ast.Name("dict"), "keys"), [d])]
                ),
                ast.Constant(int(number)),
            ):
                owner = self.at(d)
                if type(owner) not in _DICTIONARIES or _is_namespace(owner):
                    raise TypeError
                return list(owner)[number]
        return ast.literal_eval(index)

    def _item(self, within: ast.expr, index: ast.expr) -> Any:
        owner, key = self.at(within), self._index(index)
        if isinstance(owner, _OwnNames):
            self._note(owner, within).items.add(key)
            return vars(owner.owner)[key]
        if not isinstance(owner, (dict, list, tuple)):
            raise TypeError
        self._note(owner, within).items.add(key)
        return owner[key]

    def _attribute(
        self, within: ast.expr, name: str, looked_up: Callable[[Any, str], Any] = getattr
    ) -> Any:
        owner = self.at(within)
        if self._given or is_atom(owner) or isinstance(owner, _OwnNames):
            raise TypeError
        if isinstance(owner, torch.Tensor):
            described = description_of(owner)
            if described is None or name not in {*parts_of(owner), described[0], _REQUIRES}:
                raise TypeError
            self._note(owner, within).attributes.add(name)
            return getattr(owner, name)
        value = looked_up(owner, name)
        if name == "__class__" and value is type(owner):
            return value
        if isinstance(value, types.MethodType) and value.__self__ is owner:
            return self._method(within, owner, name)
        if isinstance(owner, types.FunctionType) and name == "__func__":
            return owner  # of a method, see there
        sight = self._note(owner, within)
        own = getattr(owner, "__dict__", None)
        usual = looked_up is object.__getattribute__ or _is_usual(owner)
        if usual and isinstance(own, dict) and name not in own:
            kinds = (each for each in type(owner).__mro__ if name in vars(each))
            if vars(next(kinds, object)).get(name, self) is value:
                self._absent(sight, {name})
                return value
            registered = _REGISTERED if isinstance(owner, torch.nn.Module) else ()
            for each in registered:
                if name in own[each]:
                    sight.attributes.add(each)
                    self._note(own[each], within).items.add(name)
                    self._absent(sight, {name})
                    return value
        by_code = isinstance(own, dict) and name not in own and name != "__dict__"
        if by_code and not isinstance(owner, _BY_MORE):
            sight.asked.add(name)
        else:
            sight.attributes.add(name)
        return value

    def _lacks(self, sight: _Sight, node: ast.expr, names: Collection[str]) -> None:
        """It has no attributes of these names."""
        owner = sight.value
        if not isinstance(getattr(owner, "__dict__", None), dict) or isinstance(owner, _BY_MORE):
            raise TypeError
        if _is_usual(owner):
            if isinstance(owner, torch.nn.Module):
                sight.attributes.update(_REGISTERED)
                for each in _REGISTERED:
                    self._note(vars(owner)[each], node)
            self._absent(sight, names)
        else:
            sight.asked.update(names)

    def _absent(self, sight: _Sight, names: Collection[str]) -> None:
        sight.absent.update(names)
        for each in type(sight.value).__mro__:
            if not each.__flags__ & _IMMUTABLE:
                self._sights.setdefault(id(each), _Sight(each, each.__name__)).items.update(names)

    def _method(self, within: ast.expr, owner: Any, name: str) -> Any:
        """The function of a method, which is its class's, if the object has none of its own."""
        kind = next(each for each in type(owner).__mro__ if name in vars(each))
        for each in (owner, own := vars(owner), kind):
            self._note(each, within)
        self._sights[id(own)].items.add(name)
        self._sights[id(kind)].items.add(name)
        function = vars(kind)[name]
        if name in own or not isinstance(function, types.FunctionType):
            raise TypeError
        return function


#: Py_TPFLAGS_IMMUTABLETYPE: of a class like `object`.
_IMMUTABLE = 1 << 8
#: Where a module finds attributes that it has not itself.
_REGISTERED = ("_parameters", "_buffers", "_modules")


def _is_usual(owner: Any) -> bool:
    """Whether its attributes are looked up as all objects' are, or as all modules'."""
    kind: Any = type(owner)
    beside: Any = torch.nn.Module.__getattr__ if isinstance(owner, torch.nn.Module) else None
    usual = kind.__getattribute__ is object.__getattribute__
    return usual and getattr(kind, "__getattr__", None) is beside


def _is_namespace(value: Any) -> bool:
    """Whether it is the dictionary of a Python module, under the module's own name."""
    name = value.get("__name__") if type(value) is dict else None
    return isinstance(name, str) and getattr(sys.modules.get(name), "__dict__", None) is value
