"""What a callable returns, taken apart: the tensors that a graph makes, and the form around
them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from pygraph._engine import OutputKind
from pygraph.capturing.device import CaptureFailed
from pygraph.frontends.callable.structure import Tree, is_atom
from pygraph.torch_private.dispatch import tree_flatten, tree_unflatten
from pygraph.torch_private.tensors import DTensorLayout, part_and_layout, parts_of

#: (kind, index, children, object), see src/callable/captured.h. The index of an OBJECT is its place
#: in the tree.
Part = tuple[OutputKind, int, int, Any]


#: What torch says of a saved tensor that a backward has freed.
_FREED = "already been freed"

#: What a place is given, in place of the number of a result.
NOTHING = -1


@dataclasses.dataclass
class Returned:
    """What a run returned and rebound. Each tensor that is neither given to the callable nor read
    by it stands in `tensors` once, detached."""

    parts: list[Part] = dataclasses.field(default_factory=list)
    tensors: list[torch.Tensor] = dataclasses.field(default_factory=list)
    sources: list[torch.Tensor] = dataclasses.field(default_factory=list)  #: not detached
    count: int = 0  #: of these
    #: What the rebound places are given, in their order: the number of a tensor; NOTHING: None;
    #: below that: NOTHING - 1 - the number of a leaf.
    bound: list[int] = dataclasses.field(default_factory=list)
    #: By number among these, what makes a DTensor of the tensor.
    made: dict[int, Whole] = dataclasses.field(default_factory=dict)

    def same_form(self, other: Returned) -> bool:
        """Whether another run returned and rebound the same but for the tensors' values."""
        return (
            self.count == other.count
            and self.bound == other.bound
            and self.made == other.made
            and [part[:3] for part in self.parts] == [part[:3] for part in other.parts]
            and all(_same(a[3], b[3]) for a, b in zip(self.parts, other.parts, strict=True))
        )

    def without_tensors(self) -> Returned:
        return dataclasses.replace(self, tensors=[], sources=[])

    def build(
        self,
        results: Sequence[Any],
        leaves: Sequence[Any] | Mapping[int, Any],
        objects: Mapping[int, Any],
    ) -> Any:
        """What the callable returns, of a graph's results, and the objects in places of the tree.
        (The engine does the same.)"""
        parts = iter(self.parts)

        def make() -> Any:
            kind, index, children, value = next(parts)
            if kind is OutputKind.RESULT:
                return results[index]
            if kind is OutputKind.LEAF:
                return leaves[index]
            if kind is OutputKind.OBJECT:
                return objects[index]
            if kind is OutputKind.CONSTANT:
                return value
            made = [make() for _ in range(children)]
            if kind is OutputKind.TUPLE:
                return tuple(made)
            if kind is OutputKind.DICT:
                return dict(zip(value, made, strict=True))
            return value(made) if kind is OutputKind.MADE else made

        return make()

    @property
    def bound_leaves(self) -> set[int]:
        """The leaves among them."""
        return {_leaf(number) for number in self.bound if number < NOTHING}

    def bound_values(self, results: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        """What the rebound places get, of a graph's results."""
        found = [
            results[n] if n >= 0 else None if n == NOTHING else leaves[_leaf(n)] for n in self.bound
        ]
        for number, make in self.made.items():
            found[number] = make([found[number]])
        return found


def take_apart(value: Any, rebound: Sequence[Any], tree: Tree) -> Returned:
    """Of what a run returned, and what it gave the places that it rebound. `tree`: what the run was
    made of. Raises CaptureFailed for what no replay can return."""
    taker = _Taker(tree)
    taker.add(value)
    taker.bind(rebound)
    return taker.found


class _Taker:
    def __init__(self, tree: Tree) -> None:
        self.found = Returned()
        self._leaf_of = {id(leaf): number for number, leaf in enumerate(tree.leaves)}
        self._place_of = {id(each): place for place, each in tree.walked.items()}
        self._numbers: dict[int, int] = {}

    def add(self, value: Any) -> None:
        parts = self.found.parts
        if (place := self._place_of.get(id(value))) is not None:  # a cache, or the batch
            parts.append((OutputKind.OBJECT, place, 0, None))
        elif isinstance(value, torch.Tensor):
            self._add_tensor(value)
        elif is_atom(value):
            parts.append((OutputKind.CONSTANT, 0, 0, value))
        elif type(value) in (tuple, list):
            kind = OutputKind.TUPLE if type(value) is tuple else OutputKind.LIST
            parts.append((kind, 0, len(value), None))
            self._add_all(value)
        elif type(value) is dict and all(is_atom(key) for key in value):
            parts.append((OutputKind.DICT, 0, len(value), tuple(value)))
            self._add_all(value.values())
        else:
            children, form = tree_flatten(value)
            if len(children) == 1 and children[0] is value:
                raise CaptureFailed(
                    f"it returns a {type(value).__name__}; a replay returns tensors, and numbers "
                    "and texts that are the same in each call"
                )
            parts.append((OutputKind.MADE, 0, len(children), Unflatten(form)))
            self._add_all(children)

    def _add_all(self, values: Iterable[Any]) -> None:
        for each in values:
            self.add(each)

    def _add_tensor(self, value: torch.Tensor) -> None:
        leaf = self._leaf_of.get(id(value))
        if leaf is not None:
            self.found.parts.append((OutputKind.LEAF, leaf, 0, None))
        elif parts_of(value):
            part, whole = taken_from(value)
            self.found.parts.append((OutputKind.MADE, 0, 1, whole))
            self._add_tensor(part)
        else:
            self.found.parts.append((OutputKind.RESULT, self._number(value), 0, None))

    def bind(self, rebound: Sequence[Any]) -> None:
        for number, value in enumerate(rebound):
            if parts_of(value):
                if id(value) in self._place_of:
                    raise CaptureFailed(f"it puts a {type(value).__name__} in another place")
                value, self.found.made[number] = taken_from(value)
            leaf = self._leaf_of.get(id(value))
            if value is None:
                self.found.bound.append(NOTHING)
            elif leaf is not None:
                self.found.bound.append(_leaf(leaf))
            else:
                self.found.bound.append(self._number(value))

    def _number(self, value: torch.Tensor) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = self.found.count
            self.found.count += 1
            self.found.tensors.append(detached(value))
            self.found.sources.append(value)
        return number


@dataclasses.dataclass(frozen=True)
class Whole:
    """Makes a DTensor of its part."""

    layout: DTensorLayout

    def __call__(self, parts: list[Any]) -> Any:
        return self.layout.made_of(parts[0])


def taken_from(value: torch.Tensor) -> tuple[torch.Tensor, Whole]:
    """The part of a DTensor that a run has made, and what makes it of another one. Raises
    CaptureFailed."""
    if value.requires_grad:
        raise CaptureFailed(
            f"it returns or rebinds a {type(value).__name__} that requires gradients"
        )
    part, layout = require_part(value)
    return part, Whole(layout)


def require_part(value: torch.Tensor) -> tuple[torch.Tensor, DTensorLayout]:
    """The tensor that a DTensor is made of, and how. Raises CaptureFailed for others."""
    found = part_and_layout(value)
    if found is None:
        raise CaptureFailed(f"a {type(value).__name__} is neither a plain tensor nor a DTensor")
    return found


@dataclasses.dataclass(frozen=True)
class Unflatten:
    """Makes a value of a registered class of its children."""

    form: Any

    def __call__(self, children: list[Any]) -> Any:
        return tree_unflatten(children, self.form)


def objects_in(parts: Iterable[Part]) -> list[int]:
    """The places of the objects among what is returned."""
    return sorted({index for kind, index, *_ in parts if kind is OutputKind.OBJECT})


def _leaf(number: int) -> int:
    """From the number of a leaf to what a place is given, and back."""
    return NOTHING - 1 - number


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory without autograd's graph behind it."""
    return tensor.detach() if tensor.requires_grad else tensor


def waits_for_backward(tensor: torch.Tensor) -> bool:
    """Whether a backward from this tensor can still be run: nothing that was saved for it has been
    freed."""
    if not tensor.requires_grad:
        return False
    waiting, seen = [tensor.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for name in dir(node):
            if name.startswith("_saved_"):
                try:
                    getattr(node, name)
                except RuntimeError as error:
                    if _FREED in str(error):  # else: it was written, which the backward will say
                        return False
        waiting += [before for before, _ in node.next_functions]
    return True


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left.hex() == right.hex()
    return type(left) is type(right) and bool(left == right)
