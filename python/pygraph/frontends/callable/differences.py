"""Trees of calls beside one another: whether two calls are made of the same, where they differ, and
what a call did to what it was made of."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

from pygraph import _engine
from pygraph._engine import PlaceKind
from pygraph.frontends.callable.structure import COUNTED, NUMBERS, Place, Tree

_VALUES = (PlaceKind.VALUE, PlaceKind.NUMBER)


@dataclasses.dataclass
class Difference:
    """How a call has left what it was made of."""

    rebound: list[tuple[int, int]]  #: places with another tensor or None: before, and after
    change: str | None = None  #: what else is not what it was; None: nothing


def same(one: Tree, other: Tree) -> bool:
    """Whether two calls are made of the same."""
    return len(one.places) == len(other.places) and all(
        _same_place(left, right) and left.same == right.same
        for left, right in zip(one.places, other.places, strict=True)
    )


def differing_numbers(one: Tree, other: Tree) -> set[int] | None:
    """The places in which two calls have different numbers; None: they differ in more."""
    if len(one.places) != len(other.places):
        return None
    found = set()
    for number, (left, right) in enumerate(zip(one.places, other.places, strict=True)):
        if _same_place(left, right) and left.same == right.same:
            continue
        if left.kind not in _VALUES or right.kind not in _VALUES:
            return None
        if not _same_value(left.key, right.key):
            return None
        if type(left.object) is not type(right.object) or type(left.object) not in NUMBERS:
            return None
        found.add(number)
    return found


def first_difference(one: Tree, other: Tree) -> tuple[int, str]:
    """Where two calls that are not made of the same differ: the place, and in words."""
    number = 0
    for number, (left, right) in enumerate(zip(one.places, other.places, strict=False)):
        if not _same_place(left, right) or left.same != right.same:
            now, was = _what(right), _what(left)
            if now == was:
                return number, f"{other.path(number)} holds others than before"
            return number, f"{other.path(number)} is {now}, and was {was}"
    return number, "it reads other objects"


def difference(before: Tree, after: Tree) -> Difference:
    """What one call did to what it was made of, as seen before it and after."""
    pair = _Pair(before, after)
    for one, other in zip(before.first_of_root, after.first_of_root, strict=False):
        if not pair.compare(one, other):
            return pair.found
    if len(before.first_of_root) != len(after.first_of_root):
        pair.found.change = "a class or a function has other attributes now"
    return pair.found


class _Pair:
    """The trees before a call and after it. (Functions within difference() that call each other
    would keep both, and the call's tensors, until the next collection.)"""

    def __init__(self, before: Tree, after: Tree) -> None:
        self.before, self.after = before, after
        self.found = Difference([])
        self._places: dict[int, int] = {}  #: before to after

    def compare(self, one: int, other: int) -> bool:
        """Whether nothing changed below a place, but for what was bound anew."""
        before, after = self.before, self.after
        self._places[one] = other
        left, right = before.places[one], after.places[other]
        if one in before.held and other in after.held:
            if before.held[one] is not after.held[other]:
                self.found.rebound.append((one, other))
                return True
            if left.kind is PlaceKind.TENSOR and left.shape != right.shape:
                return self._changed(one, other)
        elif not _unchanged(left, right) or self._places.get(left.same, -1) != right.same:
            return self._changed(one, other)
        rebound = len(self.found.rebound)
        if not self._children(one, other):
            return False
        replaced = before.walked.get(one) is not after.walked.get(other)
        if replaced and len(self.found.rebound) > rebound:  # a replay would put it in the old one
            self.found.change = f"{before.path(one)} is another {_named(left)} now"
            return False
        return True

    def _children(self, one: int, other: int) -> bool:
        count = self.before.places[one].children
        if count != self.after.places[other].children:
            return self._changed(one, other)
        one, other = one + 1, other + 1
        for _ in range(count):
            if not self.compare(one, other):
                return False
            one, other = self.before.places[one].end, self.after.places[other].end
        return True

    def _changed(self, one: int, other: int) -> bool:
        was, now = _what(self.before.places[one]), _what(self.after.places[other])
        how = f"was {was} and is {now} now" if was != now else "holds others than before"
        self.found.change = f"{self.before.path(one)} {how}"
        return False


def _unchanged(left: Place, right: Place) -> bool:
    if left.kind is PlaceKind.NUMBER:
        return right.kind in _VALUES and _same_value(left.object, right.object)
    return _same_place(left, right)


def _same_place(left: Place, right: Place) -> bool:
    if left.kind is PlaceKind.NUMBER:
        alike = right.kind in _VALUES and _same_value(left.key, right.key)
        return alike and _engine.may_stand_in(left.object, right.object)
    if left.kind is not right.kind or left.children != right.children:
        return False
    if not _same_value(left.key, right.key):
        return False
    if left.kind is PlaceKind.VALUE:
        return _same_value(left.object, right.object)
    if left.kind is PlaceKind.BYTES:
        return bool(left.object == right.object and left.shape == right.shape)
    return left.object is right.object and left.type is right.type and left.shape == right.shape


def _same_value(left: Any, right: Any) -> bool:
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return float.hex(left) == float.hex(right)
    if isinstance(left, complex):
        return _same_value(left.real, right.real) and _same_value(left.imag, right.imag)
    return bool(left == right)


def _what(place: Place) -> str:
    if place.kind is PlaceKind.TENSOR:
        dtype, device, sizes, strides, requires_grad, emptied = place.shape
        name = str(dtype).removeprefix("torch.")
        more = ", requires grad" * requires_grad + ", without memory" * emptied
        return f"a {name} tensor {list(sizes)} of strides {list(strides)} on {device}{more}"
    if place.kind in _VALUES:
        text = repr(place.object)
        return text if len(text) < 60 else f"{text[:57]}..."
    if place.kind is PlaceKind.EMPTY:
        return "not there"
    if place.kind is PlaceKind.SAME:
        return "an object that stands elsewhere, too"
    counted = f" of {place.children}" if place.kind in COUNTED else ""
    return f"a {_named(place)}{counted}"


def _named(place: Place) -> str:
    if place.kind in (PlaceKind.NAMES, PlaceKind.METHODS):
        return "class"
    if place.kind is PlaceKind.FUNCTION:
        return _called(place.object)
    return getattr(place.type, "__name__", None) or _called(place.object)


def _called(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return f"function {value.co_name}"
    return f"certain {type(value).__name__}"
