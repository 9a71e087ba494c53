"""What a call of a callable is made of: its arguments and what it reads besides, as one tree.

The engine compares later calls with the tree (src/callable/structure.h says how), differences.py
compares two trees. Here a tree is made, and restored: a callable that is run once more begins with
the Python state that it began with before.

Which attributes belong to the tree is told by the code that ran (watching.py): what no code names
is not read. What else an object may keep, and how it is told from another, is in state.py.
"""

from __future__ import annotations

import array
import bisect
import collections
import contextvars
import dataclasses
import enum
import functools
import io
import os
import sys
import threading
import types
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph._engine import PlaceKind
from pygraph.frontends.callable.state import (
    WRAPPED,
    Keeps,
    functions_of,
    is_library,
    is_of_numpy,
    is_open,
    keeps_attributes_of_programs,
    kept_by,
    slots,
)
from pygraph.frontends.callable.traced import TRACED
from pygraph.torch_private.distributed import is_handle
from pygraph.torch_private.dynamo import MARKS
from pygraph.torch_private.tensors import description_of, fields_of, parts_of

#: Places of a tree, at most: to compare 21,500 takes 1.3 ms (FSDP2's step, gpus.json).
MOST_PLACES = 100_000
#: Bytes of an array of numbers that is compared, at most.
_MOST_BYTES = 1 << 16

_ATOMS = frozenset(
    {
        type(None), bool, int, float, complex, str, bytes, type(Ellipsis),
        torch.dtype, torch.device, torch.layout, torch.memory_format, *TRACED,
    }
)  # fmt: skip
NUMBERS = (float, int, *TRACED)
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_CHANGEABLE = (PlaceKind.LIST, PlaceKind.DICT, PlaceKind.INSTANCE)
COUNTED = (PlaceKind.TUPLE, PlaceKind.LIST, PlaceKind.ITERATED, PlaceKind.DICT)
#: Each is told by its attributes, which nobody can set.
_SPANS = (range, slice)
_ITERATED = (set, frozenset, collections.deque)
#: Attributes that stand in no __dict__.
_OF_C = ((collections.defaultdict, "default_factory"), (collections.deque, "maxlen"))
#: How names of attributes begin that no program gives: Python's, Dynamo's marks, what transformers
#: notes on weights.
_NO_PROGRAMS = ("__", MARKS, "_is_hf_")
#: What functools.cache returns.
_REMEMBERING = type(functools.cache(len))
#: An object in such a place may have attributes besides.
_TOLD_BY_MORE = (*COUNTED, PlaceKind.FUNCTION, PlaceKind.TENSOR, PlaceKind.VALUE)
_MORE_THAN_ATTRIBUTES = (functools.partial, enum.Enum, torch.Tensor)
#: What runs when a leaf gets a gradient.
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
#: What a subclass of these is equal to is its value, too.
_VALUES_OF_PYTHON = (int, float, complex, str, bytes)
#: Those of an interpreter, and not of what they are bound to.
_UNBOUND = (type(None), type, types.ModuleType)
_BOUND = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType, functools.partial)
_INSTANCES = (PlaceKind.INSTANCE, PlaceKind.ATTRIBUTES, PlaceKind.NAMES)


class NotDescribed(Exception):
    """Something that a call is made of cannot be compared with that of another call; the text says
    what."""


@dataclasses.dataclass(slots=True)
class Place:
    """One place of a tree (src/callable/structure.h)."""

    kind: PlaceKind
    label: str  #: how it is written behind its container: ".weight", "[0]"
    above: int  #: the number of the place above; -1: a root
    children: int = 0
    end: int = 0  #: the number of the place behind those below this one
    same: int = -1  #: SAME: the place that the object was met in first
    object: Any = None
    type: Any = None
    key: Any = None
    shape: Any = None  #: of a tensor: dtype, device, sizes, strides, whether it requires grad


class Holder(enum.Enum):
    """How a place is given something else."""

    DICT = enum.auto()
    LIST = enum.auto()
    ATTRIBUTE = enum.auto()


@dataclasses.dataclass(frozen=True)
class Owner:
    """Of one place: what holds it, and where."""

    holder: Holder
    container: Any
    key: Any

    def put(self, value: Any) -> None:
        if self.holder is Holder.ATTRIBUTE:
            setattr(self.container, self.key, value)
        else:
            self.container[self.key] = value


class Tree:
    """What one call was found to be made of."""

    def __init__(
        self,
        named: frozenset[str],
        every: bool = False,
        codes: Collection[types.CodeType] = (),
    ) -> None:
        """`named`: the attributes that code names, `codes`: the program's code that ran. Where
        `every` is set, attributes of a program's objects count that none names, too, and any code
        of theirs may have run."""
        self.roots: list[Any] = []
        self.places: list[Place] = []
        self.leaves: list[Any] = []  #: tensors, generators, and numbers that vary
        self.leaf_places: list[int] = []
        #: What is in the places that a call may give another tensor, or None.
        self.held: dict[int, Any] = {}
        self.owners: dict[int, Owner] = {}
        self.number_owners: dict[int, Owner] = {}  #: of numbers that can be given another value
        self.functions: list[types.FunctionType] = []
        self.classes: list[type] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self._named = named
        self._every = every
        self._codes = codes
        #: see add_what_was_met()
        self._owing: collections.deque[tuple[Any, str, Sequence[str]]] = collections.deque()
        self._kinds: set[type] = set()  #: whose classes are among these
        self._met: dict[int, int] = {}
        self._alive: list[Any] = []  #: ids stay those of what was met
        self._containers: list[tuple[Any, Any]] = []
        self.emptied: list[torch.Tensor] = []  #: that have no memory between two calls
        self.walked: dict[int, Any] = {}  #: what can be changed in place: places, and objects
        self.first_of_root: list[int] = []

    # ------------------------------------------------------------------ making it

    def add_root(self, name: str, value: Any) -> None:
        """Adds a tree. Raises NotDescribed, as those below do."""
        self._root(value)
        self._add(value, name, -1)

    def add_positional(self, arguments: list[Any]) -> None:
        """Adds the tuple of a call's positional arguments, which are given as a list here, so that
        they can be given another value."""
        self._root(arguments)
        number = len(self.places)
        place = Place(PlaceKind.TUPLE, "argument", -1, len(arguments), type=tuple)
        self.places.append(place)
        for index, each in enumerate(arguments):
            self._add(each, f"[{index}]", number, Owner(Holder.LIST, arguments, index))
        place.end = len(self.places)

    def add_variables(self, variables: dict[str, Any], names: Collection[str]) -> None:
        """Adds the variables of a module that are called so."""
        self._root(variables)
        number = len(self.places)
        place = Place(PlaceKind.NAMES, "", -1, children=len(names))
        self.places.append(place)
        for name in sorted(names):
            key = sys.intern(name)
            if name in variables:
                owner = Owner(Holder.DICT, variables, name)
                self._add(variables[name], name, number, owner, key)
            else:
                self._empty(name, number, key)
        place.end = len(self.places)

    def add_what_was_met(self) -> None:
        """Adds the classes that were met, or whose instances were, and the attributes of objects
        that are told by something else."""
        while self._owing:
            owner, label, names = self._owing.popleft()
            if isinstance(owner, type):
                self._of_class(owner)
            else:
                self._root(owner)
                self._add(owner, label, -1)  # that it still is what stands there
                place = self._open_root(PlaceKind.ATTRIBUTES, label, owner)
                self._attributes(owner, names, place, len(self.places) - 1)
                place.end = len(self.places)

    def _attributes_beside(self, value: Any) -> list[str]:
        """The attributes that count of something that is more than these: a function, a list of a
        program's own kind, a tensor."""
        there: dict[str, Any] = getattr(value, "__dict__", None) or {}
        items = value if isinstance(value, dict) else {}  # some are attributes as well
        own = [name for name in there if name not in items or items[name] is not there[name]]
        named = sorted(n for n in own if self._counts(n) and not n.startswith(_NO_PROGRAMS))
        given = len(self.roots) <= 2
        of_c = [name for kind, name in _OF_C if isinstance(value, kind) and not given]
        return named + [name for name in of_c if name in self._named]

    def _open_root(self, kind: PlaceKind, label: str, value: Any) -> Place:
        self._root(value)
        place = Place(kind, label, -1)
        self.places.append(place)
        return place

    def _of_class(self, kind: type) -> None:
        """Its data, and its methods that ran: what those are made of, where it may change."""
        own = vars(kind)
        ran = {name: run for name in own if (run := self._that_run(own[name]))}
        open_ = [name for name in ran if any(is_open(function) for function in ran[name])]
        data = [name for name in own if self._is_data(name, own[name])]
        if data or open_:
            place = self._open_root(PlaceKind.NAMES, kind.__name__, kind)
            number, names = len(self.places) - 1, [*data, *open_]
            place.children = len(names)
            for name in names:
                owner = Owner(Holder.ATTRIBUTE, kind, name)
                self._add(own[name], f".{name}", number, owner, key=sys.intern(name))
            place.end = len(self.places)
        closed = [name for name in ran if name not in open_]
        place = self._open_root(PlaceKind.METHODS, kind.__name__, kind)
        number = len(self.places) - 1
        place.object, place.type, place.children = kind, kind.__mro__, len(closed)
        keys = tuple(name for name in own if name.startswith("__") or self._counts(name))
        place.key = keys, None if self._every else self._named
        for name in closed:
            end, key = len(self.places) + 1, sys.intern(name)
            method = Place(PlaceKind.IS, f".{name}", number, end=end, object=own[name], key=key)
            self.places.append(method)
        place.end = len(self.places)

    def _is_data(self, name: str, value: Any) -> bool:
        """Whether an attribute of a class is data that counts."""
        code = hasattr(value, "__get__") and is_library(type(value).__module__)
        counts = not name.startswith("__") and self._counts(name)
        return counts and not code and not isinstance(value, type)

    def _that_run(self, value: Any) -> list[types.FunctionType]:
        """The functions behind an attribute of a class that ran, or may have."""
        return [each for each in functions_of(value) if self._every or each.__code__ in self._codes]

    def _owe_class(self, kind: type) -> None:
        if kind in self._kinds:
            return
        self._kinds.add(kind)
        metaclass: type = type(kind)
        for each in (*kind.__mro__, *metaclass.__mro__):
            if each not in self.classes and not is_library(each.__module__):
                self.classes.append(each)
                self._owing.append((each, each.__name__, ()))

    def _root(self, value: Any) -> None:
        self.roots.append(value)
        self.first_of_root.append(len(self.places))

    def _add(
        self, value: Any, label: str, above: int, owner: Owner | None = None, key: Any = None
    ) -> None:
        number = len(self.places)
        if number >= MOST_PLACES:
            raise NotDescribed(f"it reads more than {MOST_PLACES} values, at {self.path(above)}")
        place = Place(PlaceKind.ANY, label, above, key=key)
        self.places.append(place)
        kind = type(value)
        if kind in _ATOMS:
            place.kind, place.object = PlaceKind.VALUE, value
            if value is None:
                self._hold(number, value, owner)
            elif kind in NUMBERS and owner is not None:
                self.number_owners[number] = owner
        elif id(value) in self._met:
            place.kind, place.same = PlaceKind.SAME, self._met[id(value)]
            if isinstance(value, torch.Tensor):
                self._hold(number, value, owner)
        else:
            self._met[id(value)] = number
            self._alive.append(value)
            self._describe(value, kind, place, number, owner)
            self._owe_class(kind)
            if place.kind in _CHANGEABLE or parts_of(value):
                self.walked[number] = value
            more = place.kind in _TOLD_BY_MORE or isinstance(value, _MORE_THAN_ATTRIBUTES)
            if more and (names := self._attributes_beside(value)):
                self._owe_attributes(value, number, names)
        place.end = len(self.places)

    def _owe_attributes(self, value: Any, number: int, names: Sequence[str]) -> None:
        if len(self.roots) <= 2 and self.places[number].kind is not PlaceKind.IS:
            # Another object in each call.
            what = f"{self.path(number)} is a {type(value).__name__} with attributes of its own"
            raise NotDescribed(f"{what} ({', '.join(names)})")
        self._owing.append((value, self.path(number), names))

    def _hold(self, number: int, value: Any, owner: Owner | None) -> None:
        self.held[number] = value
        if owner is not None:
            self.owners[number] = owner

    def _describe(
        self, value: Any, kind: type, place: Place, number: int, owner: Owner | None
    ) -> None:
        if parts_of(value):
            self._made_of_others(value, place, number, owner)
        elif isinstance(value, torch.Tensor):
            self._tensor(value, place, number, owner)
        elif isinstance(value, torch.Generator):
            place.kind, place.type = PlaceKind.GENERATOR, kind
            self._leaf(value, number)
        elif isinstance(value, tuple):
            self._elements(value, PlaceKind.TUPLE, place, number)
        elif isinstance(value, list):
            self._containers.append((value, list(value)))
            self._elements(value, PlaceKind.LIST, place, number)
        elif isinstance(value, dict):
            self._items(value, PlaceKind.DICT, place, number)
            place.type = kind
        elif isinstance(value, _ITERATED):
            self._iterated(value, place, number)
        elif isinstance(value, _SPANS):
            self._attributes(value, ("start", "stop", "step"), place, number, owned=False)
        elif isinstance(value, types.FunctionType):
            self._function(value, place, number)
        elif isinstance(value, types.MethodType):
            self._attributes(value, ("__func__", "__self__"), place, number)
        elif isinstance(value, functools.partial):
            self._attributes(value, ("func", "args", "keywords"), place, number)
        elif isinstance(value, _REMEMBERING):
            self._attributes(value, ("__wrapped__",), place, number)
        elif isinstance(value, (staticmethod, classmethod)):
            self._attributes(value, ("__func__",), place, number)
        elif isinstance(value, property):
            self._attributes(value, ("fget", "fset", "fdel"), place, number)
        elif isinstance(value, functools.cached_property):
            self._attributes(value, ("func",), place, number)
        elif isinstance(value, types.ModuleType):
            self._module(value, place, number)
        elif isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):
            self._builtin(value, place, number)
        elif isinstance(value, (contextvars.ContextVar, weakref.ReferenceType)):
            self._reference(value, place, number)
        elif is_of_numpy(value) or isinstance(value, (array.array, bytearray)):
            self._array(value, place, number)
        elif isinstance(value, type):
            place.kind, place.object = PlaceKind.IS, value
            self._owe_class(value)
        elif isinstance(value, enum.Enum):
            place.kind, place.object = PlaceKind.IS, value
        elif isinstance(value, _VALUES_OF_PYTHON):
            place.kind, place.object = PlaceKind.VALUE, value
        else:
            self._object(value, kind, place, number)

    def _leaf(self, value: Any, number: int) -> None:
        self.leaves.append(value)
        self.leaf_places.append(number)

    def _tensor(self, value: torch.Tensor, place: Place, number: int, owner: Owner | None) -> None:
        if type(value) not in PLAIN_TENSORS or value.layout != torch.strided or value.is_quantized:
            what = f"{str(value.layout).removeprefix('torch.')} {type(value).__name__}"
            raise NotDescribed(f"{self.path(number)} is a {what}; needed: plain strided tensors")
        if value.is_conj() or value.is_neg():
            raise NotDescribed(f"{self.path(number)} is a conjugated or negated tensor")
        place.kind, place.type = PlaceKind.TENSOR, type(value)
        emptied = not has_memory(value)
        sizes, strides = tuple(value.shape), tuple(value.stride())
        place.shape = value.dtype, value.device, sizes, strides, value.requires_grad, emptied
        if emptied:
            self.emptied.append(value)
        self._hold(number, value, owner)
        self._leaf(value, number)
        if self._may_get_gradients(value):
            place.children = 1 + len(_HOOKS)
            gradient = Owner(Holder.ATTRIBUTE, value, "grad")
            self._add(value.grad, ".grad", number, gradient)
            for name in _HOOKS:
                self._add(getattr(value, name), f".{name}", number)

    def _may_get_gradients(self, value: torch.Tensor) -> bool:
        """Or has had some: a parameter's may be switched off in between."""
        may_have = value.requires_grad or isinstance(value, torch.nn.Parameter)
        return may_have and value.is_leaf and self._counts("grad")

    def _made_of_others(
        self, value: torch.Tensor, place: Place, number: int, owner: Owner | None
    ) -> None:
        """A DTensor: the tensors that it is made of, and what says how they make it."""
        described = description_of(value)
        if described is None:
            kind = type(value).__name__
            raise NotDescribed(f"{self.path(number)} is a {kind}; needed: plain ones, or DTensors")
        self._hold(number, value, owner)
        more = ["grad", *_HOOKS] if self._may_get_gradients(value) else []
        told = {*map(id, fields_of(described[1])[0].values())}  # with torch 2.13 the mesh is a part
        parts = [part for part in parts_of(value) if id(getattr(value, part)) not in told]
        self._attributes(value, [*parts, "requires_grad", *more], place, number)
        place.children += 1
        self._layout(*described, number)

    def _layout(self, name: str, description: Any, above: int) -> None:
        """Adds what says how a DTensor is made: the same if its fields are equal."""
        label, kind = f".{name}", type(description)
        fields, own = fields_of(description)
        form = PlaceKind.VARIABLES if own else PlaceKind.ATTRIBUTES
        place = Place(form, label, above, len(fields), type=kind, key=sys.intern(name))
        self.places.append(place)
        number = len(self.places) - 1
        for field, value in fields.items():
            told = PlaceKind.IS if is_handle(value) else PlaceKind.VALUE
            key, end = sys.intern(field), len(self.places) + 1
            self.places.append(Place(told, f".{field}", number, end=end, object=value, key=key))
        place.end = len(self.places)

    def _elements(self, value: Any, kind: PlaceKind, place: Place, number: int) -> None:
        place.kind, place.type, place.children = kind, type(value), len(value)
        for index, element in enumerate(value):
            owner = Owner(Holder.LIST, value, index) if kind is PlaceKind.LIST else None
            self._add(element, f"[{index}]", number, owner)

    def _items(
        self,
        value: dict[Any, Any],
        kind: PlaceKind,
        place: Place,
        number: int,
        attributes: bool = False,
        library: bool = False,
    ) -> None:
        place.kind = kind
        self._containers.append((value, dict(value)))
        for key, item in list(value.items()):
            known = type(key) in _ATOMS
            label = f".{key}" if attributes else f"[{key!r}]" if known else "[...]"
            if not known:
                place.children += 1
                self._add(key, "'s key", number)
            place.children += 1
            own = key if known else None
            if attributes and not self._counts(key, library):
                end = len(self.places) + 1
                self.places.append(Place(PlaceKind.ANY, label, number, key=own, end=end))
                continue
            self._add(item, label, number, Owner(Holder.DICT, value, key), key=own)

    def _counts(self, name: str, library: bool = False) -> bool:
        """Code of a library's that is compiled reads no attributes of its own but by name."""
        return (self._every and not library) or name in self._named

    def _iterated(self, value: Any, place: Place, number: int) -> None:
        elements = list(value)
        if not isinstance(value, frozenset):
            self._containers.append((value, elements))
        place.kind, place.type, place.children = PlaceKind.ITERATED, type(value), len(elements)
        for index, element in enumerate(elements):
            self._add(element, f"[{index}]", number)

    def _array(self, value: Any, place: Place, number: int) -> None:
        try:
            data = memoryview(value)
        except ValueError as error:  # NumPy's dates, which have no buffer
            if not hasattr(value, "__setitem__"):  # one of them, which nobody can change
                place.kind, place.object = PlaceKind.VALUE, value
                return
            raise NotDescribed(f"{self.path(number)} cannot be compared: {error}") from None
        if data.nbytes > _MOST_BYTES or "O" in data.format:
            raise NotDescribed(
                f"{self.path(number)} is an array of {data.nbytes} bytes; "
                f"at most {_MOST_BYTES} are compared: give it as a tensor"
            )
        place.kind, place.type = PlaceKind.BYTES, type(value)
        place.object, place.shape = data.tobytes(), (data.format, data.shape)

    def _object(self, value: Any, kind: type, place: Place, number: int) -> None:
        state = kept_by(kind)
        library = is_library(kind.__module__)
        problem = "its state cannot be compared: nothing tells of a change"
        if library and isinstance(value, io.IOBase):
            state = Keeps.NOTHING if value.closed or not value.readable() else Keeps.HIDDEN
        elif library and isinstance(value, Iterator):
            state, problem = Keeps.HIDDEN, "an iterator moves on, which no replay would"
        if state is Keeps.HIDDEN and self._is_named(place):
            raise NotDescribed(f"{self.path(number)} is a {kind.__name__}: {problem}")
        if state is Keeps.ATTRIBUTES:
            self._instance(value, kind, place, number, library)
        else:
            place.kind, place.object = PlaceKind.IS, value

    def _is_named(self, place: Place) -> bool:
        """Whether what is in a place is read, as far as is known: by its name, if it has one."""
        above = self.places[place.above] if place.above >= 0 else place
        has_name = above.kind in _INSTANCES and above.type not in _BOUND
        return not has_name or place.key in self._named

    def _builtin(self, value: Any, place: Place, number: int) -> None:
        """A function in C, and what it is bound to."""
        bound: type = type(value.__self__)
        if isinstance(value.__self__, _UNBOUND) or kept_by(bound) is Keeps.NOTHING:
            place.kind, place.object = PlaceKind.IS, value
        else:
            self._attributes(value, ("__name__", "__self__"), place, number)

    def _reference(self, value: Any, place: Place, number: int) -> None:
        """A context variable or a weak reference, and what it refers to now."""
        place.kind, place.children = PlaceKind.REFERENCE, 1
        if isinstance(value, weakref.ReferenceType):
            place.type = type(value)
            self._add(value(), "()", number)
            return
        place.object = value
        try:
            content = value.get()
        except LookupError:
            self._empty(".get()", number)
        else:
            self._add(content, ".get()", number)

    def _function(self, value: types.FunctionType, place: Place, number: int) -> None:
        if is_library(value.__globals__.get("__name__") or ""):  # a wrapper around a program's
            inner = [name for name in WRAPPED if hasattr(value, name)][:1]
            if inner:
                self._attributes(value, inner, place, number)
            else:
                place.kind, place.object = PlaceKind.IS, value
            return
        place.kind, place.object = PlaceKind.FUNCTION, value.__code__
        place.type = types.FunctionType if vars(value) else None
        self.functions.append(value)
        cells = value.__closure__ or ()
        place.children = len(cells) + 2
        for name, cell in zip(value.__code__.co_freevars, cells, strict=True):
            owner = Owner(Holder.ATTRIBUTE, cell, "cell_contents")
            try:
                content = cell.cell_contents
            except ValueError:
                self._empty(f"'s {name}", number)
            else:
                self._add(content, f"'s {name}", number, owner)
        self._add(value.__defaults__, "'s defaults", number)
        self._add(value.__kwdefaults__, "'s defaults", number)

    def _empty(self, label: str, above: int, key: Any = None) -> None:
        end = len(self.places) + 1
        self.places.append(Place(PlaceKind.EMPTY, label, above, key=key, end=end))

    def _attributes(
        self, value: Any, names: Sequence[str], place: Place, number: int, *, owned: bool = True
    ) -> None:
        """`owned`: they can be set."""
        place.kind, place.type, place.children = PlaceKind.ATTRIBUTES, type(value), len(names)
        for name in names:
            owner = Owner(Holder.ATTRIBUTE, value, name) if owned else None
            try:
                content = getattr(value, name)
            except AttributeError:
                self._empty(f".{name}", number, key=sys.intern(name))
            else:
                self._add(content, f".{name}", number, owner, key=sys.intern(name))

    def _module(self, value: types.ModuleType, place: Place, number: int) -> None:
        if value is os and "environ" in self._named:
            self._attributes(value, ("environ",), place, number)
            return
        if is_library(value.__name__):
            place.kind, place.object = PlaceKind.IS, value
            return
        names = () if self._every else sorted(vars(value).keys() & self._named)
        self._attributes(value, names, place, number)

    def _instance(self, value: Any, kind: type, place: Place, number: int, library: bool) -> None:
        if isinstance(value, torch.optim.Optimizer):
            self.optimizers.append(value)
        library = library and not keeps_attributes_of_programs(kind)
        counted = [name for name in slots(kind) if self._counts(name, library)]
        if counted or not hasattr(value, "__dict__") or isinstance(value, threading.local):
            whole = ["__dict__"] if hasattr(value, "__dict__") else []
            self._attributes(value, [*counted, *whole], place, number)
            return
        place.type = kind
        self._items(
            vars(value), PlaceKind.INSTANCE, place, number, attributes=True, library=library
        )

    # ------------------------------------------------------------------ numbers that vary

    def may_vary(self, number: int) -> bool:
        """Whether a place has a number that another call may have another one for. Ints do as
        arguments only: elsewhere they count, as a rule, and select."""
        value = self.places[number].object
        given = number < self.first_of_root[2]
        known = number in self.number_owners and (given or isinstance(value, float))
        return known and _engine.may_stand_in(value, value)

    def vary(self, numbers: Collection[int]) -> None:
        """Makes leaves of the numbers in these places."""
        for number in numbers:
            self.places[number].kind = PlaceKind.NUMBER
        leaves = dict(zip(self.leaf_places, self.leaves, strict=True))
        leaves |= {number: self.places[number].object for number in numbers}
        self.leaf_places = sorted(leaves)
        self.leaves = [leaves[number] for number in self.leaf_places]

    # ------------------------------------------------------------------ reading it

    def path(self, number: int) -> str:
        """How a program would write a place."""
        labels: list[str] = []
        while number >= 0:
            labels.append(self.places[number].label)
            number = self.places[number].above
        text = "".join(reversed(labels))
        for plumbing in ("._modules[", "._parameters[", "._buffers[", ".__dict__["):
            while plumbing in text:  # a module's attributes are written as such
                before, _, rest = text.partition(plumbing)
                name, _, behind = rest.partition("]")
                text = f"{before}.{name.strip(chr(39))}{behind}"
        return text.replace(".__self__", "").replace(".__func__", "")

    def nodes(
        self,
        slots: Mapping[int, int],
        unread: Collection[int] = (),
        returned: Mapping[int, int] = types.MappingProxyType({}),
        used: Collection[int] = (),
    ) -> list[_engine.Place]:
        """The tree for the engine. `slots`: of places that a call gives something else, their
        numbers among those. `unread`: gradients that it does not look at, nor below them.
        `returned`: of places whose objects are returned, the same. `used`: leaves that the graph
        takes."""
        below = {each for number in unread for each in range(number + 1, self.places[number].end)}
        met_again = {*self.met_elsewhere()}
        likes = dict(zip(self.leaf_places, self.leaves, strict=True))
        taken = {self.leaf_places[leaf] for leaf in used}
        return [
            _engine.Place(
                PlaceKind.UNREAD if number in unread else place.kind,
                children=0 if number in unread else place.children,
                number=place.same if place.same >= 0 else number if number in met_again else -1,
                slot=slots.get(number, -1),
                returned=returned.get(number, -1),
                object=place.object,
                type=place.type,
                key=place.key,
                like=likes[number] if place.kind is PlaceKind.TENSOR else None,
                used=number in taken,
            )
            for number, place in enumerate(self.places)
            if number not in below
        ]

    def leaves_in(self, number: int) -> range:
        """The leaves in a place, and below it."""
        place = self.places[number]
        return range(
            bisect.bisect_left(self.leaf_places, number),
            bisect.bisect_left(self.leaf_places, max(place.end, number + 1)),
        )

    def met_elsewhere(self) -> list[int]:
        """The places of what stands behind them as well, in order."""
        return sorted({place.same for place in self.places if place.same >= 0})

    @property
    def given(self) -> range:
        """The leaves among the callable's arguments: those of the first two roots."""
        return range(bisect.bisect_left(self.leaf_places, self.first_of_root[2]))

    def put(self, values: Mapping[int, Any]) -> None:
        """Gives places other values."""
        for number, value in values.items():
            self.owners[number].put(value)

    def restore(self) -> None:
        """Gives every container, variable and gradient what it held when this was made."""
        for container, before in self._containers:
            if isinstance(container, list):
                if not _alike(container, before):
                    container[:] = before
            elif isinstance(container, (set, collections.deque)):
                if not _alike(list(container), before):
                    container.clear()
                    add = container.update if isinstance(container, set) else container.extend
                    add(before)
            elif not _alike([*container, *container.values()], [*before, *before.values()]):
                container.clear()
                container.update(before)
        for number, owner in self.owners.items():
            if owner.holder is Holder.LIST:
                continue
            attribute = owner.holder is Holder.ATTRIBUTE
            get = functools.partial(getattr, owner.container) if attribute else owner.container.get
            if get(owner.key, None) is not self.held[number]:
                owner.put(self.held[number])
        for tensor in filter(has_memory, self.emptied):  # a run that has not come to its end
            tensor.untyped_storage().resize_(0)

    def forget(self) -> None:
        """Lets go of all that was found; what it looked like stays."""
        self.leaves, self._alive, self._containers = [], [], []
        self.held, self.owners, self.number_owners, self.functions = {}, {}, {}, []
        self.walked, self.emptied = {}, []
        self.roots, self.classes, self.optimizers = [], [], []


def _alike(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements stand somewhere. FSDP2 takes the memory of gathered weights away
    until they are gathered again."""
    return not tensor.numel() or tensor.untyped_storage().nbytes() > 0


def is_atom(value: Any) -> bool:
    """Whether a value is told by what it is equal to, and nobody can change it."""
    return type(value) in _ATOMS or isinstance(value, _SPANS)
